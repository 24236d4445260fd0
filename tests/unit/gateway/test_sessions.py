"""What resumes with an upstream: a session of exactly that name, port, authorities and policy, never past its certificate or its time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway.sessions import Sessions, seconds_of
from space.gateway.tls import Tls, upstream_context
from space.testing.egress import Signer
from space.testing.egresslab import ALLOWED, OTHER, get, place, run

A, B = "a.example.com", "b.example.com"


@dataclass
class Server:
    """A real one in a thread, for two names; resumed: of each connection, in order."""

    port: int
    resumed: list[bool]


@pytest.fixture(params=["TLSv1_3", "TLSv1_2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, str]]:
    signer = Signer()
    leaf = signer.make(A)
    file = tmp_path / "leaf.pem"
    file.write_bytes(leaf.chain + leaf.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[request.param]
    listener = socket.create_server(("127.0.0.1", 0))
    made = Server(listener.getsockname()[1], [])

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as over:
                made.resumed.append(bool(over.session_reused))
                over.sendall(b"hello")
                over.recv(1)

    thread = Thread(target=serve, daemon=True)
    thread.start()
    yield made, signer.root.pem.decode()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def connect(server: Server, context: ssl.SSLContext, sessions: Sessions, generation: int = 1, name: str = A, port: int = 443) -> None:
    key = (name, port, context)
    tls = Tls(
        context,
        server_side=False,
        name=A,  # whatever the key says: only what is offered is looked at
        session=sessions.find(key, generation),
        learn=lambda over: sessions.learn(key, generation, over),
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(tls.start())
        said = b""
        while said != b"hello":
            data = sock.recv(65_536)
            assert data
            said += tls.receive(data)
            sock.sendall(tls.outgoing())
        tls.over()
        sock.sendall(tls.close())


def test_the_same_resumes_and_nothing_else_does(server: tuple[Server, str]) -> None:
    at, roots = server
    now = [0.0]
    sessions = Sessions(8, 600.0, lambda: now[0])
    context, other = upstream_context(roots), upstream_context(roots)
    connect(at, context, sessions)
    connect(at, context, sessions)
    assert at.resumed == [False, True]
    for changed in ({"name": B}, {"port": 8443}, {"context": other}):
        connect(at, **{"context": context, **changed}, sessions=sessions)  # type: ignore[arg-type]
    assert at.resumed[2:] == [False, False, False]
    connect(at, context, sessions, generation=2)
    assert at.resumed[5] is False
    connect(at, context, sessions, generation=2)
    assert at.resumed[6] is True
    connect(at, context, sessions, generation=1)  # one that was judged by the policy before
    assert at.resumed[7] is False


def test_a_session_is_used_for_its_time_since_the_handshake_that_verified(server: tuple[Server, str]) -> None:
    at, roots = server
    now = [0.0]
    sessions, context = Sessions(8, 600.0, lambda: now[0]), upstream_context(roots)
    for second in (0.0, 300.0, 599.0, 601.0):  # being used does not make it last longer
        now[0] = second
        connect(at, context, sessions)
    assert at.resumed == [False, True, True, False]


def test_no_session_outlives_its_certificate(server: tuple[Server, str]) -> None:
    at, roots = server
    now = [0.0]
    sessions, context = Sessions(8, 600.0, lambda: now[0], lambda: time.time() + 10 * 365 * 86_400), upstream_context(roots)
    connect(at, context, sessions)
    connect(at, context, sessions)
    assert at.resumed == [False, False]


def test_so_many_are_kept_and_the_least_used_goes(server: tuple[Server, str]) -> None:
    at, roots = server
    sessions, context = Sessions(2, 600.0, lambda: 0.0), upstream_context(roots)
    for port in (1, 2, 1, 3, 1, 2):
        connect(at, context, sessions, port=port)
    assert at.resumed == [False, False, True, False, True, False]
    assert len(sessions) == 2


@given(st.integers(0, 253_402_300_799))
def test_a_certificates_time_is_read_as_the_library_does(second: int) -> None:
    text = time.strftime("%b %e %H:%M:%S %Y GMT", time.gmtime(second))
    assert seconds_of(text) == ssl.cert_time_to_seconds(text) == second


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.sampled_from([443, 8443]), st.integers(0, 1), st.integers(1, 2), st.floats(0, 700)),
        max_size=30,
    )
)
def test_what_is_found_was_learnt_under_the_same_key_generation_and_time(steps: list[tuple[str, int, int, int, float]]) -> None:
    contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2)]
    now = [0.0]
    sessions = Sessions(4, 600.0, lambda: now[0], lambda: 0.0)

    class Over:
        session_reused = False

        def __init__(self, said: tuple[str, int, int, int, float]) -> None:
            self.session = type("Session", (), {"has_ticket": True, "id": b"", "timeout": 7200, "said": said})()

        def getpeercert(self) -> dict[str, str]:
            return {"notAfter": "Jan  1 00:00:00 2030 GMT"}

    for name, port, which, generation, later in steps:
        now[0] += later
        key = (name, port, contexts[which])
        found = sessions.find(key, generation)
        if found is not None:
            said = found.said  # type: ignore[attr-defined]
            assert said[:4] == (name, port, which, generation)
            assert now[0] - said[4] < 600
        sessions.learn(key, generation, Over((name, port, which, generation, now[0])))  # type: ignore[arg-type]


def test_a_workers_new_connections_resume_by_name_and_only_under_one_policy(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            other = await at.serve(OTHER)
            for _ in range(3):
                assert (await at.exchange(ALLOWED, get(at, fields="connection: close\r\n"))).startswith(b"HTTP/1.1 200 ")
                await at.empty()
            assert (await at.exchange(OTHER, get(at, name=OTHER, fields="connection: close\r\n"))).startswith(b"HTTP/1.1 200 ")
            assert upstream.resumed == [False, True, True]
            assert other.resumed == [False]

    run(main())
