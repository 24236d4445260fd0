"""Ways around the wall that an attacker of this gateway found, each closed as a kind (docs/attacks/egress.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from pathlib import Path

import pytest
from hpack import Encoder

from space.core.policy.paths import normalise
from space.core.policy.verdict import Asked
from space.core.wire.http2frames import PREFACE
from space.gateway.outside import shown
from space.gateway.peer import HIGH_WATER, Peer
from space.gateway.surroundings import Limits
from space.testing.egressh2 import serve_h2
from space.testing.egresslab import ALLOWED, Place, get, place, reply, run

MEGABYTE = 1024 * 1024


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def never_ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echoes, whatever it is."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


async def refused(at: Place, *, path: str = "/open", fields: str = "", method: str = "POST") -> str:
    """Why a request was; empty when it was not."""
    reader, writer = await at.tls(ALLOWED)
    writer.write(get(at, path, fields + "Connection: close\r\n", method=method))
    status, body = await reply(reader)
    writer.close()
    return "" if status == 200 else str(json.loads(body)["reason"])


# -- a person is asked ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [True, False])
def test_where_a_policy_asks_an_opaque_stream_waits_for_a_person_too(tmp_path: Path, answer: bool) -> None:
    questions: list[Asked] = []

    async def ask(asked: Asked) -> bool:
        questions.append(asked)
        await asyncio.sleep(0.05)
        return answer

    async def main() -> None:
        async with place(tmp_path, ask=ask) as at:
            upstream = await at.serve(ALLOWED, never_ending, plain=True)
            at.lab.policy({"mode": "ask"})
            reader, writer = await at.raw(ALLOWED)
            writer.write(b"secret")
            if answer:
                assert await reader.readexactly(6) == b"secret"
            else:
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
            assert [(one.name, one.port, one.scheme, one.method) for one in questions] == [(ALLOWED, at.port, "tcp", "CONNECT")]
            assert upstream.connections == int(answer)
            writer.close()
            await at.empty()
            assert [end.reason for end in at.ends()] == ["" if answer else "ask_refused"]

    run(main())


@pytest.mark.parametrize("version", ["http/1.1", "h2"])
@pytest.mark.parametrize(("change", "reason"), [({"ask": True}, "policy_changed"), ({"grant": "token"}, "policy_changed")])
def test_a_request_that_waits_for_its_upstream_is_not_sent_by_a_policy_that_is_over(
    tmp_path: Path, version: str, change: dict[str, object], reason: str
) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            dial, waiting, go = at.lab.dialer, asyncio.Event(), asyncio.Event()

            async def slow(target: object, port: int) -> object:
                waiting.set()
                await go.wait()
                return await dial(target, port)  # type: ignore[arg-type]

            object.__setattr__(at.lab.around, "dial", slow)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            await waiting.wait()
            at.rules({"host": ALLOWED, **change})
            at.lab.worker.changed()
            go.set()
            said = b""
            with contextlib.suppress(ConnectionError):
                said = await asyncio.wait_for(reader.read(-1), 5)
            assert b" 200 " not in said
            writer.close()
            await at.empty()
            assert upstream.heads == []

    run(main()) if version == "http/1.1" else None


def test_nobody_is_asked_to_agree_to_what_is_not_shown_whole() -> None:
    def asked(target: str) -> str | None:
        return shown(Asked(ALLOWED, 443, "https", "GET", normalise(target.encode())))

    assert asked("/a/b?x=1&y=2&flag") == "/a/b?x&y&(no key)"
    assert asked("/" + "a" * 3000) is None
    assert asked("/a?" + "&".join(f"k{number}=1" for number in range(33))) is None
    assert asked("/a?" + "k" * 65 + "=1") is None


# -- budgets -------------------------------------------------------------------------------------------------------------


def test_a_limit_that_a_live_policy_brings_holds_for_a_stream_that_stands(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, never_ending, plain=True)

            def tcp(**more: object) -> None:
                at.lab.policy({"rule": [{"name": "stream", "tcp": f"{ALLOWED}:{at.port}", **more}]})
                at.lab.worker.changed()

            tcp()
            reader, writer = await at.raw(ALLOWED)
            writer.write(bytes(5000))
            await reader.readexactly(5000)
            tcp(sent_limit=1000)
            writer.write(bytes(900))
            await reader.readexactly(900)
            writer.write(bytes(200))
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            await at.empty()
            assert [end.reason for end in at.ends()] == ["budget_sent"]

    run(main())


def test_a_limit_that_a_live_policy_brings_holds_for_a_request_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "name": "one"})
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", "Content-Length: 100000\r\n", method="POST") + bytes(5000))
            await at.until(lambda: upstream.heads)
            at.rules({"host": ALLOWED, "name": "one", "sent_limit": 1000})
            at.lab.worker.changed()
            writer.write(bytes(2000))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 403 " in head
            writer.close()
            await at.empty()
            assert [one.reason for one in at.requests()] == ["budget_sent"]

    run(main())


# -- another method, path or credential than the one that is seen ----------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("/open", "X-HTTP-Method-Override: DELETE\r\n", "method_override"),
        ("/open", "X_HTTP_Method_Override: DELETE\r\n", "method_override"),
        ("/open", "X-HTTP_Method: DELETE\r\n", "method_override"),
        ("/open?_method=DELETE", "", "method_override"),
        ("/open?a=1&%5Fmethod=DELETE", "", "method_override"),
        ("/open?a=1&_METHOD=DELETE", "", "method_override"),
        ("/open?x-http-method-override=DELETE", "", "method_override"),
        ("/open?$httpMethod=DELETE", "", "method_override"),
        ("/open", "X-Original-URL: /admin\r\n", "path_override"),
        ("/open", "X_Original_URL: /admin\r\n", "path_override"),
        ("/open", "X-Rewrite_URL: /admin\r\n", "path_override"),
        ("/open", "X-Forwarded-Uri: /admin\r\n", "path_override"),
        ("/open", "Destination: https://allowed.example.com/admin\r\n", "path_override"),
    ],
)
def test_no_spelling_of_an_override_reaches_a_host_whose_methods_or_paths_are_judged(
    tmp_path: Path, path: str, fields: str, reason: str
) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "paths": ["/open"]})
            assert await refused(at, path=path, fields=fields) == reason
            assert upstream.heads == []
            assert await refused(at, path="/open?method=x&destination=y", fields="X-Request-Method: a\r\n") == ""
            at.rules({"host": ALLOWED})
            assert await refused(at, path=path, fields=fields) == ""

    run(main())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/open", "X_Api_Key: k\r\n"),
        ("/open", "X-Auth-Key: k\r\n"),
        ("/open", "Vendor-Access-Token: k\r\n"),
        ("/open", "Subscription-Key: k\r\n"),
        ("/open", "X-Session-Secret: k\r\n"),
        ("/open", "X-Authorization: k\r\n"),
        ("/open?access-token=k", ""),
        ("/open?client_secret=k", ""),
        ("/open?token[]=k", ""),
        ("/open?X-Api-Key=k", ""),
        ("/open?password=k", ""),
    ],
)
def test_a_credential_is_one_by_what_it_calls_itself(tmp_path: Path, path: str, fields: str) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "foreign_credentials": "refuse"})
            assert await refused(at, path=path, fields=fields) == "foreign_credentials"
            assert upstream.heads == []
            harmless = "Idempotency-Key: a\r\nX-CSRF-Token: a\r\nSurrogate-Key: a\r\nX-Cache-Key: a\r\n"
            assert await refused(at, path="/open?page_token=2&sort_key=a&keyword=b", fields=harmless) == ""

    run(main())


def test_a_host_field_that_only_a_gateway_would_believe_is_not_passed_on_in_any_spelling(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            names = ("X-Forwarded-Host", "X_Forwarded_Host", "Forwarded", "X-Host", "X_Original-Host", "X-HTTP-Host-Override")
            assert await refused(at, fields="".join(f"{name}: evil.example.com\r\n" for name in names)) == ""
            assert b"evil" not in upstream.heads[0]

    run(main())


# -- who sends and does not read -----------------------------------------------------------------------------------------


async def narrow(at: Place) -> socket.socket:
    """A connection to the allowed name whose receiver has hardly any room."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (at.lab.address(ALLOWED), at.port))
    return sock


