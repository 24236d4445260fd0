"""What changes from one policy to another, and whether anything may leave now that could not before.

`widens` may say so of a change that opens nothing (two rules together may hold what a third one says); it never keeps silent about one
that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from space.core.policy.model import Block, Mode, Policy, Rule
from space.core.policy.names import Pattern
from space.core.policy.paths import PathPattern

_STRICTNESS: dict[Mode, int] = {"record": 0, "ask": 1, "enforce": 2}


@dataclass(frozen=True, slots=True)
class Difference:
    """added, removed: rules by what they say, not by their names; so with blocks. opened, closed: whether `open` changed.

    mode: before and after, None where it is the same. wider: why something may leave that could not before, a sentence each.
    """

    added: tuple[Rule, ...]
    removed: tuple[Rule, ...]
    added_blocks: tuple[Block, ...]
    removed_blocks: tuple[Block, ...]
    opened: bool
    closed: bool
    mode: tuple[Mode, Mode] | None
    wider: tuple[str, ...]

    @property
    def widens(self) -> bool:
        """Whether something may leave now that could not before, or goes unasked, or in a larger amount."""
        return bool(self.wider)


def difference(old: Policy, new: Policy) -> Difference:
    """What `new` allows otherwise than `old`."""
    before, after = {_meaning(rule) for rule in old.rules}, {_meaning(rule) for rule in new.rules}
    blocks, later = {(one.network, one.ports) for one in old.blocks}, {(one.network, one.ports) for one in new.blocks}
    return Difference(
        added=tuple(rule for rule in new.rules if _meaning(rule) not in before),
        removed=tuple(rule for rule in old.rules if _meaning(rule) not in after),
        added_blocks=tuple(one for one in new.blocks if (one.network, one.ports) not in blocks),
        removed_blocks=tuple(one for one in old.blocks if (one.network, one.ports) not in later),
        opened=new.open and not old.open,
        closed=old.open and not new.open,
        mode=(old.mode, new.mode) if old.mode != new.mode else None,
        wider=tuple(_wider(old, new, before, after)),
    )


def _wider(old: Policy, new: Policy, before: set[tuple[object, ...]], after: set[tuple[object, ...]]) -> Iterable[str]:
    if new.open and not old.open:
        yield "it is open"
    if _STRICTNESS[new.mode] < _STRICTNESS[old.mode]:
        yield f"its mode is {new.mode} instead of {old.mode}"
    for rule in new.rules:
        if _meaning(rule) not in before and not any(covers(one, rule) for one in old.rules):
            yield f"no rule of the old policy holds all of {described(rule)}"
    for block in new.blocks:
        if not any(block.network.subnet_of(one.network) and _within(block.ports, one.ports) for one in old.blocks):
            yield f"no cidr entry of the old policy holds all of {block.network}"
    if new.open or new.mode != "enforce":
        for rule in old.rules:
            if _meaning(rule) not in after:
                yield f"it is open or not enforced, so nothing holds what this rule held: {described(rule)}"
    yield from _unshaded(old, new)


def _unshaded(old: Policy, new: Policy) -> Iterable[str]:
    """Rules that ask, or count bytes, and stand before others for the same host: what they catch must not slip past them now."""
    for careful in old.rules:
        if not careful.ask and careful.sent_limit is None and careful.received_limit is None:
            continue
        then = [_meaning(rule) for rule in old.rules if _overlap(rule, careful)]
        now = [rule for rule in new.rules if _overlap(rule, careful)]
        if then != [_meaning(rule) for rule in now] and not all(_as_careful(rule, careful) for rule in now):
            yield f"rules beside one that asks or counts have changed: {described(careful)}"


def covers(wide: Rule, narrow: Rule) -> bool:
    """Whether one rule allows whatever another does, no less carefully, and with the same credential and trust."""
    return (
        (wide.port, wide.scheme, wide.grant, wide.ca) == (narrow.port, narrow.scheme, narrow.grant, narrow.ca)
        and _host_within(narrow.host, wide.host)
        and _within(narrow.methods, wide.methods)
        and _paths_within(narrow.paths, wide.paths)
        and (wide.websocket or not narrow.websocket)
        and (wide.foreign == "forward" or narrow.foreign == "refuse")
        and _as_careful(narrow, wide)
    )


def described(rule: Rule) -> str:
    """A rule on one line."""
    words = [f"{rule.scheme}://{rule.host}:{rule.port}"]
    words += [",".join(sorted(rule.methods))] if rule.methods is not None else []
    words += [" ".join(map(str, rule.paths))] if rule.paths is not None else []
    words += ["websocket"] if rule.websocket else []
    words += [f"with credential {rule.grant}"] if rule.grant else []
    words += [f"with bundle {rule.ca}"] if rule.ca else []
    words += ["asks"] if rule.ask else []
    words += ["refuses foreign credentials"] if rule.foreign == "refuse" else []
    words += [f"sends at most {rule.sent_limit} bytes"] if rule.sent_limit is not None else []
    words += [f"receives at most {rule.received_limit} bytes"] if rule.received_limit is not None else []
    return " ".join(words)


def _meaning(rule: Rule) -> tuple[object, ...]:
    return tuple(getattr(rule, field) for field in Rule.__slots__ if field != "name")


def _as_careful(one: Rule, other: Rule) -> bool:
    limits = ((one.sent_limit, other.sent_limit), (one.received_limit, other.received_limit))
    return (one.ask or not other.ask) and all(most is None or (limit is not None and limit <= most) for limit, most in limits)


def _overlap(one: Rule, other: Rule) -> bool:
    return one.port == other.port and (_host_within(one.host, other.host) or _host_within(other.host, one.host))


def _host_within(narrow: Pattern, wide: Pattern) -> bool:
    return narrow == wide if narrow.wildcard else wide.matches(narrow.suffix)


def _within(narrow: frozenset[str] | frozenset[int] | None, wide: frozenset[str] | frozenset[int] | None) -> bool:
    """Sets in which None is everything."""
    return wide is None or (narrow is not None and narrow <= wide)


def _paths_within(narrow: Sequence[PathPattern] | None, wide: Sequence[PathPattern] | None) -> bool:
    return wide is None or (narrow is not None and all(any(_path_within(one, other) for other in wide) for one in narrow))


def _path_within(narrow: PathPattern, wide: PathPattern) -> bool:
    """Equal, or below a prefix without stars; anything cleverer is told as wider."""
    if narrow == wide:
        return True
    return (
        wide.below
        and narrow.segments[: len(wide.segments)] == wide.segments
        and (len(narrow.segments) > len(wide.segments) or narrow.below)
    )
