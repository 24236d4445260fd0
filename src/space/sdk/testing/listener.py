"""The mock server on a loopback port: for programs that are processes of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx

from space.sdk.testing.sockets import speak

if TYPE_CHECKING:
    from space.sdk.testing.server import MockServer

_MAX_HEAD = 65536


def listener(mock: MockServer) -> ThreadingHTTPServer:
    """A server that is to be run."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = self.headers.get("content-length")
            body = self.rfile.read(int(length)) if length is not None else b"".join(self._chunks())
            request = httpx.Request(self.command, mock.url + self.path, headers=list(self.headers.items()), content=body)
            response = mock.handle(request)
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                if name not in ("content-length", "transfer-encoding"):
                    self.send_header(name, value)
            if response.status_code == 204:
                self.end_headers()
                return
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            assert isinstance(response.stream, httpx.SyncByteStream)
            try:
                for piece in response.stream:
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except (OSError, httpx.ReadError):
                response.stream.close()
                self.close_connection = True

        def _chunks(self) -> Iterator[bytes]:
            if self.headers.get("transfer-encoding") != "chunked":
                return
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815  # the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Tests print what they want to see."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def finish_request(self, request: Any, client_address: Any) -> None:
            if _asks_for_socket(request):
                speak(mock, request)
            else:
                super().finish_request(request, client_address)

    return Server(("127.0.0.1", 0), Handler)


def _asks_for_socket(connection: socket.socket) -> bool:
    """Whether the first request of a connection asks for a WebSocket; its bytes are left where they are."""
    head, before = b"", -1
    while b"\r\n\r\n" not in head and before < len(head) < _MAX_HEAD:
        before = len(head)
        head = connection.recv(_MAX_HEAD, socket.MSG_PEEK)
    return b"upgrade: websocket" in head.partition(b"\r\n\r\n")[0].lower()
