"""Why a request may go or not, in words. The verdicts are those of `Stack`, which are the only ones there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Literal

from space.core.policy.url import Url
from space.core.policy.verdict import Allow, Asked, Deny, Layer, Stack, Verdict

_WORDS = {
    "name_not_allowed": "no rule is for this name",
    "port_not_allowed": "rules are for this name, none for this port",
    "scheme_not_allowed": "the port of this name speaks something else",
    "method_not_allowed": "no rule for this host allows the method",
    "path_not_allowed": "no rule for this host and method allows the path, in every way in which a server may read it",
    "websocket_not_allowed": "the rule does not allow a WebSocket",
    "trace": "the method would send a credential back, and is never let out",
    "address_not_allowed": "no cidr rule is for this address",
    "foreign_credentials": "the rule refuses credentials that the guest brings",
    "no_policy": "there is no policy, so nothing leaves",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """verdict: the whole stack's. lines: a sentence for each layer, then the result."""

    verdict: Verdict
    lines: tuple[str, ...]


def explain(stack: Stack, asked: Asked) -> Explained:
    """What each layer says of a request, and what comes of it."""
    lines = [f"{layer.policy.name}: {_of_layer(layer.request(asked))}" for layer in stack.layers]
    verdict = stack.request(asked)
    return Explained(verdict, (*lines, f"result: {said(verdict)}"))


def _of_layer(verdict: Verdict) -> str:
    """A layer's own verdict, where its name stands before."""
    return said(verdict).replace(f"denied by {verdict.layer}:", "denied:", 1) if isinstance(verdict, Deny) else said(verdict)


def said(verdict: Verdict) -> str:
    """A verdict as a sentence."""
    match verdict:
        case Deny(reason, layer, rule):
            return f"denied by {layer}: {_WORDS[reason]}" + (f" (nearest rule: {rule})" if rule else "")
        case Allow(rule=None, recorded=True):
            return "let through and recorded: no rule allows it"
        case Allow(rule=None, ask=True):
            return "asked of a person: no rule allows it"
        case Allow(rule=None):
            return "allowed: the policy is open"
        case Allow(rule=found, ask=ask):
            assert found is not None
            extra = f", with credential {found.grant}" if found.grant else ""
            return f"allowed by rule {found.name} ({found.host}:{found.port} {found.scheme}){extra}" + (
                ", after a person agrees" if ask else ""
            )


@dataclass(frozen=True, slots=True)
class Step:
    """One of the questions that a request meets, in their order. lines: a sentence for each layer, then the result."""

    asked: Literal["name", "flow", "request", "address"]
    verdict: Verdict
    lines: tuple[str, ...]
    differs: bool = False  # from what the lowest layer says by itself


@dataclass(frozen=True, slots=True)
class Account:
    """All that is decided about one URL. verdict: the last step's, since each can only narrow."""

    verdict: Verdict
    steps: tuple[Step, ...]


def account(stack: Stack, url: Url, *, method: str = "GET", websocket: bool = False, foreign: bool = False) -> Account:
    """What becomes of a URL: its name, then the connection, then the request. Requests of an opaque connection are not seen."""
    host = url.host
    if isinstance(host, IPv4Address):
        return _account(_address(stack, host, url.port))
    steps = [_step("name", stack, lambda one: one.name(host)), _step("flow", stack, lambda one: one.flow(host, url.port))]
    flow = steps[-1].verdict
    carries = {"tcp": ("tcp", "https", "http"), "passthrough": ("https",)}
    if isinstance(flow, Allow) and url.scheme in carries.get(flow.scheme, ()):
        return _account(*steps)
    if url.scheme == "tcp":
        if isinstance(flow, Allow):
            found = Deny("scheme_not_allowed", stack.layers[-1].policy.name, flow.rule.name if flow.rule else None)
            steps[-1] = Step("flow", found, (*steps[-1].lines[:-1], f"result: {said(found)}"), differs=True)
        return _account(*steps)
    asked = Asked(host, url.port, url.scheme, method, url.path, websocket or url.websocket, foreign)
    return _account(*steps, _step("request", stack, lambda one: one.request(asked)))


def outcome(verdict: Verdict) -> str:
    """A verdict in one stable word: `allow`, `ask`, `record`, or the reason of a denial."""
    match verdict:
        case Deny(reason=reason):
            return reason
        case Allow(recorded=True):
            return "record"
        case Allow(ask=True):
            return "ask"
        case Allow():
            return "allow"


def _account(*steps: Step) -> Account:
    return Account(steps[-1].verdict, steps)


def _address(stack: Stack, address: IPv4Address, port: int) -> Step:
    step = _step("address", stack, lambda one: one.literal(address, port))
    lines = list(step.lines)
    for at, layer in enumerate(stack.layers):
        block = layer.block(address, port)
        if block is not None:
            words = f"allowed by {block.name} ({block.network}{'' if block.ports is None else f' port {port}'})"
            lines[at] = f"{layer.policy.name}: {words}"
            if layer is stack.layers[-1] and isinstance(step.verdict, Allow):
                lines[-1] = f"result: {words}"
    return replace(step, lines=tuple(lines))


def _step(asked: Literal["name", "flow", "request", "address"], stack: Stack, of: Callable[[Layer | Stack], Verdict]) -> Step:
    lines = [f"{layer.policy.name}: {_of_layer(of(layer))}" for layer in stack.layers]
    verdict = of(stack)
    alone = of(stack.layers[-1]) if stack.layers else None
    return Step(asked, verdict, (*lines, f"result: {said(verdict)}"), verdict != alone)
