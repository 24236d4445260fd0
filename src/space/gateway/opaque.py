"""A stream that is not looked into: `tcp` and `passthrough` rules, literal addresses. Counted, limited, recorded."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address

from space.core.policy.agreement import Flow
from space.core.policy.paths import normalise
from space.core.policy.verdict import Allow, Asked, Deny, Stack
from space.gateway import budgets
from space.gateway.peer import Peer
from space.gateway.shared import Shared, UpstreamFailed, agreed
from space.gateway.stage import Stage


class OpaqueStream(Stage):
    """target: the flow's name, or the literal address. first: what was read already and goes first."""

    def __init__(
        self,
        shared: Shared,
        guest: Peer,
        flow: Flow,
        ident: str,
        gone: Callable[[], None],
        *,
        target: str | IPv4Address,
        verdict: Allow,
        first: bytes = b"",
    ) -> None:
        super().__init__(shared, guest, flow, ident, gone)
        self._target = target
        self._scheme = verdict.scheme
        self._ask = verdict.ask
        self._first = first
        self._ends: set[Peer] = set()
        self._budgets: tuple[budgets.Budget, ...] = ()
        self._limit(shared.around.ruling().stack, verdict)
        guest.owner = self
        guest.hold(Peer.WAIT)
        self.start(self._connect())

    def received(self, peer: Peer, data: bytes) -> None:
        if peer is self.guest and self.upstream is not None:
            self._pass(self.upstream, data, sent=len(data))
        elif peer is self.guest:
            self._first += data
        elif peer is self.upstream:
            self._pass(self.guest, data, received=len(data))

    def ended(self, peer: Peer) -> None:
        """Half of it is over; the other half may go on."""
        self._ends.add(peer)
        if self.upstream is None:
            return
        (self.upstream if peer is self.guest else self.guest).end()
        if {self.guest, self.upstream} <= self._ends:
            self.finish()

    def upstream_lost(self) -> None:
        if self.guest in self._ends:
            self.finish()
        else:
            self.cut("upstream_cut")

    def rejudge(self, stack: Stack) -> None:
        port, target = self.flow.port, self._target
        verdict = stack.flow(target, port) if isinstance(target, str) else stack.literal(target, port)
        if isinstance(verdict, Deny) or verdict.scheme != self._scheme or (verdict.ask and not self._ask):
            self.cut("policy_changed")
        else:
            self._limit(stack, verdict)

    def finish(self) -> None:
        """Both have said their last: let both take it."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.finish()
        self.guest.finish()

    def _limit(self, stack: Stack, verdict: Allow) -> None:
        self._budgets = budgets.of_flow(stack, self._target, self.flow.port, verdict) if isinstance(self._target, str) else ()

    async def _connect(self) -> None:
        try:
            if self._ask:  # by its policy's mode, for no rule of such a stream asks: of it all that a person can be told is where it goes
                await agreed(self.shared, Asked(self.flow.name, self.flow.port, self._scheme, "CONNECT", normalise(b"/")))
            peer = await self.shared.connect(self, self._target, self.flow.port, secure=False)
        except UpstreamFailed as failed:
            self.cut(failed.reason)
            return
        if peer.gone:
            self.cut("upstream_cut")
            return
        self.adopt(peer)
        if self._first:
            first, self._first = self._first, b""
            self._pass(peer, first, sent=len(first))
        if self.upstream is not None and self.guest in self._ends:
            peer.end()
        self.guest.release(Peer.WAIT)

    def _pass(self, to: Peer, data: bytes, *, sent: int = 0, received: int = 0) -> None:
        over = self.shared.around.spending.charge(self._budgets, sent, received) if self._budgets else None
        if over is None:
            to.send(data)
        else:
            self.cut(over)
