"""The acceptor's side of a session over sockets: a handler for each stream. A node serves control with it; a fake guest serves a node.

The handler is a task. When it returns, our side of the stream is closed; a `SpaceError` of it becomes RESET with that code, anything else
is logged and becomes `internal`. The peer's RESET, the end of the session and the end of the server cancel it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable

from space.core.wire.events import NODE, Broken, Layout, Opened, Renewed, WasReset
from space.core.wire.mux import Acceptor
from space.model.errors import SpaceError, Unavailable, from_code
from space.rpc.link import Link
from space.rpc.stream import Stream

Handler = Callable[[Stream, str, bytes], Awaitable[None]]
_log = logging.getLogger(__name__)
_PEER = struct.Struct("=iII")  # pid, uid, gid


class Served(Link[Acceptor]):
    """One session, or on lasting pipes (`GUEST`) one after the other."""

    def __init__(self, layout: Layout, handler: Handler, on_begin: Callable[[int], object] | None = None) -> None:
        """on_begin: called with the generation of each session's HELLO, before its first stream."""
        super().__init__(Acceptor(layout), layout)
        self._on_begin = on_begin
        self._handler = handler
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # pipes closed and every handler ended
        self._tell[Opened] = self._on_opened
        self._tell[Renewed] = self._on_renewed

    async def aclose(self) -> None:
        """End it and wait for its handlers (so not for a handler to call). Idempotent."""
        self.die("it was closed by this side")
        await asyncio.shield(self.finished)

    def die(self, cause: str | SpaceError) -> None:
        super().die(cause)
        self._settle()

    def death(self, cause: SpaceError) -> SpaceError:
        error = Unavailable(f"the session ended: {cause.message}")
        error.__cause__ = cause
        return error

    def fault(self, event: WasReset) -> SpaceError:
        return from_code(event.code, event.message, hint=event.hint or None)

    def _end_streams(self, error: SpaceError) -> None:
        super()._end_streams(error)
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()

    def _on_opened(self, event: Opened) -> None:
        if not self.mux.lives(event.stream):
            return  # its RESET, or another session, came in the same read
        pipe = self.mux.pipe_of(event.stream)
        stream = Stream(self, self.ends[pipe], event.stream, event.verb, self._layout[pipe].limit, mine=False)
        self._streams[event.stream] = stream
        task = asyncio.get_running_loop().create_task(self._run(stream, event.request), name=f"{event.verb} {event.stream}")
        self._tasks[event.stream] = task
        self._ending.add(task)
        task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._settle()

    def _settle(self) -> None:
        if self.closed.done() and not self._ending and not self.finished.done():
            self.finished.set_result(None)

    def _on_renewed(self, event: Renewed) -> None:
        self._end_streams(self.death(SpaceError("the peer began a new one")))
        if self._on_begin is not None:
            self._on_begin(event.generation)

    def _on_broken(self, event: Broken) -> None:
        if len(self._layout) == 1:  # a connection of its own: the peer can make another
            self.die(event.error)
        else:
            self._end_streams(self.death(event.error))

    def _on_reset(self, event: WasReset) -> None:
        super()._on_reset(event)
        task = self._tasks.pop(event.stream, None)
        if task is not None:
            task.cancel()

    async def _run(self, stream: Stream, request: bytes) -> None:
        try:
            await self._handler(stream, stream.verb, request)
        except SpaceError as error:
            stream.reset_now(error.code, error.message, error.hint or "")
        except asyncio.CancelledError:
            stream.reset_now("unavailable", "the server is stopping")
            raise
        except Exception:  # noqa: BLE001 - logged; the other streams must live on
            _log.exception("%s failed", stream.verb)
            stream.reset_now("internal", f"{stream.verb} failed; the server's log says why")
        else:
            stream.close_now()
        finally:
            if self._tasks.get(stream.number) is asyncio.current_task():
                del self._tasks[stream.number]


class Door:
    """A listening UNIX socket of the node: who may connect (by uid), and a session for each that does."""

    def __init__(self, listener: socket.socket, uids: frozenset[int], handler: Handler) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._uids = uids
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin to accept."""
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept nobody any more, and hang up. Idempotent."""
        asyncio.get_running_loop().remove_reader(self._listener)
        for task in self._tasks:
            task.cancel()

    async def aclose(self) -> None:
        """Close, and wait for the handlers."""
        self.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def sessions(self) -> int:
        """How many are connected, or have handlers that still end."""
        return len(self._tasks)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        pid, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in self._uids:
            _log.warning("refused a connection of uid %d (pid %d)", uid, pid)
            peer.close()
            return
        task = asyncio.create_task(self._serve(peer), name=f"session of uid {uid}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, peer: socket.socket) -> None:
        served = Served(NODE, self._handler)
        try:
            await served.attach([peer])
            await asyncio.shield(served.finished)
        finally:
            await served.aclose()
