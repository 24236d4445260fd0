"""Bytes that two parsers would read differently, sent by root in a real guest; the servers outside see none of what they hide."""

from __future__ import annotations

import threading

import pytest
from tests.security.walled import Walled, eventually

from space.testing.egresslab import Upstream
from space.testing.egresstown import Town

NAME, ASKED = "narrow.example.com", "asked.example.com"
HIDDEN = b"GET /admin HTTP/1.1\r\nHost: narrow.example.com\r\n\r\n"


def head(line: str, *fields: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, f"Host: {NAME}", *fields, "", ""]).encode("latin-1") + body


def post(*fields: str, body: bytes = b"") -> bytes:
    return head("POST /open HTTP/1.1", *fields, body=body)


CHUNKED = "Transfer-Encoding: chunked"
# what is sent, and the reason in the records
SMUGGLED: dict[str, tuple[bytes, str]] = {
    "length, then coding": (post("Content-Length: 4", CHUNKED, body=b"0\r\n\r\n" + HIDDEN), "both"),
    "coding, then length": (post(CHUNKED, "Content-Length: 4", body=b"0\r\n\r\n" + HIDDEN), "both"),
    "two lengths": (post("Content-Length: 4", "Content-Length: 5", body=HIDDEN), "content_length"),
    "two equal lengths": (post("Content-Length: 4", "Content-Length: 4", body=HIDDEN), "content_length"),
    "a list of lengths": (post("Content-Length: 4, 4", body=HIDDEN), "content_length"),
    "a length with a sign": (post("Content-Length: +4", body=HIDDEN), "content_length"),
    "a length in hex": (post("Content-Length: 0x4", body=HIDDEN), "content_length"),
    "two codings": (post(CHUNKED, CHUNKED, body=b"0\r\n\r\n" + HIDDEN), "transfer_encoding"),
    "a coding before chunked": (post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + HIDDEN), "transfer_encoding"),
    "a coding in quotes": (post('Transfer-Encoding: "chunked"', body=b"0\r\n\r\n" + HIDDEN), "transfer_encoding"),
    "a vertical tab": (post("Transfer-Encoding:\x0bchunked", body=b"0\r\n\r\n" + HIDDEN), "field"),
    "a space before the colon": (post("Transfer-Encoding : chunked", body=b"0\r\n\r\n" + HIDDEN), "field"),
    "a folded coding": (post("X: a", " Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN), "field"),
    "a bare line feed": (b"POST /open HTTP/1.1\r\nHost: narrow.example.com\nX: a\r\n\r\n" + HIDDEN, "field"),
    "a NUL": (post("X: a\0b"), "field"),
    "a chunk with a sign": (post(CHUNKED, body=b"+5\r\nhello\r\n0\r\n\r\n" + HIDDEN), "chunk"),
    "a chunk in 0x": (post(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n" + HIDDEN), "chunk"),
    "a chunk of 2**64": (post(CHUNKED, body=b"10000000000000005\r\nhello\r\n0\r\n\r\n" + HIDDEN), "chunk"),
    "a chunk with an extension": (post(CHUNKED, body=b"5;a=b\r\nhello\r\n0\r\n\r\n" + HIDDEN), "chunk"),
    "a chunk that ends early": (post(CHUNKED, body=b"3\r\nhello\r\n0\r\n\r\n" + HIDDEN), "chunk"),
    "a chunk line with a bare line feed": (post(CHUNKED, body=b"5\nhello\r\n0\r\n\r\n" + HIDDEN), "chunk"),
    "CONNECT": (b"CONNECT other.example.com:443 HTTP/1.1\r\nHost: narrow.example.com\r\n\r\n", "target_form"),
    "the asterisk": (head("OPTIONS * HTTP/1.1"), "target_form"),
    "HTTP/1.0": (head("GET /open HTTP/1.0"), "version"),
    "HTTP/0.9": (b"GET /admin\r\n\r\n", "request_line"),
    "HTTP/2 without an agreement": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "version"),
    "an encoded slash": (head("GET /open/..%2fadmin HTTP/1.1"), "path_invalid"),
    "an encoding of an encoding": (head("GET /open/%252e%252e/admin HTTP/1.1"), "path_invalid"),
    "dots": (head("GET /open/../admin HTTP/1.1"), "path_not_allowed"),
    "a backslash": (head("GET /open\\..\\admin HTTP/1.1"), "path_invalid"),
    "a method override": (post("X_HTTP_Method_Override: DELETE"), "method_override"),
    "a method in the query": (head("GET /open?_method=DELETE HTTP/1.1"), "method_override"),
    "another path in a field": (head("GET /open HTTP/1.1", "X-Original_URL: /admin"), "path_override"),
    "TRACE": (head("TRACE /open HTTP/1.1"), "trace"),
    "Host named by Connection": (head("GET /open HTTP/1.1", "Connection: host"), "connection"),
    "a websocket that no rule allows": (
        head("GET /open HTTP/1.1", "Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
             "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
        "websocket_not_allowed",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def narrow(place: Town) -> Upstream:
    return place.serve(NAME)


def test_no_bytes_hide_a_request_from_the_wall(guest: Walled, narrow: Upstream) -> None:
    guest.allow({"host": NAME, "paths": ["/open", "/still"]})
    assert guest.serves(NAME)
    found = guest.root("cross", [{"to": NAME, "sni": NAME, "hex": data.hex()} for data, _ in SMUGGLED.values()])
    for (what, (_, reason)), got in zip(SMUGGLED.items(), found, strict=True):
        print(what, "->", reason, "|", got["answer"][:60].replace("\r\n", " "), "|", got["error"])
        assert not got["answer"].startswith("HTTP/1.1 2"), (what, got)
        assert f'"reason":"{reason}' in got["answer"], (what, got)
        assert got["seconds"] < 5, (what, got)
    assert not [one for one in narrow.heads if b"admin" in one or b"DELETE" in one]
    assert b"GET /admin" not in narrow.seen
    assert guest.serves(NAME)


def test_where_a_policy_asks_no_byte_of_an_opaque_stream_leaves_before_a_person_agrees(guest: Walled, place: Town) -> None:
    """Any name and any port get an answer then, so that a person can be asked: the stream itself must wait."""
    upstream = place.serve(ASKED, plain=True, port=2222)
    guest.allow(mode="ask")
    said: list[tuple[int, str]] = []

    def send() -> threading.Thread:
        program = "import socket, sys; s = socket.create_connection((sys.argv[1], 2222), 20); s.settimeout(20)"
        program += "; s.sendall(b'GET /secret HTTP/1.1\\r\\n\\r\\n'); print(s.recv(99))"
        thread = threading.Thread(target=lambda: said.append(guest.sh(f'python3 -c "{program}" {ASKED}')))
        thread.start()
        return thread

    for allow in (False, True):
        thread = send()
        (ask,) = eventually(lambda: guest.sandbox.asks() or None)
        assert (ask.host, ask.port, ask.scheme, ask.method) == (ASKED, 2222, "tcp", "CONNECT")
        assert upstream.connections == 0
        guest.sandbox.answer(ask, allow=allow)
        thread.join(60)
    assert said[0][0] != 0
    assert "200 OK" in said[1][1], said
    assert (upstream.connections, len(upstream.heads)) == (1, 1)
