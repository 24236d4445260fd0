"""A process that runs in the background: read its output from any offset, any number of times; write to it, signal it, end it."""

from __future__ import annotations

import random
import signal as signals
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from space.model.errors import ConnectionFailed, Gone, NotFound, RateLimited, StreamCut, Unavailable
from space.model.frames import MEDIA_TYPE
from space.model.process import ProcessInfo, ProcessState
from space.model.sandbox import ExitStatus
from space.sdk.answers import process_info
from space.sdk.follow import Follower, wait_before_reattach
from space.sdk.output import DEFAULT_OUTPUT_LIMIT, Capture, Gap, Output, OutputLost, Result, Text, TextDecoder, result_of
from space.sdk.request import as_bytes, checked_size, segment, slices
from space.sdk.sockets import SUBPROTOCOL

from ._wait import sleep
from .client import HEARTBEAT_LIMIT_SECONDS, AsyncClient
from .terminal import AsyncTerminal

STDIN_PIECE = 8 << 20  # bytes of one request; the server takes 16 MiB
STDIN_SECONDS = 150.0  # while the process takes none of it


class AsyncProcess:
    """A process that lives on when nobody listens. `AsyncSandbox.start` and `AsyncSandbox.process` make this object."""

    def __init__(self, client: AsyncClient, sandbox_id: str, info: ProcessInfo) -> None:
        self._client = client
        self._info = info
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/processes/{segment(info.id)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def id(self) -> str:
        """The process's identifier, `pr-...`; `AsyncSandbox.process` finds it again."""
        return self._info.id

    @property
    def pid(self) -> int:
        """Its number in the guest."""
        return self._info.pid

    @property
    def state(self) -> ProcessState:
        """`running`, `exited` or `lost`, as this object last heard."""
        return self._info.state

    async def info(self) -> ProcessInfo:
        """What the server says of it now. NotFound when it was deleted, or ended longer ago than the server keeps."""
        self._info = process_info(await self._client.call("GET", self._path))
        return self._info

    # -- reading -------------------------------------------------------------------------------------------------------
    async def output(
        self, stdout: int | None = None, stderr: int | None = None, *, follow: bool = True
    ) -> AsyncGenerator[Output | Gap, None]:
        """Its output from these offsets on, as it comes, to its end; without `follow` to what there is now.

        stdout, stderr: bytes from the beginning; None is the oldest byte that is kept, -n the last n bytes. Each `Output` says its
        offset, so `Output.offset + len(Output.data)` is where to go on another day. A `Gap` stands for output that was dropped.

        A connection that breaks is made anew from the last offset: nothing comes twice, nothing is left out. After ten connections in a
        row that brought nothing (about 25 s) ConnectionFailed, StreamCut or Unavailable comes out, and a note says the offsets. Raises
        SandboxDied when the sandbox ends first, InvalidArgument for offsets that are not there.
        """
        follower = Follower(stdout, stderr)
        async with aclosing(self._follow(follower, follow=follow)) as pieces:
            async for piece in pieces:
                yield piece

    async def text(self, stdout: int | None = None, stderr: int | None = None, *, follow: bool = True) -> AsyncGenerator[Text | Gap, None]:
        """`output` as text: whole characters, however they were split; what is no UTF-8 as U+FFFD."""
        decoder = TextDecoder()
        async with aclosing(self.output(stdout, stderr, follow=follow)) as pieces:
            async for piece in pieces:
                for item in decoder.receive(piece):
                    yield item
        for item in decoder.finish():
            yield item

    async def wait(self) -> ExitStatus:
        """How it ended, once it has. Its output is left where it is. SandboxDied when its sandbox ended first."""
        info = await self.info()
        if info.exit is not None:
            return info.exit
        # What it writes from now on tells when it ends; nothing of it is kept here.
        follower = Follower(info.stdout_bytes, info.stderr_bytes)
        async with aclosing(self._follow(follower, follow=True)) as pieces:
            async for _ in pieces:
                pass
        return self._ended(follower)

    async def result(self, *, output_limit: int = DEFAULT_OUTPUT_LIMIT) -> Result:
        """All of its output and how it ended, once it has. TooLarge beyond `output_limit` bytes of one, OutputLost when it has gaps."""
        follower = Follower(0, 0)
        capture = Capture(output_limit)
        gaps: list[Gap] = []
        async with aclosing(self._follow(follower, follow=True)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Gap):
                    gaps.append(piece)
                elif not gaps:
                    capture.add(piece)
        status = self._ended(follower)
        if gaps:
            raise OutputLost(gaps, status)
        return result_of(status, capture)

    # -- writing, ending -----------------------------------------------------------------------------------------------
    async def write_stdin(self, data: bytes | str, *, close: bool = False) -> int:
        """Write to its standard input (text as UTF-8), and with `close` end it; returns the bytes it has taken in all.

        Needs `start(stdin=True)` or a terminal. Waits while the process takes nothing, 150 s at most. Conflict when it has ended or its
        input is closed. Never repeated: after StreamCut `info().stdin_bytes` tells how far it came.
        """
        taken = 0
        pieces = list(slices(as_bytes(data), STDIN_PIECE)) or [b""]
        for number, piece in enumerate(pieces, 1):
            params = {"close": "1"} if close and number == len(pieces) else None
            headers = {"content-type": "application/octet-stream"}
            answer = await self._client.call(
                "POST", f"{self._path}/stdin", params=params, content=piece, headers=headers, seconds=STDIN_SECONDS
            )
            taken = int(answer["stdin_bytes"])
        return taken

    async def close_stdin(self) -> None:
        """End its standard input; in a terminal, the end-of-file character. Conflict when that was done already."""
        await self.write_stdin(b"", close=True)

    async def signal(self, signal: int | str | signals.Signals = "TERM", *, all: bool = False) -> None:  # noqa: A002  # the API's word
        """Send a signal to its process group, or with `all` to everything it started. Conflict when it has ended."""
        name = int(signal) if isinstance(signal, int) else signal
        await self._client.call("POST", f"{self._path}/signal", json={"signal": name, "all": all})

    async def kill(self) -> None:
        """SIGKILL to everything it started. Conflict when it has ended."""
        await self.signal("KILL", all=True)

    async def resize(self, rows: int, cols: int) -> None:
        """The size of its terminal. Conflict when it has none."""
        await self._client.call("POST", f"{self._path}/resize", json=checked_size(rows, cols), repeatable=True)

    async def delete(self) -> None:
        """Kill everything it started and drop its output. Idempotent: one that is gone, or whose sandbox is, is no error."""
        with suppress(NotFound, Gone):
            await self._client.call("DELETE", self._path)

    async def connect(self, *, stdout: int | None = None, stderr: int | None = None, kill_on_disconnect: bool = False) -> AsyncTerminal:
        """One connection for output, input, size and signals. Offsets as in `output`. kill_on_disconnect: the process ends with it."""
        return await self._connected(stdout, stderr, kill_on_disconnect=kill_on_disconnect, owned=False)

    async def attach_terminal(self) -> AsyncTerminal:
        """As `connect` from its first byte; the process ends with the connection, and closing the terminal deletes it."""
        return await self._connected(0, 0, kill_on_disconnect=True, owned=True)

    async def _connected(self, stdout: int | None, stderr: int | None, *, kill_on_disconnect: bool, owned: bool) -> AsyncTerminal:
        follower = Follower(stdout, stderr)
        params = follower.params() | ({"kill_on_disconnect": "1"} if kill_on_disconnect else {})
        socket = await self._client.socket(f"{self._path}/connect", params=params, subprotocol=SUBPROTOCOL)
        return AsyncTerminal(self, socket, follower, owned=owned)

    # -- connections that break ----------------------------------------------------------------------------------------
    async def _follow(self, follower: Follower, *, follow: bool) -> AsyncGenerator[Output | Gap, None]:
        failures = 0
        while follower.end is None:
            try:
                async with aclosing(self._attached(follower, follow=follow)) as pieces:
                    async for piece in pieces:
                        yield piece
            except (ConnectionFailed, StreamCut, Unavailable, RateLimited) as fault:
                for piece in follower.salvage():
                    yield piece
                failures = 1 if follower.progressed else failures + 1
                pause = wait_before_reattach(failures, fault, random.random())  # noqa: S311  # spreads load, guards nothing
                if pause is None:
                    places = ", ".join(f"{name}={at}" for name, at in follower.offsets.items())
                    fault.add_note(f"{self.id} was read up to {places or 'nothing'}; output({places}) goes on from there")
                    raise
                follower.progressed = False
                await sleep(pause)

    async def _attached(self, follower: Follower, *, follow: bool) -> AsyncGenerator[Output | Gap, None]:
        """One connection, to its end."""
        params = follower.params() | {"follow": "1" if follow else "0"}
        headers, limit = {"accept": MEDIA_TYPE}, HEARTBEAT_LIMIT_SECONDS
        follower.begin()
        async with self._client.stream("GET", f"{self._path}/output", params=params, headers=headers, seconds=limit) as response:
            follower.begin(response.headers.get("x-request-id"))
            async with aclosing(self._client.pieces(response, limit)) as pieces:
                async for data in pieces:
                    for piece in follower.receive(data):
                        yield piece
                    if follower.end is not None:
                        break
            follower.finish()

    def _ended(self, follower: Follower) -> ExitStatus:
        assert follower.exit is not None
        return follower.exit
