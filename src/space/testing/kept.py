"""The host's side of one kept process, for tests: it stores what comes, as a node's spool does, and attaches from what it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from space.core.wire import guest
from space.model.errors import GuestError
from space.rpc.session import Data, Session
from space.rpc.stream import Stream


@dataclass(slots=True)
class Kept:
    """name: the process's. output: what was stored of stdout and stderr. exited: how it ended, once that was told."""

    name: str
    output: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    pid: int = 0
    exited: guest.Exited | None = None
    refused: int = 0  # how often it was told that nobody reads stdin

    async def start(
        self,
        session: Session,
        argv: Sequence[str],
        *,
        env: dict[bytes, bytes] | None = None,
        user: str | None = None,
        timeout_ms: int | None = None,
        stdin: bool = False,
        pty: guest.Window | None = None,
    ) -> Stream:
        """Run a program; returns once it runs."""
        words = [word.encode() for word in argv]
        request = guest.Exec(words, None, list((env or {}).items()), user, timeout_ms, stdin or pty is not None, pty, self.name)
        return await self._begin(await session.open("exec", request))

    async def attach(self, session: Session, *, stdout: int | None = None, stderr: int | None = None) -> Stream:
        """Go on from what is stored, or from an offset before that, and then what is stored from there on must come again."""
        offsets = [len(kept) if at is None else at for kept, at in zip(self.output, (stdout, stderr), strict=True)]
        stream = await self._begin(await session.open("attach", guest.Attach(self.name, offsets[0], offsets[1])))
        for kept, at in zip(self.output, offsets, strict=True):
            del kept[at:]
        return stream

    async def _begin(self, stream: Stream) -> Stream:
        first = await anext(stream)
        started = guest.expect(guest.Started, first.payload)
        if self.pid not in {0, started.pid}:
            raise GuestError(f"{self.name} had pid {self.pid} and has {started.pid} now")
        self.pid = started.pid
        return stream

    async def step(self, stream: Stream) -> bool:
        """Store the next piece; False at the stream's end."""
        event = await anext(stream, None)
        if event is None:
            return False
        if isinstance(event, Data):
            self.output[event.lane].extend(event.payload)
        else:
            said = guest.decode(event.payload)
            if isinstance(said, guest.StdinClosed):
                self.refused += 1
            else:
                self.exited = guest.expect(guest.Exited, event.payload)
        return True

    async def until(self, stream: Stream, claim: Callable[[bytes], bool]) -> None:
        """Store until that holds of stdout; GuestError when the stream ends before."""
        while not claim(bytes(self.output[0])):
            if not await self.step(stream):
                raise GuestError(f"{self.name} ended before that: {bytes(self.output[0][-200:])!r}")

    async def until_exit(self, stream: Stream) -> guest.Exited:
        """Store up to the exit, whose counts must be right. The process is not forgotten: our CLOSE is not sent."""
        while self.exited is None:
            if not await self.step(stream):
                raise GuestError(f"{self.name}'s stream ended without an exit")
        counts = (len(self.output[0]), len(self.output[1]))
        if counts != (self.exited.stdout_bytes, self.exited.stderr_bytes):
            raise GuestError(f"{self.name} wrote {self.exited.stdout_bytes} and {self.exited.stderr_bytes} bytes, {counts} came")
        return self.exited

    async def finish(self, stream: Stream) -> guest.Exited:
        """Store up to the exit, and tell the guest that all is stored: it forgets the process."""
        exited = await self.until_exit(stream)
        if await self.step(stream):
            raise GuestError(f"something came after the exit of {self.name}")
        return exited


async def kept_now(session: Session) -> list[guest.Kept]:
    """What the guest keeps."""
    return guest.expect(guest.Processes, await session.call("processes", guest.Empty())).processes


async def forget(session: Session, name: str) -> None:
    """Kill and forget; NotFound when there is none."""
    guest.expect(guest.Done, await session.call("forget", guest.Process(name)))
