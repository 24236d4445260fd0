"""One file that others may rewrite, replace or point elsewhere, and a descriptor that is readable when that may have happened (inotify).

What is watched is the file, its directory, and the directory of every symbolic link on the way, so that a new file under the old name, a
link that is turned and a write in place are all noticed. Nothing is polled. What the kernel could not queue counts as a change.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from space.host import syscalls

_MOST_LINKS = 16
_FILE = syscalls.IN_MODIFY | syscalls.IN_CLOSE_WRITE | syscalls.IN_ATTRIB | syscalls.IN_MOVE_SELF | syscalls.IN_DELETE_SELF
_DIRECTORY = syscalls.IN_CREATE | syscalls.IN_MOVED_TO | syscalls.IN_MOVED_FROM | syscalls.IN_DELETE | syscalls.IN_ONLYDIR
_READ = 1 << 16


class FileWatch:
    """From now on. OSError when the kernel gives no more instances of inotify."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = syscalls.inotify_init()
        self._arm()

    def fileno(self) -> int:
        return self._descriptor

    def changed(self) -> bool:
        """Whether anything happened there since the last call; the file is to be read after this call, never before."""
        found = False
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _READ):
                found = True
        if found:
            self._arm()  # another file may have the name now; who is watched already is watched once
        return found

    def close(self) -> None:
        os.close(self._descriptor)

    def _arm(self) -> None:
        path = self._path
        for _ in range(_MOST_LINKS):
            self._watch(path.parent, _DIRECTORY)
            try:
                path = path.parent / path.readlink()
            except OSError:  # no link: the file itself, or nothing yet
                break
        self._watch(path, _FILE)

    def _watch(self, path: Path, events: int) -> None:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            syscalls.inotify_watch(self._descriptor, os.fspath(path), events)
