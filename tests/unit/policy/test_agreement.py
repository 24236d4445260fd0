"""The two published ways out, and their relatives: another name in the handshake or the request than the address stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.agreement import STATUS, Flow, of_authority, of_hello, of_request
from space.core.policy.paths import Path
from space.core.wire.clienthello import TLS12, TLS13, ClientHello
from space.core.wire.http1 import HeadReader, RequestHead

FLOW = Flow("www.example.com", 443, secure=True)
PLAIN = Flow("www.example.com", 80, secure=False)


def hello(name: str | None, *versions: int) -> ClientHello:
    return ClientHello(name, (), frozenset(versions or (TLS12, TLS13)), ech=False, resumes=False, early_data=False)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (hello("www.example.com"), None),
        (hello("WWW.EXAMPLE.COM."), None),
        (hello("www.example.com", TLS12), None),
        (hello(None), "sni_missing"),
        (hello("www.example.org"), "sni_mismatch"),
        (hello("a.www.example.com"), "sni_mismatch"),
        (hello("example.com"), "sni_mismatch"),
        (hello("198.18.0.1"), "sni_invalid"),
        (hello("www.example.com\0.example.org"), "sni_invalid"),
        (hello("*.example.com"), "sni_invalid"),
        (hello("www.example.com", 0x0302), "tls_version"),
        (hello("www.example.com", 0x7F1C), "tls_version"),
    ],
)
def test_a_handshake_is_for_the_name_of_the_address(found: ClientHello, wrong: str | None) -> None:
    assert of_hello(FLOW, found) == wrong


@pytest.mark.parametrize(
    ("authority", "wrong"),
    [
        (b"www.example.com", None),
        (b"WWW.example.com.", None),
        (b"www.example.com:443", None),
        (b"www.example.com:0443", None),
        (b"www.example.com:80", "authority_port"),
        (b"www.example.com:8443", "authority_port"),
        (b"www.example.com:", "authority_invalid"),
        (b"www.example.com:443:443", "authority_invalid"),
        (b"www.example.com:+443", "authority_invalid"),
        (b"www.example.com:\xd9\xa4", "authority_invalid"),
        (b"user@www.example.com", "authority_invalid"),
        (b"www.example.com@evil.example", "authority_invalid"),
        (b"www.example.com,evil.example", "authority_invalid"),
        (b"www.example.com evil.example", "authority_invalid"),
        (b"www.example.com/", "authority_invalid"),
        (b"www%2eexample.com", "authority_invalid"),
        (b"[::1]", "authority_invalid"),
        (b"198.18.0.1", "authority_invalid"),
        (b"", "authority_invalid"),
        ("www.example.com\u3002".encode(), "authority_invalid"),
        (b"blocked.example.com", "authority_mismatch"),
        (b"example.com", "authority_mismatch"),
    ],
)
def test_an_authority_is_the_name_of_the_address(authority: bytes, wrong: str | None) -> None:
    assert of_authority(FLOW, authority) == wrong


def request(target: bytes, host: bytes = b"www.example.com") -> RequestHead:
    head = HeadReader(RequestHead.parse).receive(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert head is not None
    return head


@pytest.mark.parametrize(
    ("flow", "target", "said"),
    [
        (FLOW, b"/a", Path("/a", None, ("/a",))),
        (FLOW, b"https://www.example.com/a", "target_form"),
        (FLOW, b"*", "target_form"),
        (FLOW, b"www.example.com:443", "target_form"),
        (FLOW, b"/a/%2e%2e/%2e%2e/b", "path_invalid"),
        (PLAIN, b"http://www.example.com/a?b", Path("/a", "b", ("/a",))),
        (PLAIN, b"HTTP://www.example.com:80?b", Path("/", "b", ("/",))),
        (PLAIN, b"http://blocked.example.com/a", "target_authority"),
        (PLAIN, b"http://www.example.com:8080/a", "target_authority"),
        (PLAIN, b"http://user@www.example.com/a", "target_authority"),
        (PLAIN, b"http://www.example.com\\@evil.example/a", "target_authority"),
        (PLAIN, b"https://www.example.com/a", "target_form"),
        (PLAIN, b"ftp://www.example.com/a", "target_form"),
        (PLAIN, b"//evil.example/a", Path("//evil.example/a", None, ("//evil.example/a", "/evil.example/a"))),
    ],
)
def test_a_target_says_no_other_name(flow: Flow, target: bytes, said: object) -> None:
    assert of_request(flow, request(target)) == said


def test_another_host_field_is_misdirected() -> None:
    found = of_request(FLOW, request(b"/", b"blocked.example.com"))
    assert found == "authority_mismatch"
    assert STATUS[found] == 421


@given(st.binary(max_size=40))
def test_no_bytes_are_the_authority_but_spellings_of_the_name(authority: bytes) -> None:
    if of_authority(FLOW, authority) is None:
        name, _, port = authority.lower().partition(b":")
        assert name.removesuffix(b".") == b"www.example.com"
        assert int(port or b"443") == 443


@given(st.text(max_size=40))
def test_no_server_name_agrees_but_spellings_of_the_name(name: str) -> None:
    if of_hello(FLOW, hello(name)) is None:
        assert name.lower().removesuffix(".") == "www.example.com"
