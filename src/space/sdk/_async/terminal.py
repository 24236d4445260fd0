"""A connection to a process that carries everything: output, input, size, signals. What an interactive shell is made of."""

from __future__ import annotations

import json
import signal as signals
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from space.model.errors import Conflict, SpaceError, StreamCut
from space.model.frames import Kind, encode
from space.model.sandbox import ExitStatus
from space.sdk.follow import Follower
from space.sdk.output import Gap, Output
from space.sdk.request import as_bytes, checked_size, slices
from space.sdk.sockets import PIECE

from ._socket import WebSocket

if TYPE_CHECKING:
    from .process import AsyncProcess


class AsyncTerminal:
    """A connected process. Iterate it for its output (`Output`, and `Gap` for what was dropped); it ends when the process has.

    One may iterate while another sends. A connection that breaks is StreamCut, and is not made anew, because nobody knows how much of
    what was sent arrived: `terminal.process.connect(**terminal.offsets)` goes on where the output stood.
    """

    def __init__(self, process: AsyncProcess, socket: WebSocket, follower: Follower, *, owned: bool) -> None:
        self.process = process
        self._socket = socket
        self._follower = follower
        self._owned = owned
        self._closed = False
        self._ready: Iterator[Output | Gap] = iter(())
        follower.begin()

    @property
    def offsets(self) -> dict[str, int]:
        """Where each stream stands: bytes read of it, or dropped, so far."""
        return {str(name): at for name, at in self._follower.offsets.items()}

    @property
    def exit(self) -> ExitStatus | None:
        """How the process ended, once all of its output was read."""
        return self._follower.exit

    # -- output --------------------------------------------------------------------------------------------------------
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output | Gap:
        while True:
            for piece in self._ready:
                return piece
            if self._follower.end is not None:
                raise StopAsyncIteration
            self._check_open()
            data = await self._socket.receive()
            if data is None:
                self._follower.finish()
                raise StreamCut("the connection was closed before the process ended", hint="connect again from where the output stood")
            self._ready = self._follower.receive(data)

    async def wait(self) -> ExitStatus:
        """How the process ended, once it has; output that nobody took until then is read and dropped."""
        async for _ in self:
            pass
        assert self._follower.exit is not None
        return self._follower.exit

    # -- input ---------------------------------------------------------------------------------------------------------
    async def send(self, data: bytes | str) -> None:
        """Write to the process (text as UTF-8). Waits while the process takes nothing. StreamCut when it or the connection has ended."""
        self._check_open()
        for piece in slices(as_bytes(data), PIECE):
            await self._socket.send(encode(Kind.STDIN, piece))

    async def send_eof(self) -> None:
        """End its input; in a terminal, the end-of-file character."""
        self._check_open()
        await self._socket.send(encode(Kind.STDIN_END))

    async def resize(self, rows: int, cols: int) -> None:
        """The size of its terminal, in lines and columns."""
        self._check_open()
        await self._socket.send(encode(Kind.RESIZE, json.dumps(checked_size(rows, cols)).encode()))

    async def signal(self, signal: int | str | signals.Signals = "TERM", *, all: bool = False) -> None:  # noqa: A002  # the API's word
        """Send a signal to its process group, or with `all` to everything it started."""
        self._check_open()
        name = int(signal) if isinstance(signal, int) else signal
        await self._socket.send(encode(Kind.SIGNAL, json.dumps({"signal": name, "all": all}).encode()))

    def _check_open(self) -> None:
        if self._closed:
            raise Conflict("the terminal is closed", hint="`terminal.process.connect(**terminal.offsets)` opens one that goes on")

    # -- its end -------------------------------------------------------------------------------------------------------
    async def aclose(self) -> None:
        """Close the connection; a shell (`AsyncSandbox.shell`) ends with it. Idempotent."""
        self._closed = True
        await self._socket.aclose()
        if self._owned:
            self._owned = False
            await self.process.delete()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.aclose()
        except SpaceError as fault:
            if error is None:
                raise
            error.add_note(f"and process {self.process.id} could not be deleted: {fault}")
