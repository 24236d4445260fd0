"""Heads and bodies of HTTP/1.1: one reading however they are cut, h11's reading where it has one, and the same once written anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.engine.cuts import FLOW, Pieces, every_way
from tests.fuzz.engine.guided import Target
from tests.fuzz.engine.oracles import body_of_h11, request_of_h11

from space.core.policy import agreement, paths
from space.core.wire import bodies, http1
from space.core.wire.bodies import BadBody, Body
from space.core.wire.http1 import BadHead, HeadReader, RequestHead, ResponseHead


def fuzz_http1(data: bytes) -> None:
    found = every_way(_head, data, RequestHead.parse)
    if found is not None and not isinstance(found, str):
        head, rest = found
        _one_request(data, head, rest)
    for method in (b"GET", b"HEAD"):
        answer = every_way(_head, data, ResponseHead.parse_for(method))
        if answer is not None and not isinstance(answer, str):
            reply, rest = answer
            written = http1.write_response(reply.status, reply.reason, reply.end_to_end(), reply.framing)
            again = ResponseHead.parse_for(method)(written)
            assert (again.status, again.end_to_end()) == (reply.status, reply.end_to_end())
            every_way(_body, rest, reply.framing, True)


def _one_request(data: bytes, head: RequestHead, rest: bytes) -> None:
    raw = data[: len(data) - len(rest)]
    other = request_of_h11(raw)
    if other is not None:  # h11 refuses some of what is allowed, and where it does not it reads the same
        method, target, fields = other
        assert (method, target) == (head.method, head.target)
        assert fields == [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in head.fields]  # as h11 has it
    written = http1.write_request(head.method, head.target, head.host, head.end_to_end(), head.framing)
    again = RequestHead.parse(written)
    assert (again.method, again.target, again.host, again.framing) == (head.method, head.target, head.host, head.framing)
    assert again.end_to_end() == head.end_to_end()
    assert b"\n" not in written.replace(b"\r\n", b"")
    assert not {name for name, _ in head.end_to_end()} & http1.HOP_BY_HOP
    path = agreement.of_request(FLOW, head)
    if isinstance(path, paths.Path):
        assert head.host.split(b":")[0].rstrip(b".").lower() == FLOW.name.encode()
        assert paths.normalise(path.target.encode()) == path
    body = every_way(_body, rest, head.framing, False)
    if body not in (None, "refused") and other is not None:
        assert body_of_h11(raw, rest) in (None, body)
        content, behind = body
        written = (bodies.chunk(content) if content else b"") + bodies.chunk(b"")
        assert b"".join(Body(http1.CHUNKED).receive(written)) == content
        assert len(content) + len(behind) <= len(rest)


def _head(pieces: Pieces, parse: Callable[[bytes], Any]) -> Any:
    reader = HeadReader(parse)
    for at, piece in enumerate(pieces):
        try:
            found = reader.receive(piece)
        except BadHead:
            return "refused"
        if found is not None:
            return found, reader.rest + b"".join(pieces[at + 1 :])
    if b"\n" in b"".join(pieces).replace(b"\r\n", b""):
        return "refused"  # a bare line feed is found as soon as its bytes are told apart from a line's end
    return None


def _body(pieces: Pieces, framing: http1.Framing, extensions: bool) -> Any:
    body, content = Body(framing, extensions=extensions), b""
    if body.ended:
        return b"", b"".join(pieces)
    for at, piece in enumerate(pieces):
        try:
            content += b"".join(body.receive(piece))
        except BadBody:
            return "refused"
        if body.ended:
            return content, body.rest + b"".join(pieces[at + 1 :])
    assert body.taken == len(content)
    return None


_HTTP1 = (
    b"GET /a/b?c=d HTTP/1.1\r\nHost: a.example.com\r\nAccept: */*\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a.example.com:443\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhelloGET / HTTP/1.1\r\n",
    b"POST /x HTTP/1.1\r\nHost: a.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: a.example.com\r\nConnection: Upgrade, keep-alive\r\nUpgrade: websocket\r\n\r\n",
    b"GET http://a.example.com/ HTTP/1.1\r\nHost: a.example.com\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAlt-Svc: h3\r\n\r\nok",
    b"HTTP/1.0 301 Moved\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
)
_HTTP1_WORDS = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\r\n\r\n", b"0\r\n\r\n", b"\r\n ", b"\x0b", b"\x85", b"\xa0", b"\xff"),
    *(b"//", b"/../", b"%2e", b"%2f", b"%00", b"?", b"#", b"@", b",", b";", b"\\", b"*", b"http://", b"+5", b"0x5", b"5 ", b"5,5"),
    *(
        b"Host: refused.example.com\r\n",
        b"Host:\r\n",
        b"Content-Length: 4\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ),
    *(b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: host\r\n", b"Connection: content-length\r\n", b"Connection: close\r\n"),
    *(
        b"Expect: 100-continue\r\n",
        b"Upgrade: websocket\r\n",
        b"Trailer: x\r\n",
        b"TE: trailers\r\n",
        b"HTTP/1.0",
        b"HTTP/1.1 204 \r\n",
        b"GET ",
        b"chunked",
    ),
)

TARGET = Target("http1", (http1, bodies, agreement, paths), fuzz_http1, _HTTP1, _HTTP1_WORDS)