def test_a_guest_of_http2_that_sends_refused_requests_and_reads_none_is_not_read_either(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at)
            at.rules({"host": ALLOWED, "paths": ["/yes"]})
            context = at.lab.client_context()
            context.set_alpn_protocols(["h2"])
            _, writer = await asyncio.open_connection(sock=await narrow(at), ssl=context, server_hostname=ALLOWED)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", at.host(ALLOWED)), (b":path", b"/no")]
            encoder = Encoder()
            windows = frame(4, 0, 0, b"\x00\x04\x7f\xff\xff\xff") + frame(8, 0, 0, b"\x7f\xf0\x00\x00")  # as wide as they can be
            writer.write(PREFACE + windows + frame(1, 5, 1, encoder.encode(fields)))
            block = encoder.encode(fields)  # all of it known by now

            await at.until(lambda: at.lab.worker._connections)
            (connection,) = at.lab.worker._connections
            connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

            async def send() -> None:
                for first in range(3, 10_000_000, 2000):
                    writer.write(b"".join([frame(1, 5, stream, block) for stream in range(first, first + 2000, 2)]))
                    await writer.drain()
                    await asyncio.sleep(0)

            sending = asyncio.get_running_loop().create_task(send())
            await at.until(lambda: connection._guest.full)
            taken = connection._guest.taken
            await asyncio.sleep(1)
            assert connection._guest.taken - taken <= MEGABYTE  # what one reading holds
            assert connection._guest.waiting < MEGABYTE
            sending.cancel()
            writer.transport.abort()
            await at.empty()

    run(main())


