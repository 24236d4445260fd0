"""Verdicts: from a policy and a question to allow or deny, with the rule or the reason. Pure; the same functions serve `explain`.

    name      may the guest have an address for this name?        DNS
    flow      what may a connection to (name, port) be?           before a byte of it is read, and again with the ClientHello
    request   may this request go?                                each request of a connection, and each stream
    literal   may this address be dialled without a name?         `open` and `cidr` only

A `Stack` is one to three layers. Every layer must allow: a lower one can only narrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Literal

import msgspec

from space.core.policy.addresses import Dialable, judge
from space.core.policy.model import Block, Policy, Rule, Scheme
from space.core.policy.paths import Path

Reason = Literal[
    "name_not_allowed",
    "port_not_allowed",
    "scheme_not_allowed",
    "method_not_allowed",
    "path_not_allowed",
    "websocket_not_allowed",
    "trace",
    "address_not_allowed",
    "foreign_credentials",
    "no_policy",
]
# Answers of TRACE and its old name hold the request's fields, an injected credential among them.
_ECHOING = frozenset({"TRACE", "TRACK"})


@dataclass(frozen=True, slots=True)
class Allow:
    """It may. rule: the lowest layer's, None where no rule of it does (`open`, or its mode). scheme: what the flow is.

    ask: a person decides first. recorded: nothing allows it, and the layer only records (a template under construction). sent_limit,
    received_limit: bytes, the least that any layer's rule says.
    """

    rule: Rule | None
    scheme: Scheme
    ask: bool = False
    recorded: bool = False
    sent_limit: int | None = None
    received_limit: int | None = None

    @property
    def grant(self) -> str | None:
        return self.rule.grant if self.rule is not None else None


@dataclass(frozen=True, slots=True)
class Deny:
    """It may not. layer: the policy that says so. rule: the one that came nearest, if any."""

    reason: Reason
    layer: str
    rule: str | None = None


Verdict = Allow | Deny


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A request. method: as it came (methods are case-sensitive). foreign: it carries a credential that the guest put there."""

    name: str
    port: int
    scheme: Scheme
    method: str
    path: Path
    websocket: bool = False
    foreign: bool = False


class Layer:
    """A policy, arranged so that a verdict costs the same with 5 rules and with 5,000."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        exact: defaultdict[str, list[Rule]] = defaultdict(list)
        below: defaultdict[str, list[Rule]] = defaultdict(list)
        for rule in policy.rules:
            (below if rule.host.wildcard else exact)[rule.host.suffix].append(rule)
        self._exact = {name: tuple(rules) for name, rules in exact.items()}
        self._below = {name: tuple(rules) for name, rules in below.items()}
        self._allows: dict[int, Allow] = {}  # by the rule's identity: what each comes to, made when it is first asked for

    def rules(self, name: str) -> tuple[Rule, ...]:
        """The rules for a canonical name: those that name it before those with a wildcard, each in the policy's order."""
        found = self._exact.get(name, ())
        if self._below:
            found += self._below.get(name.partition(".")[2], ())
        return found

    def name(self, name: str) -> Verdict:
        """Whether any rule, or `open`, is for that name."""
        for rule in self.rules(name):
            return self._allow(rule)
        return Allow(None, "https") if self.policy.open else self._deny("name_not_allowed")

    def flow(self, name: str, port: int) -> Verdict:
        """What a connection to that name and port may be. Rules of one name and port have one scheme (the loader sees to it)."""
        rules = self.rules(name)
        for rule in rules:
            if rule.port == port:
                return self._allow(rule)
        if self.policy.open:
            return Allow(None, usual_scheme(port))
        return self._deny("port_not_allowed", rules[0]) if rules else self._deny("name_not_allowed")

    def request(self, asked: Asked) -> Verdict:
        """The first rule that allows it in every reading of its path; without one, the denial of the rule that came nearest."""
        if asked.method.upper() in _ECHOING:
            return self._trace(asked)
        port, scheme, rules = asked.port, asked.scheme, self.rules(asked.name)
        for rule in rules:
            if rule.port == port:
                if rule.scheme == scheme and _missed(rule, asked) is None:  # as most are
                    return self._allow(rule)
                break
        return self._nearest(asked, rules)

    def _trace(self, asked: Asked) -> Verdict:
        nearest = self.flow(asked.name, asked.port)
        return nearest if isinstance(nearest, Deny) else self._deny("trace", nearest.rule)

    def _nearest(self, asked: Asked, rules: tuple[Rule, ...]) -> Verdict:
        nearest = self.flow(asked.name, asked.port)
        if isinstance(nearest, Deny):
            return nearest
        if nearest.rule is None:
            return Allow(None, asked.scheme)
        if nearest.scheme != asked.scheme:
            return self._deny("scheme_not_allowed", nearest.rule)
        why: Reason = "port_not_allowed"
        near, far = nearest.rule, -1
        for rule in rules:
            if rule.port != asked.port:
                continue
            missed = _missed(rule, asked)
            if missed is None:
                return self._allow(rule)
            if _DISTANCE[missed] > far:
                far, why, near = _DISTANCE[missed], missed, rule
        return self._deny(why, near)  # also where the layer is open: a host that has rules is held to them

    def literal(self, address: IPv4Address, port: int) -> Verdict:
        """Whether an address may be dialled that no name stands for. What may not be dialled at all is the dialer's to refuse."""
        if self.block(address, port) is not None:
            return Allow(None, "tcp")
        if self.policy.open and isinstance(judge(address), Dialable):
            return Allow(None, "tcp")
        return self._deny("address_not_allowed")

    def block(self, address: IPv4Address, port: int) -> Block | None:
        """The entry of `cidr` that allows it."""
        for block in self.policy.blocks:
            if address in block.network and (block.ports is None or port in block.ports):
                return block
        return None

    def _allow(self, rule: Rule) -> Allow:
        found = self._allows.get(id(rule))
        if found is None:
            found = self._allows[id(rule)] = _allow(rule)
        return found

    def _deny(self, reason: Reason, rule: Rule | None = None) -> Deny:
        return Deny(reason, self.policy.name, None if rule is None else rule.name)


