"""One request and its reply, while they last; and the reply as a guest gets it. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from space.core.credentials.packed import searching
from space.core.credentials.tripwire import Tripwire, overwritten
from space.core.policy.agreement import Flow
from space.core.policy.verdict import Allow, Asked, Stack
from space.core.wire.bodies import Body, chunk
from space.core.wire.http1 import (
    CHUNKED,
    NO_BODY,
    Field,
    Framing,
    HeadReader,
    RequestHead,
    ResponseHead,
    response_end_to_end,
    write_response,
    written,
)
from space.gateway.budgets import Budget, of_request
from space.gateway.judgement import Admitted, Refused, query_keys
from space.gateway.loans import Loan
from space.gateway.records import MOST_PATH, Requested
from space.gateway.websocket import Frames

MOST_INTERIM = 16
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Of no one reply: another place to speak to, past the gateway.
NOTHING = Body(NO_BODY)  # of every request that has none: it is over, and is given nothing
STRIPPED = frozenset({b"alt-svc"})
# Where a credential was lent, a session that stands for it is one as well.
_STRIPPED_OF_LOANS = STRIPPED | {b"set-cookie", b"set-cookie2"}


class Exchange:
    """forwarded: the upstream has the head. keep: another request may follow. tunnel: frames from the guest and from the upstream."""

    __slots__ = (
        "accept", "agreed", "asked", "body", "budgets", "continued", "echoed", "forwarded", "generation", "grant", "head", "id",
        "interims", "keep", "loan", "pieces", "reader", "reason", "received", "reply", "reply_body", "retried", "reused", "rule", "sent",
        "since", "started", "status", "tunnel", "verdict", "watch", "wire",
    )  # fmt: skip

    def __init__(self, head: RequestHead, ident: str, now: float, generation: int) -> None:
        self.head = head
        self.id = ident
        self.started = self.since = now
        self.generation = generation
        self.body = NOTHING if head.framing.kind == "none" else Body(head.framing)
        self.pieces: list[bytes] = []
        self.asked: Asked | None = None
        self.verdict: Allow | None = None
        self.rule = ""
        self.budgets: tuple[Budget, ...] = ()
        self.accept: bytes | None = None
        self.agreed = self.forwarded = self.reused = self.retried = self.continued = self.echoed = False
        self.keep = False
        self.sent = self.received = self.status = self.interims = 0
        self.reason = ""
        self.reader = HeadReader(ResponseHead.parse_for(head.method))
        self.reply: ResponseHead | None = None
        self.reply_body: Body | None = None
        self.tunnel: tuple[Frames, Frames] | None = None
        self.loan: Loan | None = None
        self.grant = ""
        self.wire: Tripwire | None = None  # what the upstream says goes through it
        self.watch: Tripwire | None = None  # what the guest's body says

    def admit(self, admitted: Admitted) -> None:
        """It may go."""
        self.asked, self.verdict, self.budgets, self.accept = admitted.asked, admitted.verdict, admitted.budgets, admitted.websocket
        self.rule = "" if admitted.verdict.rule is None else admitted.verdict.rule.name
        self.loan = self.loan or admitted.loan  # judged again, it keeps what was lent for it
        self.grant = "" if admitted.loan is None or not admitted.loan.wanted else admitted.loan.grant

    def narrow(self, stack: Stack, verdict: Allow) -> None:
        """It is under way, and goes on under another policy's limits."""
        assert self.asked is not None
        self.budgets = of_request(stack, self.asked, verdict)

    def refuse(self, refused: Refused) -> None:
        """It may not."""
        self.status, self.reason = refused.status, refused.reason
        self.asked = refused.asked or self.asked
        self.rule = refused.rule or self.rule
        self.grant = refused.grant or self.grant

    def again(self) -> None:
        """It was never answered, and goes once more over another connection."""
        self.retried, self.forwarded = True, False
        self.reader = HeadReader(ResponseHead.parse_for(self.head.method))
        if self.loan is not None:
            self.loan.lease = None  # that use of it is spent

    @property
    def asks(self) -> bool:
        """Whether a person has to agree first, who has not yet."""
        if self.agreed or self.verdict is None:
            return False
        loan = self.loan
        return self.verdict.ask or (loan is not None and loan.wanted and loan.outline is not None and loan.outline.approval)

    @property
    def lacks(self) -> bool:
        """Whether a credential has yet to be lent for it."""
        return self.loan is not None and self.loan.lacks

    def searched(self, data: bytes, *, ended: bool = False) -> bytes:
        """What the upstream says as the guest gets it: without the credential. What may begin one is held until more comes, or it has
        ended.
        """
        return data if self.wire is None else self.wire.receive(data, ended=ended)

    def replied(self, fields: Iterable[Field]) -> None:
        """Its reply has a body, and these fields, which say whether that is packed. Unsearchable."""
        if self.wire is not None:
            self.wire = searching(self.wire.needles, fields)

    @property
    def stripped(self) -> frozenset[bytes]:
        """Fields of a reply that are not the guest's to have."""
        return STRIPPED if self.loan is None or self.loan.cookies or self.loan.outline is None else _STRIPPED_OF_LOANS

    @property
    def held(self) -> int:
        """Bytes of the upstream's that are held so."""
        return 0 if self.wire is None else self.wire.held

    def told(self, data: bytes) -> bytes:
        """A head likewise, which is whole."""
        wire = self.wire
        if wire is None:
            return data
        data, echoes = overwritten(wire.needles, data)
        wire.echoes += echoes
        return data

    @property
    def collects(self) -> bool:
        """Whether its body is needed whole before its head can be signed, and is not there yet."""
        return self.loan is not None and self.loan.collects and not self.loan.digest

    def collected(self) -> None:
        """All of it is in `pieces`."""
        assert self.loan is not None
        digest = hashlib.sha256()
        for piece in self.pieces:
            digest.update(piece)
        self.loan.digest = digest.hexdigest().encode()

    def upward(self, pieces: list[bytes]) -> list[bytes]:
        """A body's next pieces as they are sent on: the same, or signed anew. Unsignable."""
        chunks = None if self.loan is None else self.loan.chunks
        if chunks is None or not pieces:
            return pieces
        data = chunks.receive(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return [data] if data else []

    def let_go(self) -> int:
        """Bytes of the guest's that wait to be signed, and will not be."""
        chunks = None if self.loan is None else self.loan.chunks
        if self.loan is None or chunks is None:
            return 0
        self.loan.chunks = None
        return chunks.held

    def marked(self, pieces: list[bytes]) -> bool:
        """Whether a placeholder is in the guest's body, these pieces of it being the next ones."""
        watch = self.watch
        if watch is None:
            return False
        for piece in pieces:
            watch.receive(piece)
        return watch.echoes > 0

    @property
    def repeatable(self) -> bool:
        """Whether a kept connection that closed under it is reason enough to send it again (RFC 9112, 9.3.1)."""
        idempotent = self.head.method in (b"GET", b"HEAD", b"OPTIONS")
        return self.reused and not self.retried and idempotent and self.head.framing.kind == "none" and not self.reader.begun

    def record(self, sandbox: str, flow: Flow, address: str, now: float) -> Requested:
        """What is written down of it."""
        path = self.asked.path if self.asked is not None else None
        return Requested(
            sandbox=sandbox,
            id=self.id,
            name=flow.name,
            port=flow.port,
            method=self.head.method.decode("ascii"),
            path="" if path is None else path.text[:MOST_PATH],
            query=() if path is None else query_keys(path),
            status=self.status,
            rule=self.rule,
            recorded=self.verdict is not None and self.verdict.recorded,
            reason=self.reason,
            sent=self.sent,
            received=self.received,
            seconds=now - self.started,
            upstream=address,
            grant=self.grant,
            version=0 if self.loan is None or self.loan.lease is None else self.loan.lease.version,
        )


def framed(pieces: list[bytes], framing: Framing, *, ended: bool) -> bytes:
    """Pieces of a body as they go on. All of one reading are one chunk, at once."""
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if framing.kind != "chunked":
        return data
    last = b"0\r\n\r\n" if ended else b""
    return chunk(data) + last if data else last


def reply_framing(reply: ResponseHead) -> Framing:
    """How the guest gets a body: one that ends with the connection gets an end of its own, so that a cut can be told from it."""
    return CHUNKED if reply.framing.kind == "close" else reply.framing


def reply_bytes(reply: ResponseHead, *, bare: bool, close: bool, stripped: frozenset[bytes] = STRIPPED) -> bytes:
    """The head of a reply. bare: to HEAD; its length is then of the body that is not there."""
    fields = _told_on(reply.fields, reply.options, bare or reply.status == 304, stripped)
    return write_response(reply.status, reply.reason, fields, reply_framing(reply), close=close)


@lru_cache(16)
def _told_on(fields: tuple[Field, ...], options: frozenset[bytes], length: bool, stripped: frozenset[bytes]) -> bytes:
    """The fields of a reply as the guest gets them. length: with what they say of it."""
    kept = [field for field in response_end_to_end(fields, options) if field[0] not in stripped]
    if length:
        kept += [field for field in fields if field[0] == b"content-length"]
    return written(kept)


def switched_bytes(reply: ResponseHead, accept: bytes | None, stripped: frozenset[bytes] = STRIPPED) -> bytes | None:
    """The 101 as the guest gets it; None where it was not asked for, or is not the answer to what was asked."""
    values = dict(reply.fields)
    answers = [value for name, value in reply.fields if name in (b"sec-websocket-accept", b"upgrade")]
    if accept is None or len(answers) != 2 or values.get(b"sec-websocket-accept") != accept:
        return None
    if values.get(b"upgrade", b"").lower() != b"websocket" or b"upgrade" not in reply.options or b"sec-websocket-extensions" in values:
        return None
    fields = [field for field in reply.end_to_end() if field[0] not in stripped]
    return write_response(101, reply.reason, [*fields, (b"connection", b"upgrade"), (b"upgrade", b"websocket")], reply.framing)
