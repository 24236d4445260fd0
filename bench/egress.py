"""What the egress gateway costs: requests on kept connections a CPU second of its process alone, with TLS on both sides.

    python bench/egress.py [seconds] [h2]

h2: over HTTP/2, each client with eight streams at once. Clients and upstream are processes of their own; a rule with methods and paths
judges each request, and each is recorded (in memory).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import ssl
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import cast

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RequestReceived, ResponseReceived, StreamEnded

from space.gateway.records import Requested
from space.gateway.surroundings import Ruling
from space.testing.egress import Lab, stack_of

NAME = "allowed.example.com"
BODY = b"x" * 1024
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
CLIENTS = 32
STREAMS = 8
WARM = 1.5  # seconds for all of them to connect


class Upstream(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        *heads, self._data = (self._data + data).split(b"\r\n\r\n")
        for _ in heads:
            self._transport.write(REPLY)


class Client(asyncio.Protocol):
    def __init__(self, port: int, until: float) -> None:
        head = f"GET /simple/package/ HTTP/1.1\r\nHost: {NAME}:{port}\r\nUser-Agent: bench\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n"
        self._head = head.encode()
        self._until = until
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._got.endswith(BODY):
            return
        assert self._got.startswith(b"HTTP/1.1 200 ")
        self._got = b""
        if time.monotonic() < self._until:
            self._transport.write(self._head)
        else:
            self._transport.close()


class H2Side(asyncio.Protocol):
    """One end of an HTTP/2 connection."""

    def __init__(self, *, client: bool) -> None:
        self._h2 = H2Connection(H2Configuration(client_side=client, header_encoding=None, validate_outbound_headers=False))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(2**30)
        self.begin()
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            self.saw(event)
        self._transport.write(self._h2.data_to_send())

    def begin(self) -> None:
        pass

    def saw(self, event: Event) -> None:
        raise NotImplementedError


class H2Upstream(H2Side):
    def __init__(self) -> None:
        super().__init__(client=False)

    def saw(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            fields = [(":status", "200"), ("content-type", "text/plain"), ("content-length", str(len(BODY)))]
            self._h2.send_headers(event.stream_id, fields)
            self._h2.send_data(event.stream_id, BODY, end_stream=True)


class H2Client(H2Side):
    def __init__(self, port: int, until: float) -> None:
        super().__init__(client=True)
        self._fields = [(":method", "GET"), (":scheme", "https"), (":authority", f"{NAME}:{port}"), (":path", "/simple/package/")]
        self._fields += [("user-agent", "bench"), ("accept", "*/*"), ("accept-encoding", "gzip")]
        self._until = until

    def begin(self) -> None:
        for _ in range(STREAMS):
            self._ask()

    def _ask(self) -> None:
        self._h2.send_headers(self._h2.get_next_available_stream_id(), self._fields, end_stream=True)

    def saw(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            assert (b":status", b"200") in event.headers
        elif isinstance(event, StreamEnded) and time.monotonic() < self._until:
            self._ask()


def upstream(pem: str, pipe: Connection, h2: bool) -> None:
    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        context.set_alpn_protocols(["h2"] if h2 else ["http/1.1"])
        server = await asyncio.get_running_loop().create_server(H2Upstream if h2 else Upstream, "127.0.0.1", 0, ssl=context)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


def clients(root: str, address: str, port: int, seconds: float, h2: bool) -> None:
    async def main() -> None:
        context = ssl.create_default_context(cadata=root)
        context.set_alpn_protocols(["h2"] if h2 else ["http/1.1"])
        until = time.monotonic() + seconds
        for _ in range(CLIENTS):
            await asyncio.get_running_loop().create_connection(
                lambda: (H2Client if h2 else Client)(port, until), address, port, ssl=context, server_hostname=NAME
            )
        await asyncio.sleep(seconds)

    uvloop.run(main())


def used() -> float:
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime


async def main(seconds: float, *, h2: bool) -> None:
    lab = Lab(Ruling(1, stack_of()))
    port = lab.listen()
    lab.policy({"rule": [{"host": NAME, "port": port, "methods": ["GET", "HEAD"], "paths": ["/simple/**"]}]})
    spawn = multiprocessing.get_context("spawn")
    leaf = lab.signer.make(NAME)
    with tempfile.NamedTemporaryFile() as file:
        file.write(leaf.chain + leaf.key)
        file.flush()
        mine, theirs = spawn.Pipe()
        server = spawn.Process(target=upstream, args=(file.name, theirs, h2), daemon=True)
        server.start()
        lab.dialer.places[NAME, port] = ("127.0.0.1", mine.recv())
    load = spawn.Process(target=clients, args=(lab.signer.pem, lab.address(NAME), port, seconds + 2 * WARM, h2), daemon=True)
    load.start()
    await asyncio.sleep(WARM)
    cpu, begun = used(), len(lab.records)
    await asyncio.sleep(seconds)
    cpu, ended = used() - cpu, len(lab.records)
    records = lab.records[begun:ended]
    assert all(isinstance(record, Requested) and record.status == 200 for record in records)
    print(f"{len(records)} requests in {cpu:.2f} CPU s: {len(records) / cpu:.0f} a CPU second (load {os.getloadavg()[0]:.1f})")
    for process in (load, server):
        process.terminate()
        process.join()
    await lab.close()


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[1:] if word != "h2"]
    uvloop.run(main(numbers[0] if numbers else 5.0, h2="h2" in sys.argv))
