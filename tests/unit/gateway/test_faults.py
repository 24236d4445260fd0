"""Whatever fails, both sides close, it is recorded, nothing is counted as open, and the next connection works."""

from __future__ import annotations

import asyncio
import logging
import socket
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from space.core.policy.verdict import Asked
from space.gateway.surroundings import Dialled, DialRefused, Leaf, Limits
from space.testing.egresslab import ALLOWED, Place, place, run


def get(at: Place, fields: bytes = b"") -> bytes:
    return b"GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at.host(ALLOWED), fields)


class Boom(Exception):
    """What is injected: nothing that anybody expects."""


class Fault:
    """Raises at its turn, once armed."""

    def __init__(self) -> None:
        self.left = -1

    def __call__(self) -> None:
        if self.left == 0:
            self.left = -1
            raise Boom
        self.left -= 1 if self.left > 0 else 0


def inject(at: Place, where: str, fault: Fault) -> None:
    """Let one of the surroundings raise."""
    around = at.lab.around

    def change(name: str, value: Any) -> None:
        object.__setattr__(around, name, value)

    real: Any = getattr(around, where)
    if where in ("leaf", "dial", "ask"):

        async def async_wrapped(*args: Any) -> Any:
            fault()
            return await real(*args)

        change(where, async_wrapped)
    elif where == "names":
        name = real.name

        def named(address: IPv4Address) -> Any:
            fault()
            return name(address)

        real.name = named
    else:

        def wrapped(*args: Any) -> Any:
            fault()
            return real(*args)

        change(where, wrapped)
        if where == "record":
            at.lab.worker.shared.recorder.note = wrapped
        if where == "clock":
            at.lab.worker.shared.clock = wrapped


async def yes(_asked: Asked) -> bool:
    return True


TURNS = [
    *[("ruling", turn) for turn in range(4)],
    *[(where, 0) for where in ("leaf", "dial", "ask", "bundle", "names")],
    *[("clock", turn) for turn in range(5)],
    *[("record", turn) for turn in range(2)],
]


@pytest.mark.parametrize(("where", "turn"), TURNS)
def test_an_exception_anywhere_around_closes_both_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, turn: int) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.5), ask=yes) as at:
            at.rules({"host": ALLOWED, "ask": True})
            await at.serve(ALLOWED)
            fault = Fault()
            inject(at, where, fault)
            fault.left = turn
            try:
                reader, writer = await at.tls(ALLOWED)
                writer.write(get(at, b"Connection: close\r\n"))
                await asyncio.wait_for(reader.read(), 10)
                writer.close()
            except (ConnectionError, OSError):
                pass
            await at.until(lambda: fault.left < 0)
            await at.empty()
            if where != "record" and (where, turn) != ("clock", 0):  # there it never became a connection
                assert at.ends()[-1].reason == "internal"
            assert "Boom" in caplog.text
            said = await at.exchange(ALLOWED, get(at, b"Connection: close\r\n"))
            assert said.startswith(b"HTTP/1.1 200 ")
            await at.empty()

    caplog.set_level(logging.ERROR)
    run(main())


@pytest.mark.parametrize("method", ["judge", "request_bytes", "reply_bytes", "framed", "switched_bytes"])
def test_an_exception_within_closes_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def boom(*_args: Any, **_kwargs: Any) -> None:
        raise Boom

    async def switching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = b"101 Switching Protocols" if method == "switched_bytes" else b"200 OK\r\nContent-Length: 2"
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\nok")
        await reader.read()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, switching)
            with monkeypatch.context() as patch:
                patch.setattr(f"space.gateway.http.{method}", boom)
                reader, writer = await at.tls(ALLOWED)
                writer.write(get(at))
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
                writer.close()
                await at.empty()
            assert at.ends()[-1].reason == "internal"

    run(main())


