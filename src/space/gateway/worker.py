"""All connections of one sandbox, and the one timer that they share."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable

from space.gateway.connection import Connection
from space.gateway.dnsserver import Responder
from space.gateway.peer import reset_on_close
from space.gateway.shared import Shared, log
from space.gateway.surroundings import Surroundings
from space.host import syscalls


class Worker:
    """responder: of its DNS. A worker without any has no timer either."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.shared = Shared(surroundings)
        self.shared.wake = self._wake
        self.responder = Responder(surroundings, self.shared.recorder)
        self._connections: set[Connection] = set()
        self._generation = surroundings.ruling().generation
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._connections)

    async def accept(self, sock: socket.socket) -> None:
        """Serve an accepted connection, whose socket is the worker's from here on. Returns when it has begun or was refused; never raises
        but when cancelled: a connection that fails is closed and recorded.
        """
        if self._closed:
            reset_on_close(sock)
            sock.close()
            return
        try:
            sock.setblocking(False)
            connection = Connection(self.shared, sock, self._gone)
            self._connections.add(connection)
            self.shared.counts.connections += 1
            self._wake()
            await connection.begin()
        except Exception:  # noqa: BLE001 - it is logged, and what it was about is over
            log.exception("a connection of %s failed at its beginning", self.shared.around.sandbox)
            reset_on_close(sock)
            sock.close()

    def changed(self) -> None:
        """The policy is another one: whoever knows says so, and need not wait for the next sweep."""
        ruling = self.shared.around.ruling()
        self._generation = ruling.generation
        self._each(lambda connection: connection.rejudge(ruling.stack))

    def fail(self, error: Exception) -> None:
        """Close every connection, as something that is wrong with all of them."""
        self._each(lambda connection: connection.fail(error))

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._each(lambda connection: connection.cut("stopped"))
        self._flush()

    def _sweep(self) -> None:
        self._timer = None
        try:
            if self.shared.around.ruling().generation != self._generation:
                self.changed()
            now = self.shared.clock()
        except Exception as error:  # noqa: BLE001 - without policy and time nothing is allowed
            self.fail(error)
        else:
            self._each(lambda connection: connection.sweep(now))
        self._flush()
        if self._connections:
            self._wake()
        else:  # once after each time that was not quiet: what many connections took is the machine's again
            gc.collect()
            syscalls.give_memory_back()

    def _wake(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self.shared.limits.sweep, self._sweep)

    def _each(self, do: Callable[[Connection], None]) -> None:
        """Of every connection; one that fails at it is closed, and keeps nobody else from theirs."""
        for connection in tuple(self._connections):
            try:
                do(connection)
            except Exception as error:  # noqa: BLE001 - what cannot be judged is not allowed
                connection.fail(error)

    def _flush(self) -> None:
        try:
            self.shared.recorder.flush()
        except Exception:  # noqa: BLE001 - it is logged, and what it was about is over
            log.exception("denials of %s could not be recorded", self.shared.around.sandbox)

    def _gone(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.shared.counts.connections -= 1