class Answering:
    """TLS whose every message makes the library answer, as key updates and attempts at renegotiation do."""

    secured, ended, protocol = True, False, None

    def __init__(self) -> None:
        self.out = ssl.MemoryBIO()

    def receive(self, data: bytes) -> bytes:
        self.out.write(data)
        return b""

    def outgoing(self) -> bytes:
        return self.out.read()


def test_who_makes_tls_answer_and_reads_no_answer_is_not_read_either() -> None:
    class Owner:
        def secured(self, peer: Peer) -> None: ...
        def received(self, peer: Peer, data: bytes) -> None: ...
        def ended(self, peer: Peer) -> None: ...
        def pressed(self, peer: Peer, full: bool) -> None: ...
        def lost(self, peer: Peer) -> None: ...
        def failed(self, peer: Peer, error: Exception) -> None:
            raise error

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        peer = Peer(Owner(), ours)
        await loop.connect_accepted_socket(lambda: peer, ours)
        peer.tls = Answering()  # type: ignore[assignment]

        async def send() -> None:
            while True:
                await loop.sock_sendall(theirs, bytes(65_536))
                await asyncio.sleep(0)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send(), 2)
        assert peer.waiting < 2 * HIGH_WATER
        got = 0
        while got < peer.taken:  # once it reads, all of it comes
            got += len(await loop.sock_recv(theirs, MEGABYTE))
        assert not peer.held
        theirs.close()
        peer.abort()

    run(main())


def test_a_question_may_wait_longer_than_a_connection_may_be_idle(tmp_path: Path) -> None:
    async def ask(_: Asked) -> bool:
        await asyncio.sleep(0.6)
        return True

    async def main() -> None:
        async with place(tmp_path, ask=ask, limits=Limits(sweep=0.05, idle=0.2)) as at:
            await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "ask": True})
            assert await refused(at) == ""

    run(main())
