"""A port of this machine that leads to a port in a sandbox, with threads: the twin of `_async/forward.py`, written by hand.

    a local connection -> a connection of the API -> a connection in the guest

Each local connection has its own, and two threads, one a direction. The end of a direction is passed on, the other one goes on; what one
side does not take is not read from the other. A local connection whose way to the guest fails is reset, as the kernel does.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from space.model.errors import Conflict, Gone, InvalidArgument, NotFound, SpaceError
from space.sdk.sockets import PIECE, RESET_ON_CLOSE, address_fault

from .ports import Connection

BACKLOG = 128


class Forward:
    """A local listener. A context manager; `address` is where it listens. Leaving it closes every connection."""

    def __init__(self, connect: Callable[[], Connection], host: str, port: int, *, alive: Callable[[], object]) -> None:
        if not 0 <= port <= 65535:
            raise InvalidArgument(f"{port} is no port", hint="1 to 65535, or 0 for a free one")
        self._connect = connect
        self._alive = alive
        self.ended: SpaceError | None = None
        self._wanted = (host, port)
        self._listener: socket.socket | None = None
        self._threads: set[threading.Thread] = set()
        self._locals: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.failures: list[SpaceError] = []

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of this machine."""
        if self._listener is None:
            raise Conflict("nothing is forwarded", hint="use it with `with`")
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        host, port = self._wanted
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._listener = socket.create_server(found[4][:2], family=found[0], backlog=BACKLOG)
        except OSError as error:
            raise address_fault(host, port, error) from error
        self._closing.clear()
        self._spawn(self._accept, self._listener)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def serve_forever(self) -> None:
        """Until it is closed by another thread, or interrupted. Gone, NotFound: a connection found that the sandbox is there no more."""
        self._closing.wait()
        if self.ended is not None:
            raise self.ended

    def close(self) -> None:
        """Listen no more, and close every connection. Idempotent."""
        self._closing.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
            self._listener.close()
        with self._lock:
            for local in self._locals:
                with suppress(OSError):
                    local.shutdown(socket.SHUT_RDWR)
        while self._threads:
            for thread in list(self._threads):
                thread.join()

    def _spawn(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="space forward", daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                local, _ = listener.accept()
            except OSError:
                if self._closing.wait(0.05):  # else no descriptors are left, say: what waits is taken when there are some
                    return
                continue
            with self._lock:
                self._locals.add(local)
            self._spawn(self._accepted, local)

    def _accepted(self, local: socket.socket) -> None:
        try:
            with self._connect() as connection:
                outward = self._spawn(self._outward, local, connection)
                try:
                    _inward(connection, local)
                    outward.join()
                finally:
                    # Its reader is woken before the connection is closed.
                    if outward.is_alive():
                        with suppress(OSError):
                            local.shutdown(socket.SHUT_RD)
        except (SpaceError, OSError) as fault:
            self._failed(local, fault)
        finally:
            with self._lock:
                self._locals.discard(local)
            local.close()

    def _outward(self, local: socket.socket, connection: Connection) -> None:
        try:
            while data := local.recv(PIECE):
                connection.send(data)
            connection.send_eof()
        except (SpaceError, OSError) as fault:
            self._failed(local, fault)
            connection.close()

    def _looked(self, fault: SpaceError) -> SpaceError:
        """What a failure means: nothing listens on the port, or there is no sandbox any more, which ends it all."""
        if isinstance(fault, NotFound):
            with suppress(SpaceError):
                try:
                    self._alive()
                except (Gone, NotFound) as gone:
                    fault = self.ended = gone
        elif isinstance(fault, Gone):
            self.ended = fault
        return fault

    def _failed(self, local: socket.socket, fault: Exception) -> None:
        if isinstance(fault, SpaceError) and not self._closing.is_set():
            del self.failures[:-15]
            self.failures.append(self._looked(fault))
            if self.ended is not None and self._listener is not None:
                with suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)
                self._closing.set()
        with suppress(OSError):
            local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


def _inward(connection: Connection, local: socket.socket) -> None:
    while data := connection.receive():
        local.sendall(data)
    local.shutdown(socket.SHUT_WR)