@pytest.mark.parametrize("where", ["leaf", "dial", "ask", "upstream handshake"])
def test_a_guest_that_goes_while_something_is_awaited_leaves_nothing(tmp_path: Path, where: str) -> None:
    async def main() -> None:
        cancelled = asyncio.Event()

        async def forever(*_args: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async def mute(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await reader.read()
            cancelled.set()

        changes: dict[str, Any] = {} if where == "upstream handshake" else {where: forever}
        async with place(tmp_path, **changes) as at:
            await at.serve(ALLOWED, mute, plain=True)
            at.rules({"host": ALLOWED, "ask": where == "ask"})
            if where == "leaf":
                _, writer = await at.raw(ALLOWED)
                opening = asyncio.ensure_future(at.tls(ALLOWED))
                await asyncio.sleep(0.2)
                opening.cancel()
            else:
                _, writer = await at.tls(ALLOWED)
                writer.write(get(at))
                await asyncio.sleep(0.2)
            writer.transport.abort()
            if where != "leaf":  # there the guest is not read; its handshake has a deadline
                await asyncio.wait_for(cancelled.wait(), 5)
                await at.empty()

    run(main())


def test_a_dial_that_never_ends_ends_with_an_answer(tmp_path: Path) -> None:
    async def forever(_name: object, _port: int) -> Dialled | DialRefused:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, dial=0.2), dial=forever) as at:
            said = await at.exchange(ALLOWED, get(at, b"Connection: close\r\n"))
            assert said.startswith(b"HTTP/1.1 504 ")
            await at.empty()

    run(main())


def test_a_leaf_that_is_none_and_a_dialled_socket_that_is_closed_close(tmp_path: Path) -> None:
    async def rubbish(_name: str) -> Leaf:
        return Leaf(b"no chain", b"no key")

    async def closed(_name: object, _port: int) -> Dialled | DialRefused:
        sock = socket.socket()
        sock.setblocking(False)
        sock.close()
        return Dialled(sock, "nowhere")

    async def main() -> None:
        async with place(tmp_path, leaf=rubbish) as at:
            reader, writer = await at.raw(ALLOWED)
            with pytest.raises((ConnectionError, OSError)):
                await writer.start_tls(at.lab.client_context(), server_hostname=ALLOWED)
            await at.empty()
        async with place(tmp_path, dial=closed) as at:
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, b"Connection: close\r\n"))
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 502 ")
            await at.empty()

    run(main())


def test_an_accepted_socket_that_is_closed_is_no_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            sock = socket.socket()
            sock.setblocking(False)
            sock.bind(("127.100.0.1", 0))
            await at.lab.worker.accept(sock)  # not connected at all, to an address that nobody was given
            await at.empty()
            closed = socket.socket()
            closed.close()
            with pytest.raises(OSError):
                closed.getsockname()
            await at.lab.worker.accept(closed)
            await at.empty()

    run(main())


def test_half_open_guests_are_gone_after_their_idle_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, idle=0.3)) as at:
            await at.serve(ALLOWED)
            kept = []
            for _ in range(20):
                reader, writer = await at.tls(ALLOWED)
                writer.write(get(at))
                await reader.readuntil(b"\r\n\r\n")
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                kept.append(writer)
            await at.empty()
            assert {end.reason for end in at.ends()} == {"idle"}

    run(main())


def test_denials_are_told_together_in_a_flood(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, denials_burst=5, denials_rate=0.001)) as at:
            at.rules({"host": ALLOWED, "paths": ["/yes"]})
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at) * 100)
            for _ in range(100):
                await reader.readuntil(b"}")
            writer.close()
            await at.empty()
            await at.until(lambda: sum(getattr(record, "count", 0) for record in at.lab.records) == 95)
            assert len(at.requests()) == 5

    run(main())


def test_stopping_closes_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            streams = [await at.tls(ALLOWED) for _ in range(10)]
            for reader, writer in streams:
                writer.write(get(at))
                await reader.readuntil(b"\r\n\r\n")
            at.lab.worker.close()
            await at.empty()
            assert {end.reason for end in at.ends()} == {"stopped"}

    run(main())


def test_a_worker_that_was_stopped_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            at.lab.worker.close()
            with pytest.raises(ConnectionResetError):
                await (await at.raw(ALLOWED))[0].readexactly(1)
            await at.empty()

    run(main())
