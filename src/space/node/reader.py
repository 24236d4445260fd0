"""A reader of a process's output: where it is, and what it has to be told that is kept no longer.

It reads in the order in which the output was produced, from offsets on; it holds up nobody but a process whose overflow is `block`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from space.model.errors import InvalidArgument
from space.node.process import Process
from space.node.spool import Piece
from space.rpc import node_api as api
from space.rpc.session import Stream


class Reader:
    """Use it as a context manager: it is attached within. offsets: of the next bytes (stdout, stderr)."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.offsets = [0, 0]
        self.position = 0
        self._fresh = True

    def seek(self, stdout: int | None, stderr: int | None) -> None:
        """Begin at these offsets: None for the oldest that is kept, negative for so many bytes from the end."""
        spool = self.process.spool
        for lane, (asked, first, produced) in enumerate(zip((stdout, stderr), spool.first, spool.lanes, strict=True)):
            if asked is not None and asked > produced:
                raise InvalidArgument(f"{('stdout', 'stderr')[lane]} begins at {asked}, but {produced} bytes were produced so far")
            self.offsets[lane] = first if asked is None else asked if asked >= 0 else max(first, produced + asked)
        self.position = spool.seek(self.offsets[0], self.offsets[1])

    def __enter__(self) -> Self:
        self.process.readers.add(self)
        if self.process.started.done():
            self.process.spool.watched = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process = self.process
        process.readers.discard(self)
        if process.started.done() and not process.removed:
            process.spool.watched = bool(process.readers)
        process.progress.open()

    def take(self) -> list[Piece | api.Gap]:
        """What comes next, some 256 KiB of it; empty when it has caught up. NotFound when the process was forgotten."""
        spool = self.process.spool
        found: list[Piece | api.Gap] = []
        if self.offsets == spool.lanes:  # what is left are no pieces of output
            self.position = spool.tail
        while not found and self.position < spool.tail:
            batch = spool.read(self.position)
            if batch.jumped is not None or self._fresh:
                self._jump(batch.jumped or spool.first, found)
                self._fresh = False
            for piece in batch.pieces:
                self._piece(piece, found)
            self.position = batch.next
        if found:
            self.process.progress.open()
        return found

    async def send(self, control: Stream, *, follow: bool) -> bool:
        """Send what there is, with follow until the process has ended; whether it has, and all was sent."""
        until = None if follow else self.process.spool.tail
        while True:
            for item in self.take():
                if isinstance(item, Piece):
                    await control.send(item.payload, item.lane)
                else:
                    await control.send_message(item)
            if self.position < self.process.spool.tail and (until is None or self.position < until):
                continue
            if self.process.state != "running" and self.position >= self.process.spool.tail:
                return True
            if until is not None:
                return False
            await self.process.news.wait()

    def _jump(self, first: tuple[int, int], found: list[Piece | api.Gap]) -> None:
        for lane in (0, 1):
            missing = first[lane] - self.offsets[lane]
            if missing > 0:
                found.append(api.Gap(lane, self.offsets[lane], missing))
                self.offsets[lane] = first[lane]

    def _piece(self, piece: Piece, found: list[Piece | api.Gap]) -> None:
        lane, offset, payload = piece
        skip = self.offsets[lane] - offset
        if skip < 0:  # kept no longer, or rotten on the disk
            found.append(api.Gap(lane, self.offsets[lane], -skip))
        if skip >= len(payload):
            return
        found.append(piece if skip <= 0 else Piece(lane, offset + skip, payload[skip:]))
        self.offsets[lane] = offset + len(payload)
