"""A policy as plain data for who judges connections only: names, ports, schemes, blocks; nothing of requests, grants or budgets.

The dialer keeps its own copy of what may be dialled, and should know no more of a tenant's policy than that. `layers` of `plain` decides
`flow` and `literal` as the policies do, but for what a rule says of asking and amounts, which are not the dialer's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from typing import Annotated

import msgspec

from space.core.policy.loader import MOST_RULES
from space.core.policy.model import Block, Mode, Policy, Rule, Scheme
from space.core.policy.names import NameRefused, Pattern, pattern
from space.core.policy.verdict import Layer

MOST_BYTES = 16 * 1024 * 1024
MOST_LAYERS = 3
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_Word = Annotated[str, msgspec.Meta(max_length=200)]


class FlowsRefused(ValueError):
    """Not such data; the message says what is wrong with it."""


class PlainRule(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rule: what records call it, its host as `Pattern` prints it, and what a connection there is."""

    name: _Word
    host: Annotated[str, msgspec.Meta(max_length=260)]
    port: Port
    scheme: Scheme


class PlainBlock(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Literal addresses. ports: None for all."""

    name: _Word
    network: _Word
    ports: tuple[Port, ...] | None


class PlainLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer."""

    name: _Word
    open: bool
    mode: Mode
    rules: Annotated[tuple[PlainRule, ...], msgspec.Meta(max_length=MOST_RULES)]
    blocks: Annotated[tuple[PlainBlock, ...], msgspec.Meta(max_length=MOST_RULES)]


_DECODER = msgspec.json.Decoder(Annotated[tuple[PlainLayer, ...], msgspec.Meta(max_length=MOST_LAYERS)])


def plain(policy: Policy) -> PlainLayer:
    """What of a policy concerns connections. Of rules for one host and port the first stands: verdicts name that one."""
    rules: dict[tuple[Pattern, int], Rule] = {}
    for rule in policy.rules:
        rules.setdefault((rule.host, rule.port), rule)
    return PlainLayer(
        policy.name,
        policy.open,
        policy.mode,
        tuple(PlainRule(rule.name, str(rule.host), rule.port, rule.scheme) for rule in rules.values()),
        tuple(
            PlainBlock(block.name, str(block.network), None if block.ports is None else tuple(sorted(block.ports)))
            for block in policy.blocks
        ),
    )


def encode(policies: Iterable[Policy]) -> bytes:
    """The layers of one sandbox, the operator's first."""
    return msgspec.json.encode([plain(policy) for policy in policies])


def decode(data: bytes) -> tuple[Layer, ...]:
    """The layers again. FlowsRefused for anything but what `encode` gives."""
    if len(data) > MOST_BYTES:
        raise FlowsRefused(f"a policy of {len(data)} bytes, at most {MOST_BYTES} are possible")
    try:
        return layers(_DECODER.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise FlowsRefused(f"not the layers of a policy: {str(error)[:200]}") from None


def layers(data: Sequence[PlainLayer]) -> tuple[Layer, ...]:
    """Layers that decide as the ones they were made from. FlowsRefused."""
    return tuple(Layer(Policy(one.name, tuple(map(_rule, one.rules)), tuple(map(_block, one.blocks)), one.open, one.mode)) for one in data)


def _rule(rule: PlainRule) -> Rule:
    try:
        host = pattern(rule.host)
    except NameRefused as error:
        raise FlowsRefused(f"rule {rule.name!r}: {error}") from None
    if str(host) != rule.host:
        raise FlowsRefused(f"rule {rule.name!r}: {rule.host[:80]!r} is not in canonical form")
    return Rule(rule.name, host, rule.port, rule.scheme)


def _block(block: PlainBlock) -> Block:
    try:
        network = IPv4Network(block.network)
    except ValueError as error:
        raise FlowsRefused(f"block {block.name!r}: {error}") from None
    return Block(block.name, network, None if block.ports is None else frozenset(block.ports))
