"""Python with its libraries loaded already: each run is a copy (a fork) of this interpreter, which has imported them.

python3 warm_server.py SOCKET MODULE...     what the template starts, and what its clones have in memory; `warm-python` asks it for runs

Each copy draws its random numbers anew (`random`, `numpy.random`), so neither two runs nor two sandboxes share any. What they do share is
the seed of `hash()` of strings, which is the template's. A run ends with its command: whoever ends `warm-python` ends the copy and what it
started.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import marshal
import os
import random
import selectors
import signal
import socket
import struct
import sys
import traceback
import types
from contextlib import suppress
from typing import Any, NoReturn

_LENGTH, _STATUS = struct.Struct("<I"), struct.Struct("<i")
_MOST = 1 << 20


def serve(path: str, modules: list[str]) -> NoReturn:
    """Import them, then make copies for whoever asks."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a copy's collections then leave these pages alone
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    listener.setblocking(False)
    ended, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    watch = selectors.DefaultSelector()
    watch.register(listener, selectors.EVENT_READ)
    watch.register(ended, selectors.EVENT_READ)
    runs: dict[int, socket.socket] = {}  # by pid
    while True:
        for key, _ in watch.select():
            if key.fileobj is listener:
                begun = begin(listener, [ended, told, watch, *runs.values()])
                if begun:
                    runs[begun[0]] = begun[1]
                    watch.register(begun[1], selectors.EVENT_READ, begun[0])
            elif key.fileobj == ended:
                os.read(ended, 4096)
                reap(runs, watch)
            elif key.data in runs:  # nobody says anything more: who asked is gone
                watch.unregister(key.fileobj)
                end(key.data)


def begin(listener: socket.socket, others: list[Any]) -> tuple[int, socket.socket] | None:
    """A copy for who knocks: its pid and the connection."""
    try:
        link, _ = listener.accept()
    except OSError:
        return None
    try:
        link.settimeout(5)
        _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        head, files, _, _ = socket.recv_fds(link, _LENGTH.size, 3)
        length = _LENGTH.unpack(head)[0]
        asked = link.recv(length, socket.MSG_WAITALL) if length <= _MOST else b""
        if uid != os.getuid() or len(files) != 3:
            raise ValueError("another user, or no files")
        words, directory, environment = marshal.loads(asked)
    except (OSError, ValueError, EOFError, TypeError, struct.error):  # also one that only looked whether somebody is there
        link.close()
        return None
    pid = os.fork()
    if pid == 0:
        copy(link, listener, others, files, words, directory, environment)
    for file in files:
        os.close(file)
    link.settimeout(None)
    return pid, link


def copy(
    link: socket.socket,
    listener: socket.socket,
    others: list[Any],
    files: list[int],
    words: list[str],
    directory: str,
    environment: dict[bytes, bytes],
) -> NoReturn:
    """In the fork: never returns."""
    status = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (link, listener, *others):
            os.close(each) if isinstance(each, int) else each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environb.clear()
        os.environb.update(environment)
        os.chdir(directory)
        reseed()
        status = run(words)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        if status and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                status = status or 120  # as python3 ends whose output nobody takes
        os._exit(status & 0xFF)


def reseed() -> None:
    """No copy draws what another one draws."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def run(words: list[str]) -> int:
    """A program, as `__main__`."""
    what, code = words[0], b""
    if what == "-c":
        sys.argv, sys.path[0], name = ["-c", *words[2:]], "", "<string>"
        code = words[1].encode("utf-8", "surrogateescape")
    elif what == "-":
        sys.argv, sys.path[0], name, code = words, "", "<stdin>", sys.stdin.buffer.read()
    else:
        sys.argv, sys.path[0], name = words, os.path.dirname(os.path.abspath(what)), what
        with open(what, "rb") as file:
            code = file.read()
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if name == what:
        module.__file__ = what
    sys.modules["__main__"] = module
    exec(compile(code, name, "exec"), module.__dict__)
    return 0


def reap(runs: dict[int, socket.socket], watch: selectors.BaseSelector) -> None:
    """Who asked for what has ended is told."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        link = runs.pop(pid, None)
        if link is None:
            continue
        with suppress(KeyError):
            watch.unregister(link)
        with suppress(OSError):
            link.send(_STATUS.pack(os.waitstatus_to_exitcode(status)))
        link.close()


def end(pid: int) -> None:
    """The copy and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