def usual_scheme(port: int) -> Scheme:
    """What a port speaks where no rule says so."""
    return "https" if port == 443 else "http" if port == 80 else "tcp"


def _allow(rule: Rule) -> Allow:
    return Allow(rule, rule.scheme, ask=rule.ask, sent_limit=rule.sent_limit, received_limit=rule.received_limit)


_DISTANCE: dict[Reason, int] = {"websocket_not_allowed": 3, "foreign_credentials": 2, "path_not_allowed": 1, "method_not_allowed": 0}


def _missed(rule: Rule, asked: Asked) -> Reason | None:
    """Why a rule for that name, port and scheme does not allow the request; None when it does."""
    if rule.methods is not None and asked.method not in rule.methods:
        return "method_not_allowed"
    if rule.paths is not None:
        for reading in asked.path.readings:
            for one in rule.paths:
                if one.matches(reading):
                    break
            else:
                return "path_not_allowed"
    if asked.foreign and rule.foreign == "refuse":
        return "foreign_credentials"
    if asked.websocket and not rule.websocket:
        return "websocket_not_allowed"
    return None


class Stack:
    """The layers that hold for one sandbox, the operator's first. Without any layer nothing is allowed."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = tuple(layers)

    def name(self, name: str) -> Verdict:
        return self._all([layer.name(name) for layer in self.layers], "https")

    def flow(self, name: str, port: int) -> Verdict:
        return self._all([layer.flow(name, port) for layer in self.layers], usual_scheme(port))

    def request(self, asked: Asked) -> Verdict:
        return self._all([layer.request(asked) for layer in self.layers], asked.scheme)

    def literal(self, address: IPv4Address, port: int) -> Verdict:
        return self._all([layer.literal(address, port) for layer in self.layers], None)

    def _all(self, verdicts: list[Verdict], usual: Scheme | None) -> Verdict:
        """The first denial from above; else what the lowest layer says, or makes of a denial by its mode, within what those above allow.

        usual: the scheme where no rule of any layer says one; None: the mode changes nothing.
        """
        if not verdicts:
            return Deny("no_policy", "none")
        lowest = verdicts[-1]
        if len(verdicts) == 1 and isinstance(lowest, Allow):
            return lowest
        above = verdicts[:-1]
        for verdict in above:
            if isinstance(verdict, Deny):
                return verdict
        if isinstance(lowest, Deny):
            mode = self.layers[-1].policy.mode
            if usual is None or mode == "enforce" or lowest.reason == "trace":
                return lowest
            lowest = Allow(None, usual, ask=mode == "ask", recorded=mode == "record")
        return self._joined([*[verdict for verdict in above if isinstance(verdict, Allow)], lowest])

    def _joined(self, allowed: list[Allow]) -> Verdict:
        """What all of them allow: by the lowest one's rule, with what those above add. The lowest itself where they add nothing."""
        lowest = allowed[-1]
        scheme = next((verdict.scheme for verdict in reversed(allowed) if verdict.rule is not None), lowest.scheme)
        ask, sent, received = lowest.ask, lowest.sent_limit, lowest.received_limit
        for verdict, layer in zip(allowed, self.layers, strict=True):
            if verdict.rule is not None and verdict.scheme != scheme:
                return Deny("scheme_not_allowed", layer.policy.name, verdict.rule.name)
            ask = ask or verdict.ask
            sent, received = _less(sent, verdict.sent_limit), _less(received, verdict.received_limit)
        if (scheme, ask, sent, received) == (lowest.scheme, lowest.ask, lowest.sent_limit, lowest.received_limit):
            return lowest
        return replace(lowest, scheme=scheme, ask=ask, sent_limit=sent, received_limit=received)


def _less(one: int | None, other: int | None) -> int | None:
    """The lesser limit; None is no limit."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
