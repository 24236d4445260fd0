"""Files of the caller's own machine. What a server exports is whole and its owner's alone, or not there; a fault names the path."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from space.model.errors import Conflict, InvalidArgument, SpaceError, Unavailable

MOST_TEXT = 256 << 10
_NO_FAULT_OF_THE_CALLERS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS}


def fault(error: OSError, doing: str, path: object) -> SpaceError:
    """What is wrong with a file: InvalidArgument, or Unavailable where another try may work."""
    kind = Unavailable if error.errno in _NO_FAULT_OF_THE_CALLERS else InvalidArgument
    return kind(f"cannot {doing} {path}: {error.strerror or error}")


@contextmanager
def told(doing: str, path: Path) -> Iterator[None]:
    """Around what touches the file."""
    try:
        yield
    except OSError as error:
        raise fault(error, doing, path) from None


def text(path: Path, *, what: str, most: int = MOST_TEXT) -> str:
    """A small text, read no further than it may be long. InvalidArgument when it cannot be read, is too long or is no text."""
    with told("read", path), path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InvalidArgument(f"{path} is larger than {most} bytes", hint=f"{what} is a text of at most {most >> 10} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is no text: byte {error.start} is not UTF-8", hint=f"{what} is a text") from None


class Arriving:
    """A file that is written beside its name, and takes it when all of it is on the disk. It may hold secrets, so it has mode 0600."""

    def __init__(self, target: str | Path) -> None:
        self._target = Path(target)
        with told("write", self._target):
            if _is_there(self._target):
                raise Conflict(f"{self._target} is there already")
            self._part = self._target.with_name(f".{self._target.name[:200]}.{secrets.token_hex(4)}")
            self._file = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")

    def write(self, piece: bytes) -> None:
        """More of it."""
        with told("write", self._target):
            self._file.write(piece)

    def commit(self) -> None:
        """All of it is there. Conflict when the name was taken meanwhile."""
        with told("write", self._target):
            self._file.flush()
            os.fsync(self._file.fileno())
            if _is_there(self._target):
                raise Conflict(f"{self._target} is there already")
            self._part.rename(self._target)
            _sync(self._target.parent)

    def close(self) -> None:
        """Let go of it; what was not committed is gone."""
        try:
            self._file.close()
        except OSError:
            pass  # a disk that took nothing more: that was told by write or commit
        finally:
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _is_there(path: Path) -> bool:
    """Also a link that leads nowhere; OSError for what can never be."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
