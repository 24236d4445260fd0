"""The mock server's WebSockets: connected processes and ports, each on threads of its own."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.sync.server import ServerConnection

from space.model.errors import InvalidArgument, NotFound, SpaceError
from space.model.frames import Decoder, Frame, Kind
from space.sdk.sockets import SUBPROTOCOL
from space.sdk.testing.processes import MockProcess
from space.sdk.testing.sandbox import known_process, offsets

if TYPE_CHECKING:
    from space.sdk.testing.server import MockServer

Service = Callable[[socket.socket], object]
Talk = Callable[[ServerConnection], None]
PIECE = 65536


def dialled(server: MockServer) -> socket.socket:
    """The client's end of a loopback connection whose other end the server speaks on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    threading.Thread(target=speak, args=(server, theirs), name="mock socket", daemon=True).start()
    return ours


def speak(server: MockServer, connected: socket.socket) -> None:
    """Be the server's side of one connection, whose first request asks for a WebSocket."""
    protocol = ServerProtocol(select_subprotocol=lambda _, offered: SUBPROTOCOL if SUBPROTOCOL in offered else None)  # type: ignore[arg-type, return-value]
    known: Any = SimpleNamespace(socket_closed=threading.Event())
    connection = ServerConnection(connected, protocol, known, ping_interval=None, close_timeout=1)
    found: list[tuple[Talk, int | None]] = []

    def decide(_: ServerConnection, request: Request) -> Response | None:
        parts = urlsplit(request.path)
        try:
            server.admit("GET", parts.path, request.headers.get("authorization"))
            talk = _talk(server, [part for part in parts.path.split("/") if part], dict(parse_qsl(parts.query)))
            server.raise_fault("after ", parts.path)
        except SpaceError as error:
            return _refused(error)
        found.append((talk, server.cut_of(parts.path)))
        return None

    connection.handshake(decide)
    if connection.protocol.state is State.OPEN and found:
        talk, left = found[0]
        if not server.goes_on.is_set():
            with connection.protocol_mutex:  # its reader waits for this before it answers anything
                server.goes_on.wait()
        _Cutting.wrap(connection, left)
        with suppress(ConnectionClosed, OSError):
            talk(connection)
    connection.close()


class _Cutting:
    """Breaks a connection after so many bytes of the messages that go out on it."""

    def __init__(self, connection: ServerConnection, left: int) -> None:
        self._connection = connection
        self._send = connection.send
        self._left = left

    @classmethod
    def wrap(cls, connection: ServerConnection, left: int | None) -> None:
        if left is not None:
            connection.send = cls(connection, left).send  # type: ignore[method-assign, assignment]

    def send(self, data: bytes) -> None:
        self._send(data[: self._left])
        self._left -= len(data)
        if self._left <= 0:
            self._connection.close_socket()
            raise OSError("the connection was cut")


def _refused(error: SpaceError) -> Response:
    from space.sdk.testing.server import problem

    told = problem(error)
    headers = Headers([*told.headers.items(), ("connection", "close")])
    return Response(told.status_code, error.title, headers, told.content)


def _talk(server: MockServer, parts: list[str], params: dict[str, str]) -> Talk:
    match parts:
        case ["v1", "sandboxes", sandbox_id, "processes", process_id, "connect"]:
            process = known_process(server.sandbox(sandbox_id), process_id)
            asked = offsets(params)
            process.check(asked)
            return lambda connection: _process(connection, process, asked, kill=params.get("kill_on_disconnect") == "1")
        case ["v1", "sandboxes", sandbox_id, "ports", port]:
            server.sandbox(sandbox_id)
            service = server.services.get(int(port))
            if service is None:
                raise NotFound(f"nothing listens on port {port} of the sandbox")
            return lambda connection: _port(connection, service)
    raise NotFound(f"there is no WebSocket at /{'/'.join(parts)}")


# -- processes -----------------------------------------------------------------------------------------------------------


def _process(connection: ServerConnection, process: MockProcess, asked: dict[str, int | None], *, kill: bool) -> None:
    gone = threading.Event()

    def listen() -> None:
        try:
            for frame in _frames(connection):
                with suppress(SpaceError):  # what comes for a process that has ended is late, not wrong
                    _told(process, frame)
        except (ConnectionClosed, ValueError):
            pass
        finally:
            if kill and not process.ended:
                with suppress(SpaceError):
                    process.signal(9)
            with process.changed:
                gone.set()
                process.changed.notify_all()

    listening = threading.Thread(target=listen, name="mock socket's reader", daemon=True)
    listening.start()
    try:
        for frame in process.frames(asked, gone.is_set, follow=True):
            connection.send(frame)
    finally:
        connection.close()
        listening.join(5)


def _frames(connection: ServerConnection) -> Iterator[Frame]:
    decoder = Decoder()
    for message in connection:
        if isinstance(message, str):
            raise InvalidArgument("a text message")
        yield from decoder.receive(message)


def _told(process: MockProcess, frame: Frame) -> None:
    match frame.kind:
        case Kind.STDIN:
            process.feed(frame.payload)
        case Kind.STDIN_END:
            process.feed(b"", close=True)
        case Kind.RESIZE:
            process.resize(**json.loads(frame.payload))
        case Kind.SIGNAL:
            process.signal(json.loads(frame.payload)["signal"])
        case kind:
            raise InvalidArgument(f"a client sends no frame of kind {kind.name}")


# -- ports ---------------------------------------------------------------------------------------------------------------


def _port(connection: ServerConnection, service: Service) -> None:
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, suppress(ConnectionError):
            service(theirs)

    def inward() -> None:
        with suppress(ConnectionClosed, OSError):
            for message in connection:
                if not message:
                    break
                ours.sendall(message if isinstance(message, bytes) else message.encode())
        with suppress(OSError):
            ours.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=target, name="mock port", daemon=True) for target in (serve, inward)]
    for thread in threads:
        thread.start()
    with ours:
        try:
            while data := ours.recv(PIECE):
                connection.send(data)
            connection.send(b"")
        except (ConnectionClosed, OSError):
            # The client has gone: who serves it is told at once.
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            raise
        threads[1].join()
