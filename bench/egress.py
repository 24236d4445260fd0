"""What the egress gateway costs: requests on kept connections a CPU second of its process alone, with TLS on both sides.

    python bench/egress.py [seconds]

Clients and upstream are processes of their own; a rule with methods and paths judges each request, and each is recorded (in memory).
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

from space.gateway.records import Requested
from space.gateway.surroundings import Ruling
from space.testing.egress import Lab, stack_of

NAME = "allowed.example.com"
BODY = b"x" * 1024
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
CLIENTS = 32
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


def upstream(pem: str, pipe: Connection) -> None:
    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0, ssl=context)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


def clients(root: str, address: str, port: int, seconds: float) -> None:
    async def main() -> None:
        context = ssl.create_default_context(cadata=root)
        until = time.monotonic() + seconds
        for _ in range(CLIENTS):
            await asyncio.get_running_loop().create_connection(
                lambda: Client(port, until), address, port, ssl=context, server_hostname=NAME
            )
        await asyncio.sleep(seconds)

    uvloop.run(main())


def used() -> float:
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime


async def main(seconds: float) -> None:
    lab = Lab(Ruling(1, stack_of()))
    port = lab.listen()
    lab.policy({"rule": [{"host": NAME, "port": port, "methods": ["GET", "HEAD"], "paths": ["/simple/**"]}]})
    spawn = multiprocessing.get_context("spawn")
    leaf = lab.signer.make(NAME)
    with tempfile.NamedTemporaryFile() as file:
        file.write(leaf.chain + leaf.key)
        file.flush()
        mine, theirs = spawn.Pipe()
        server = spawn.Process(target=upstream, args=(file.name, theirs), daemon=True)
        server.start()
        lab.dialer.places[NAME, port] = ("127.0.0.1", mine.recv())
    load = spawn.Process(target=clients, args=(lab.signer.pem, lab.address(NAME), port, seconds + 2 * WARM), daemon=True)
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
    uvloop.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0))
