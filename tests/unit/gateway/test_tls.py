"""TLS both ways: one name, no resumption, no old versions; upstreams whose certificate is not theirs are nobody."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from space.gateway.tls import Tls, guest_context, upstream_context
from space.testing.egress import Signer
from space.testing.egresslab import ALLOWED, OTHER, Place, place, run


def get(at: Place, name: str = ALLOWED) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % at.host(name)


class Client:
    """A TLS client by hand, for what high-level ones do not do: offer a session, split the hello, choose versions."""

    def __init__(self, context: ssl.SSLContext, name: str | None, session: ssl.SSLSession | None = None) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=name, session=session)

    def hello(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._out.read()

    async def handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                writer.write(self._out.read())
                data = await reader.read(65_536)
                if not data:
                    raise ConnectionResetError from None
                self._in.write(data)
                continue
            writer.write(self._out.read())
            return

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        self.tls.write(data)
        writer.write(self._out.read())
        while True:
            try:
                return self.tls.read(65_536)
            except ssl.SSLWantReadError:
                self._in.write(await reader.read(65_536))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_resumes_neither_under_its_own_name_nor_another(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            await at.serve(OTHER)
            context = at.lab.client_context(maximum_version=version, minimum_version=version)
            first = Client(context, ALLOWED)
            reader, writer = await at.raw(ALLOWED)
            await first.handshake(reader, writer)
            assert (await first.ask(reader, writer, get(at))).startswith(b"HTTP/1.1 200 ")
            session = first.tls.session
            writer.close()
            if version == ssl.TLSVersion.TLSv1_3:
                assert session is None or not session.has_ticket
            for name in (ALLOWED, OTHER):
                again = Client(context, name, session)
                reader, writer = await at.raw(name)
                await again.handshake(reader, writer)
                assert not again.tls.session_reused
                certificate = again.tls.getpeercert()
                assert certificate is not None
                assert certificate["subjectAltName"] == (("DNS", name),)
                writer.close()
            await at.empty()

    run(main())


def test_a_session_that_the_gateway_would_know_can_resume_elsewhere() -> None:
    """The test above can fail: with an ordinary context the same client does resume."""
    signer = Signer()
    server = guest_context(signer.make(ALLOWED), tls13=False)
    server.options &= ~ssl.OP_NO_TICKET
    client = ssl.create_default_context(cadata=signer.pem)
    session = None
    reused = []
    for _ in range(2):
        one, other = Client(client, ALLOWED, session), Tls(server, server_side=True)
        data = one.hello()
        while not other.secured:
            other.receive(data)
            one._in.write(other.outgoing())
            data = one.hello()
        session = one.tls.session
        reused.append(one.tls.session_reused)
    assert reused == [False, True]


def test_a_hello_of_one_byte_at_a_time_is_a_hello(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            client = Client(at.lab.client_context(), ALLOWED)
            reader, writer = await at.raw(ALLOWED)
            for byte in client.hello():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            client._in.write(await reader.read(65_536))
            await client.handshake(reader, writer)
            assert (await client.ask(reader, writer, get(at))).startswith(b"HTTP/1.1 200 ")
            writer.close()
            await at.empty()

    run(main())


def test_without_a_name_without_a_version_without_http_there_is_no_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            nameless = at.lab.client_context(check_hostname=False)
            old = at.lab.client_context(minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
            old.set_ciphers("ALL:@SECLEVEL=0")
            h2 = at.lab.client_context()
            h2.set_alpn_protocols(["spdy/3"])
            for context, name in ((nameless, None), (nameless, "127.0.0.1"), (old, ALLOWED), (h2, ALLOWED)):
                reader, writer = await at.raw(ALLOWED)
                with pytest.raises(ssl.SSLError):
                    await Client(context, name).handshake(reader, writer)
                writer.close()
            await at.empty()
            assert [end.reason for end in at.ends()] == ["sni_missing", "sni_missing", "tls_version", "alpn"]
            assert at.lab.signer.minted == []

    run(main())


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x40\x01", b"\x80\x2e\x01\x03\x01", bytes(300), b"SSH-2.0-x\r\n"]
)
def test_what_is_no_hello_on_a_tls_port_closes(tmp_path: Path, data: bytes) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            assert not (await at.exchange(ALLOWED, data, plain=True)).startswith(b"HTTP")
            await at.empty()
            assert [end.reason[:6] for end in at.ends()] == ["hello_"]

    run(main())


def test_rubbish_after_the_hello_closes(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            for rubbish in (bytes(100), b"\x17\x03\x03\x00\x02ab"):
                client = Client(at.lab.client_context(), ALLOWED)
                reader, writer = await at.raw(ALLOWED)
                writer.write(client.hello())
                await reader.read(10)
                writer.write(rubbish)
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(), 5)
                writer.close()
            await at.empty()
            assert {end.reason for end in at.ends()} == {"handshake_failed"}

    run(main())


def test_a_context_is_made_once_for_a_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            for _ in range(5):
                assert (await at.exchange(ALLOWED, get(at))).startswith(b"HTTP/1.1 200 ")
            assert at.lab.signer.minted == [ALLOWED]
            await at.empty()

    run(main())


@pytest.mark.parametrize("kind", ["wrong name", "expired", "self-signed"])
def test_an_upstream_whose_certificate_is_not_its_own_gets_no_request(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            signer = at.lab.signer
            leaf = {
                "wrong name": lambda: signer.make(OTHER),
                "expired": lambda: signer.expired(ALLOWED),
                "self-signed": lambda: Signer().make(ALLOWED),
            }[kind]()
            upstream = await at.serve(ALLOWED, leaf=leaf)
            said = await at.exchange(ALLOWED, get(at))
            assert said.startswith(b"HTTP/1.1 502 ")
            assert b"upstream_certificate" in said
            await at.empty()
            assert upstream.seen == b""

    run(main())


def test_an_upstream_that_speaks_no_tls_or_cuts_the_handshake_gets_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED, plain=True)

            async def cutting(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
                return

            await at.serve(OTHER, cutting, plain=True)
            for name in (ALLOWED, OTHER):
                reader, writer = await at.tls(name)
                writer.write(get(at, name))
                if name == ALLOWED:  # it waits for a head, and gets a hello, which has no end
                    await at.until(lambda: upstream.connections)
                    writer.transport.abort()
                    await at.empty()
                    continue
                assert b"upstream_handshake" in await reader.read()
                writer.close()
            await at.until(lambda: not len(at.lab.worker))
            assert b"GET" not in upstream.seen

    run(main())


def test_a_name_is_verified_and_never_the_address_or_the_common_name() -> None:
    context = upstream_context(Signer().pem)
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert not context.hostname_checks_common_name
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
