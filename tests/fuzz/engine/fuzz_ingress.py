"""What strangers send to the ingress and guests answer: one place a request is for, whatever was said twice; nothing of ours goes on, and
what is written has the reading that was judged, for h11 too. And the words between ingress and control, however they are cut.
"""

from __future__ import annotations

from typing import Any

import h11
from tests.fuzz.engine.cuts import Pieces, same
from tests.fuzz.engine.guided import Target
from tests.fuzz.engine.oracles import request_of_h11

from space.core.wire.http1 import BadHead, RequestHead, ResponseHead
from space.ingress import answers, heads, routing
from space.ingress.heads import Way
from space.ingress.routing import BadRoute, ToControl, ToPort
from space.rpc import ingress_api as api

DOMAIN = "boxes.example.com"
_ID = b"ia2a2a2a2a2a2a2a2a2a2"
_WAY = Way("192.0.2.7", secure=True)


def fuzz_ingress(data: bytes) -> None:
    for decoder in (api.TO_CONTROL, api.TO_INGRESS, api.ANSWER):
        same(lambda pieces: _word(pieces, decoder), data)  # noqa: B023 - called at once
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return
    raw = data[: end + 4]
    _request(raw)
    _reply(raw)


def _word(pieces: Pieces, decoder: Any) -> Any:
    reader = api.WordReader()
    for at, piece in enumerate(pieces):
        try:
            said = reader.receive(piece, decoder)
        except api.BadWord:
            return "refused"
        if said is not None:
            return said, reader.rest + b"".join(pieces[at + 1 :])
    return None


def _request(raw: bytes) -> None:
    try:
        head = RequestHead.parse(raw)
    except BadHead:
        return
    for relayed in (False, True):
        try:
            target = routing.route(head, DOMAIN, relayed=relayed)
        except BadRoute as bad:
            refusal = answers.Answer(bad.status, str(bad))
            answered = refusal.write(head, close=True).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            _same_status(refusal, ResponseHead.parse_for(head.method)(answered))
            continue
        assert head.target.startswith(b"/")
        name = head.host.decode().lower().partition(":")[0]
        if isinstance(target, ToControl):
            assert target.envd or (name == f"api.{DOMAIN}" and not relayed)
            written = heads.to_control(head, _WAY, target.sandbox if target.by_host else "", envd=target.envd, websocket=False)
        else:
            assert target.port != routing.ENVD
            assert 1 <= target.port <= 65_535
            api.TO_CONTROL.decode(api.word(api.Resolve(target.sandbox, target.port, target.token))[4:])
            if target.by_host:
                assert name == f"{name.partition('-')[0]}-{target.sandbox}.{DOMAIN}"
            written = heads.to_guest(head, target, _WAY, "", websocket=False)
        _judged(head, written, target)


def _same_status(refusal: answers.Answer, told: ResponseHead) -> None:
    assert (told.status, told.keep_alive) == (refusal.status, False)


def _judged(head: RequestHead, written: bytes, target: ToPort | ToControl) -> None:
    again = RequestHead.parse(written)
    assert (again.method, again.target, again.framing) == (head.method, head.target, head.framing)
    assert [value for name, value in again.fields if name == b"x-forwarded-for"] == [b"192.0.2.7"]
    assert not [name for name, _ in again.fields if name in (b"forwarded", b"x-real-ip", b"upgrade", b"connection")]
    ours = [name for name, _ in again.fields if name in (routing.ID_FIELD, routing.PORT_FIELD, routing.TOKEN_FIELD)]
    assert not ours if isinstance(target, ToPort) else len([name for name in ours if name == routing.ID_FIELD]) <= 1
    other = request_of_h11(written)
    assert other is None or other[:2] == (head.method, head.target)


def _reply(raw: bytes) -> None:
    for method in (b"GET", b"HEAD"):
        try:
            reply = ResponseHead.parse_for(method)(raw)
        except BadHead:
            continue
        if reply.interim:
            assert heads.switched(reply, None) is None
            continue
        written = heads.to_client(reply, bare=method == b"HEAD", close=True)
        again = ResponseHead.parse_for(method)(written)
        assert (again.status, again.framing) == (reply.status, heads.reply_framing(reply))
        assert not again.keep_alive
        for name, value in again.fields:
            assert name != b"alt-svc"
            assert name != b"set-cookie" or b"domain" not in {part.partition(b"=")[0].strip().lower() for part in value.split(b";")[1:]}
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        try:
            client.receive_data(written)
            event = client.next_event()
        except h11.RemoteProtocolError:
            continue  # it refuses some of what is allowed
        assert isinstance(event, h11.Response)
        assert event.status_code == reply.status


_SEEDS = (
    b"GET /a HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n" % _ID,
    b"GET / HTTP/1.1\r\nHost: localhost:7071\r\nE2b-Sandbox-Id: %b\r\nE2b-Sandbox-Port: 8080\r\nE2b-Traffic-Access-Token: t\r\n\r\n" % _ID,
    b"POST /files HTTP/1.1\r\nHost: 49983-%b.boxes.example.com\r\nContent-Length: 3\r\nX-Access-Token: t\r\n\r\nabc" % _ID,
    b"GET /v2/sandboxes HTTP/1.1\r\nHost: api.boxes.example.com\r\nX-Api-Key: k\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: [::1]:7071\r\nE2b-Sandbox-Id: sb-%b-x\r\nE2b-Sandbox-Port: 49983\r\n\r\n" % _ID[1:],
    b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Domain=boxes.example.com; Path=/\r\nAlt-Svc: h3\r\nConnection: keep-alive\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nSet-Cookie: a; domain\r\n\r\n",
    api.word(api.Resolve(_ID.decode(), 80, "t")),
    api.word(api.Api("192.0.2.7", secure=True)) + b"GET / HTTP/1.1\r\n\r\n",
    api.word(api.Stands("localhost:${PORT}")),
    api.word(api.Refused("closed")),
)
_WORDS = (
    *(b"\r\n", b"\n", b"\0", b":", b" ", b"-", b".", b";", b"=", b"domain", b"; Domain=", b"\xff", b"\r\n\r\n"),
    *(b"Host: api.boxes.example.com\r\n", b"Host: sandbox.boxes.example.com\r\n", b"E2b-Sandbox-Port: 49983\r\n", b"E2b-Sandbox-Id: x\r\n"),
    *(b"Connection: e2b-sandbox-id\r\n", b"Forwarded: for=x\r\n", b"X-Real-IP: x\r\n", b"Upgrade: websocket\r\n"),
    *(b"Set-Cookie: x; domain=y\r\n", b"Set-Cookie: x;\tDOMAIN\r\n"),
    *(b".boxes.example.com", b"49983-", b"65536-", b"0-", b"sandbox.", b"api.", b"localhost", b"127.0.0.1", b"[::1]"),
)  # fmt: skip

TARGET = Target("ingress", (routing, heads, answers, api), fuzz_ingress, _SEEDS, _WORDS)
