"""ClientHellos of a real TLS library however they are cut, and of nobody honest."""

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.wire.clienthello import MOST_BYTES, TLS12, TLS13, BadHello, ClientHello, HelloReader


def real(
    name: str | None = "www.example.com", alpn: tuple[str, ...] = ("h2", "http/1.1"), most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, most
    if alpn:
        context.set_alpn_protocols(list(alpn))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def plain(name: str | None, alpn: tuple[bytes, ...], *versions: int) -> ClientHello:
    return ClientHello(name, alpn, frozenset(versions), ech=False, resumes=False, early_data=False)


def read(data: bytes) -> ClientHello:
    hello = HelloReader().receive(data)
    assert hello is not None
    return hello


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack("!H", kind) + vector(2, data)


def name_extension(*names: bytes, kind: int = 0) -> bytes:
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def body(
    extensions: bytes | None = name_extension(b"a.example"), session: bytes = b"", suites: bytes = b"\x13\x01", version: int = TLS12
) -> bytes:
    made = struct.pack("!H", version) + bytes(32) + vector(1, session) + vector(2, suites) + vector(1, b"\0")
    return made if extensions is None else made + vector(2, extensions)


def message(content: bytes, kind: int = 1) -> bytes:
    return bytes([kind]) + vector(3, content)


def records(content: bytes, size: int = 16_384, kind: int = 22, version: int = 0x0301) -> bytes:
    return b"".join(struct.pack("!BH", kind, version) + vector(2, content[at : at + size]) for at in range(0, len(content), size))


def test_a_hello_of_a_real_library_is_understood() -> None:
    hello = read(real())
    assert hello == plain("www.example.com", (b"h2", b"http/1.1"), TLS12, TLS13)
    old = read(real(None, (), ssl.TLSVersion.TLSv1_2))
    assert (old.server_name, old.alpn, TLS13 in old.versions) == (None, (), False)


def test_a_hello_cut_at_every_byte_says_the_same() -> None:
    whole = real()
    expected = read(whole)
    for at in range(1, len(whole)):
        reader = HelloReader()
        assert reader.receive(whole[:at]) is None
        assert reader.receive(whole[at:]) == expected
    reader = HelloReader()
    found = [reader.receive(whole[at : at + 1]) for at in range(len(whole))]
    assert found[:-1] == [None] * (len(whole) - 1)
    assert found[-1] == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 60, 300])
def test_a_hello_in_many_records_says_the_same(size: int) -> None:
    content = message(body(name_extension(b"a.example") + extension(51, bytes(5000))))
    reader = HelloReader()
    assert reader.receive(records(content, max(size, 5 * len(content) // MOST_BYTES + 1))) == read(records(content))


def test_a_hello_cut_short_anywhere_is_never_a_hello() -> None:
    whole = real()
    for at in range(len(whole)):
        assert HelloReader().receive(whole[:at]) is None


REFUSED = {
    "plain HTTP": (b"GET / HTTP/1.1\r\n", "not_tls"),
    "one byte of something else": (b"\x16\x02", "not_tls"),
    "SSL 2": (b"\x80\x2e\x01\x03\x01", "not_tls"),
    "an alert": (records(b"\x01\x00", kind=21), "not_tls"),
    "an empty record": (b"\x16\x03\x01\x00\x00", "record"),
    "a record over its limit": (b"\x16\x03\x01\x40\x01", "record"),
    "application data between": (records(message(body())[:10]) + records(b"x", kind=23), "record"),
    "a server's hello": (records(message(body(), kind=2)), "not_hello"),
    "a hello that claims too much": (records(b"\x01\x02\x00\x00"), "too_large"),
    "bytes behind the hello": (records(message(body()) + b"\0"), "length"),
    "a record behind the hello": (records(message(body())) + records(b"x"), "length"),
    "half a cipher suite": (records(message(body(suites=b"\x13\x01\x13"))), "length"),
    "no cipher suite": (records(message(body(suites=b""))), "length"),
    "a session id over 32": (records(message(body(session=bytes(33)))), "length"),
    "extensions that end early": (records(message(body(None) + b"\0\x09" + name_extension(b"a"))), "length"),
    "bytes after the extensions": (records(message(body() + b"\0")), "length"),
    "an extension twice": (records(message(body(name_extension(b"a.example") + name_extension(b"b.example")))), "twice"),
    "two names": (records(message(body(name_extension(b"a.example", b"b.example")))), "server_name"),
    "a name of another kind": (records(message(body(name_extension(b"a.example", kind=1)))), "server_name"),
    "an empty name": (records(message(body(name_extension(b"")))), "length"),
    "no name in the list": (records(message(body(extension(0, b"\0\0")))), "length"),
    "bytes after the name list": (records(message(body(extension(0, vector(2, b"\0" + vector(2, b"a")) + b"\0")))), "length"),
    "a name that is not ASCII": (records(message(body(name_extension("bücher".encode())))), "server_name"),
    "an empty protocol": (records(message(body(extension(16, vector(2, b"\0\0"))))), "length"),
    "a protocol twice": (records(message(body(extension(16, vector(2, b"\2h2\2h2"))))), "alpn"),
    "half a version": (records(message(body(extension(43, vector(1, b"\3\4\3"))))), "versions"),
    "an extension behind the pre-shared keys": (records(message(body(extension(41, b"x") + name_extension(b"a")))), "length"),
}


@pytest.mark.parametrize(("data", "fault"), REFUSED.values(), ids=REFUSED.keys())
def test_what_nobody_honest_sends_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(BadHello) as caught:
        HelloReader().receive(data)
    assert caught.value.fault == fault


def test_a_hello_without_end_is_refused_at_its_limit() -> None:
    reader = HelloReader()
    endless = records(message(bytes(60_000))[:-1], 1)
    with pytest.raises(BadHello, match="more than"):
        reader.receive(endless)


def test_earlier_sessions_and_early_data_are_told() -> None:
    assert read(records(message(body(extension(41, b"x"))))).resumes
    assert read(records(message(body(extension(35, b"ticket"))))).resumes
    assert not read(records(message(body(extension(35, b""))))).resumes
    assert read(records(message(body(session=bytes(32))))).resumes
    assert not read(records(message(body(extension(43, vector(1, b"\3\4")), session=bytes(32))))).resumes
    assert read(records(message(body(extension(42, b""))))).early_data
    assert read(records(message(body(extension(0xFE0D, b"x"))))).ech


def test_a_hello_without_extensions_names_nobody() -> None:
    assert read(records(message(body(None, version=0x0301)))) == plain(None, (), 0x0301)


@settings(max_examples=300)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_hello_or_refused_and_nothing_else(data: bytes, framed: bool) -> None:
    try:
        HelloReader().receive(records(message(data)) if framed and data else data)
    except BadHello:
        return


@settings(max_examples=300)
@given(st.data())
def test_a_hello_with_bytes_changed_is_a_hello_or_refused(data: st.DataObject) -> None:
    raw = bytearray(GOLDEN)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        HelloReader().receive(bytes(raw))
    except BadHello:
        return


GOLDEN = real()
