"""What a request waits for before an upstream is dialled: a person who agrees, a credential that is lent. And what is noticed of both."""

from __future__ import annotations

from space.core.policy.agreement import Flow
from space.core.wire.http1 import BadHead
from space.gateway.exchange import Exchange
from space.gateway.judgement import Admitted, Refused
from space.gateway.lending import LendRefused
from space.gateway.shared import Shared, UpstreamFailed, agreed


def ready(shared: Shared, exchange: Exchange) -> bool:
    """Whether nothing has to be waited for. A lease that is at hand is taken."""
    if exchange.asks:
        return False
    loan, lender = exchange.loan, shared.around.lender
    return loan is None or not loan.lacks or (lender is not None and lender.at_hand(loan))


async def prepared(shared: Shared, flow: Flow, exchange: Exchange) -> None:
    """Steps 10 and 11 of a request's order. UpstreamFailed with what to answer."""
    if exchange.asks:
        exchange.agreed = await agreed(shared, exchange.asked)
    if ready(shared, exchange):
        return
    loan, asked, lender = exchange.loan, exchange.asked, shared.around.lender
    assert loan is not None
    assert asked is not None
    if lender is None:
        raise UpstreamFailed("credential_unavailable", 503, denied=True)
    try:
        await lender.lend(loan, flow.name, flow.port, asked.method, asked.path.text, exchange.id, approved=exchange.agreed)
    except LendRefused as refused:
        raise UpstreamFailed(refused.reason, refused.status, denied=True) from None


def granted(shared: Shared, exchange: Exchange) -> bool:
    """Whether the grant of a request is one still."""
    return exchange.loan is None or not exchange.loan.wanted or shared.around.grants().holds(exchange.loan)


def likewise(exchange: Exchange, judged: Admitted) -> bool:
    """Whether another judgement of it lends what the earlier one did."""
    before, now = exchange.loan, judged.loan
    if before is None or now is None:
        return before is now
    return (before.grant, before.outline, before.wanted) == (now.grant, now.outline, now.wanted)


def watched(shared: Shared, exchange: Exchange) -> None:
    """Have its body looked at for placeholders, where the sandbox has any."""
    places = shared.around.grants().places
    if places:
        exchange.watch = places.watch()


def noticed(shared: Shared, flow: Flow, exchange: Exchange) -> None:
    """An echo, once for each request, as soon as there is one."""
    if exchange.wire is not None and exchange.wire.echoes and not exchange.echoed:
        exchange.echoed = True
        exchange.reason = exchange.reason or "credential_echoed"
        shared.around.alarm("credential_echoed", exchange.grant, flow.name)


def unfit(shared: Shared, flow: Flow, exchange: Exchange, bad: BadHead) -> Refused:
    """What the upstream says cannot be told to the guest, by its form or by what it holds."""
    noticed(shared, flow, exchange)
    return Refused(502, "credential_echoed" if exchange.echoed else f"upstream_{bad.reason}", error="upstream_failed")


def recorded(shared: Shared, flow: Flow, exchange: Exchange, address: str) -> None:
    """It is over: write it down."""
    now = shared.clock()
    shared.recorder.told(exchange.record(shared.around.sandbox, flow, address, now), now)
    if exchange.reason == "placeholder_misplaced":
        shared.around.alarm("placeholder_misplaced", exchange.grant, flow.name)
