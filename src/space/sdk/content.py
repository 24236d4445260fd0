"""Reading a file over any number of connections: which range to ask for next, and whether it is still the same file. Decisions only."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from space.model.errors import InvalidArgument, ProtocolError, SpaceError, StreamCut
from space.sdk.retry import wait_before

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A watch lost some changes, because more happened than it could hold: look at what is there."""


class Reading:
    """The place of a reader in a file. length: bytes at most, None for all that there are."""

    def __init__(self, offset: int = 0, length: int | None = None) -> None:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument(f"offset {offset} and length {length} cannot be negative")
        self._first = self._next = offset
        self._end = None if length is None else offset + length
        self._etag: str | None = None
        self._expected: int | None = None
        self._failures = 0
        self._ended = False

    @property
    def done(self) -> bool:
        """Nothing is left to ask for."""
        return self._ended or self._next == self._end

    def headers(self) -> dict[str, str]:
        """Of the request that goes on from here: for the same file, if some of it was read already."""
        headers = {}
        if self._next or self._end is not None:
            headers["range"] = f"bytes={self._next}-" + ("" if self._end is None else str(self._end - 1))
        if self._etag is not None:
            headers["if-match"] = self._etag
        return headers

    def begin(self, status: int, headers: Mapping[str, str]) -> bool:
        """An answer; whether a body is to be read. ProtocolError when it is not the range that was asked for."""
        if status == 416:
            if self._next != self._first:
                raise StreamCut(f"the file ended at byte {self._next} while it was read")
            self._ended = True  # from its end on there is nothing, as with a file that was opened
            return False
        wanted = "range" in self.headers()
        if wanted and status != 206:
            raise ProtocolError(f"byte {self._next} on was asked for, and the server answered {status}")
        length = headers.get("content-length", "")
        self._expected = int(length) if length.isdigit() else None
        if wanted:
            given = _RANGE.match(headers.get("content-range", ""))
            if given is None or int(given[1]) != self._next:
                raise ProtocolError(f"byte {self._next} on was asked for, and the server sent {headers.get('content-range')!r}")
            self._expected = int(given[2]) - int(given[1]) + 1
        self._etag = headers.get("etag", self._etag)
        return True

    def take(self, piece: bytes) -> None:
        """A piece that arrived."""
        self._next += len(piece)
        self._failures = 0
        if self._expected is not None:
            self._expected -= len(piece)

    def finish(self) -> None:
        """The body ended. StreamCut when bytes that were announced are missing."""
        if self._expected:
            raise StreamCut(f"the file's content ended {self._expected} bytes early")
        self._ended = True

    def wait_after(self, fault: SpaceError) -> float | None:
        """Seconds to wait before going on after `fault`; None to give up: without a tag nobody can say that it is the same file."""
        self._failures += 1
        if self._etag is None and self._next != self._first:
            return None
        return wait_before(self._failures, fault, repeatable=True, chance=random.random())  # noqa: S311  # spreads load, guards nothing
