"""Requests as bytes: what a caller says of a sandbox or a command becomes the body that the API takes. Almost no I/O."""

from __future__ import annotations

import codecs
import json
import math
import posixpath
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from space.model.errors import InvalidArgument, StreamCut, TooLarge
from space.model.frames import MEDIA_TYPE, PROCESS_MEDIA_TYPE
from space.model.sandbox import MAX_STDIN, IdlePolicy
from space.sdk.answers import TreeSummary

Command = str | Sequence[str]
Stdin = bytes | str | IO[bytes] | Iterable[bytes]


_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Keep(Enum):
    """`KEEP`: leave this as it is, where None means something."""

    KEEP = "keep"


KEEP = Keep.KEEP


def argv_of(command: Command) -> list[str]:
    """The arguments that run. A string goes to `/bin/sh -c`: not a login shell, whose profile would replace PATH and cost time."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", command]
    argv = list(command) if isinstance(command, Sequence) and not isinstance(command, (bytes, bytearray)) else []
    if not argv or not all(isinstance(item, str) for item in argv):
        raise InvalidArgument("a command is a string for the shell, or a list of at least one string")
    return argv


def stdin_bytes(stdin: Stdin) -> bytes:
    """All of stdin. TooLarge above 16 MiB, which is what one request carries."""
    if isinstance(stdin, str):
        gathered = stdin.encode("utf-8", "surrogateescape")
    elif isinstance(stdin, (bytes, bytearray, memoryview)):
        gathered = bytes(stdin)
    elif callable(read := getattr(stdin, "read", None)):
        # A pipe may give less than was asked for.
        gathered = _up_to_limit(iter(lambda: read(256 << 10), b""))
    else:
        gathered = _up_to_limit(stdin)
    if len(gathered) > MAX_STDIN:
        raise TooLarge(f"stdin is longer than {MAX_STDIN} bytes", hint="upload it as a file and redirect the command's input from it")
    return gathered


def _up_to_limit(pieces: Iterable[bytes]) -> bytes:
    gathered = bytearray()
    for piece in pieces:
        if isinstance(piece, str):
            raise InvalidArgument("stdin gives text; it must give bytes (open the file with 'rb')")
        gathered += piece
        if len(gathered) > MAX_STDIN:
            break
    return bytes(gathered)


def process_document(
    command: Command,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    timeout: float | None = None,
    **more: Any,
) -> bytes:
    """The JSON object that describes a process; what is None of `more` is left out."""
    if timeout is not None and (not isinstance(timeout, (int, float)) or isinstance(timeout, bool)):
        raise InvalidArgument(f"a timeout is a number of seconds above 0, not {timeout!r}", hint="None means no limit")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidArgument(f"a timeout is a number of seconds above 0, not {timeout}", hint="None means no limit")
    document: dict[str, Any] = {"argv": argv_of(command)}
    document |= {name: value for name, value in {"cwd": cwd, "user": user, **more}.items() if value is not None}
    if env:
        document["env"] = dict(env)
    if timeout is not None:
        document["timeout_ms"] = max(1, round(timeout * 1000))
    try:
        return json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the command holds text that is no UTF-8: {error}") from error


def process_request(
    command: Command, *, cwd: str | None, env: Mapping[str, str] | None, user: str | None, timeout: float | None, stdin: bytes | None
) -> tuple[bytes, dict[str, str]]:
    """Body and headers that run a process to its end."""
    body = process_document(command, cwd=cwd, env=env, user=user, timeout=timeout)
    if stdin is None:
        return body, {"content-type": "application/json", "accept": MEDIA_TYPE}
    return struct.pack("<I", len(body)) + body + stdin, {"content-type": PROCESS_MEDIA_TYPE, "accept": MEDIA_TYPE}


def segment(value: str) -> str:
    """An identifier as one segment of a URL's path. InvalidArgument for what could be none: a server would read `a/b` as another route."""
    if not isinstance(value, str) or not _IDENTIFIER.match(value):
        raise InvalidArgument(f"not an identifier: {str(value)[:64]!r}", hint="a name or an id is letters, digits, `-`, `_` and `.`")
    return value


def local_source(local_path: str | Path) -> Path:
    """What an upload reads. InvalidArgument for an empty path, which would be the current directory."""
    if not str(local_path):
        raise InvalidArgument("the path is empty", hint=". is the current directory")
    return Path(local_path)


def upload_place(guest_path: str, source_name: str, *, is_directory: bool) -> tuple[str, str]:
    """(directory to unpack in, entry's name) for an upload to `guest_path`; a trailing slash means *into that directory*."""
    if not guest_path:
        raise InvalidArgument("the guest path is empty")
    into = guest_path.endswith("/")
    if is_directory:
        return (guest_path + source_name if into else guest_path), "."
    if into:
        return guest_path, source_name
    directory, _, name = guest_path.rpartition("/")
    if name in (".", ".."):
        raise InvalidArgument(f"{guest_path!r} names a directory", hint="end it with / to put the file into it")
    return directory or ("/" if guest_path.startswith("/") else "."), name


def download_target(local_path: str | Path, guest_path: str) -> Path:
    """Where a download goes: into a directory that is there, else to that very name."""
    local = local_source(local_path)
    if str(local_path).endswith("/") or local.is_dir():
        name = posixpath.basename(posixpath.normpath(guest_path))
        return local / (name if name not in ("", ".", "..", "/") else "root")
    return local.absolute()


def tree_query(guest_path: str, user: str | None) -> dict[str, str]:
    """Which tree, for whom."""
    if not guest_path:
        raise InvalidArgument("the guest path is empty")
    return {"path": guest_path} | ({"user": user} if user is not None else {})


def idle_rule(policy: IdlePolicy) -> dict[str, Any]:
    """A rule for what is idle as the API takes it."""
    if not isinstance(policy, IdlePolicy):
        raise InvalidArgument(f"idle is an IdlePolicy, not {policy!r}", hint="such as IdlePolicy(600, 'pause')")
    return {"seconds": policy.seconds, "action": policy.action}


def checked_port(port: int) -> int:
    """A port of a sandbox. InvalidArgument."""
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise InvalidArgument(f"{port!r} is no port", hint="1 to 65535")
    return port


def checked_size(rows: int, cols: int) -> dict[str, int]:
    """A terminal's size as the API takes it."""
    if not (1 <= rows <= 65535 and 1 <= cols <= 65535):
        raise InvalidArgument(f"a terminal of {rows} lines and {cols} columns", hint="each is 1 to 65,535")
    return {"rows": rows, "cols": cols}


def query(params: Mapping[str, str]) -> str:
    """A query string. Names that are no UTF-8 (surrogates, PEP 383) keep their bytes."""
    return "&".join(f"{quote(name)}={quote(value.encode('utf-8', 'surrogateescape'), safe='/')}" for name, value in params.items())


def as_bytes(data: bytes | bytearray | memoryview | str) -> bytes:
    """What is to be sent: text as UTF-8."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)


def slices(data: bytes, size: int) -> Iterator[bytes]:
    """`data` in pieces of at most `size` bytes."""
    return (data[at : at + size] for at in range(0, len(data), size))


def reader(source: IO[bytes] | Iterable[bytes], size: int) -> Callable[[], bytes]:
    """A function that gives the next piece of an open file or an iterable; empty at the end. Text is refused."""
    read = getattr(source, "read", None)
    pieces = iter(source) if read is None else iter(lambda: read(size), b"")

    def step() -> bytes:
        for piece in pieces:
            if isinstance(piece, str):
                raise InvalidArgument("what is to be sent gives text; it must give bytes (open the file with 'rb')")
            if piece:
                return bytes(piece)
        return b""

    return step


class Tally:
    """What was sent of a file, to compare with what the guest holds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.crc32 = 0

    def add(self, piece: bytes) -> bytes:
        """Count it; returns it."""
        self.bytes += len(piece)
        self.crc32 = zlib.crc32(piece, self.crc32)
        return piece

    def compare(self, size: Any, crc32: Any) -> None:
        """StreamCut unless the guest took exactly what was sent."""
        if (size, crc32) != (self.bytes, self.crc32):
            raise StreamCut(
                f"{self.bytes} bytes with CRC-32 {self.crc32:08x} were sent; the guest took {size} with CRC-32 {crc32}",
                hint="write the file again",
            )


class Counted:
    """A tar stream on its way up: counts its bytes and their CRC-32, to compare with what the guest took."""

    def __init__(self, pieces: Iterable[bytes], on_progress: Callable[[int], object] | None = None) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)
        self._on_progress = on_progress
        self.bytes = 0
        self.crc32 = 0

    def step(self) -> bytes:
        """The next piece; empty at the end."""
        for piece in self._pieces:
            if piece:
                self.bytes += len(piece)
                self.crc32 = zlib.crc32(piece, self.crc32)
                if self._on_progress is not None:
                    self._on_progress(self.bytes)
                return piece
        return b""

    def compare(self, summary: TreeSummary) -> TreeSummary:
        """`summary` if the guest took exactly what was sent; StreamCut otherwise."""
        if (summary.bytes, summary.crc32) != (self.bytes, self.crc32):
            raise StreamCut(
                f"{self.bytes} bytes with CRC-32 {self.crc32:08x} were sent; the guest took {summary.bytes} with {summary.crc32:08x}",
                hint="repeat the upload",
            )
        return summary


class Sink:
    """One output's callbacks. Text is decoded as it comes: a character that is split over two pieces is given when it is whole."""

    def __init__(self, on_text: Callable[[str], object] | None, on_bytes: Callable[[bytes], object] | None) -> None:
        self._on_text = on_text
        self._on_bytes = on_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def calls(self, data: bytes, *, final: bool = False) -> list[tuple[Callable[[Any], object], str | bytes]]:
        """The calls to make for `data`, in order."""
        calls: list[tuple[Callable[[Any], object], str | bytes]] = []
        if self._on_bytes is not None and data:
            calls.append((self._on_bytes, data))
        if self._on_text is not None and (text := self._decoder.decode(data, final)):
            calls.append((self._on_text, text))
        return calls
