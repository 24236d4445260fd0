"""Rates, and bytes over a sandbox's life. Numbers in, yes or no out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from space.core.policy.kept import Kept, NoRoom
from space.core.policy.verdict import Allow, Asked, Stack
from space.core.rates import Bucket

__all__ = ["Bucket", "Budget", "Exceeded", "Spending", "of_flow", "of_request"]

Exceeded = Literal["budget_sent", "budget_received"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What one rule of one layer allows, over the sandbox's life. None: without limit."""

    layer: str
    rule: str
    sent: int | None
    received: int | None


def of_request(stack: Stack, asked: Asked, verdict: Allow) -> tuple[Budget, ...]:
    """The budgets of an allowed request: of each layer its own rule's, for a limit above holds for all that its rule lets through."""
    if verdict.sent_limit is None and verdict.received_limit is None:
        return ()
    return _limited(stack, [layer.request(asked) for layer in stack.layers])


def of_flow(stack: Stack, name: str, port: int, verdict: Allow) -> tuple[Budget, ...]:
    """The same for an opaque stream."""
    if verdict.sent_limit is None and verdict.received_limit is None:
        return ()
    return _limited(stack, [layer.flow(name, port) for layer in stack.layers])


def _limited(stack: Stack, verdicts: list[object]) -> tuple[Budget, ...]:
    found = []
    for layer, verdict in zip(stack.layers, verdicts, strict=True):
        rule = verdict.rule if isinstance(verdict, Allow) else None
        if rule is not None and (rule.sent_limit is not None or rule.received_limit is not None):
            found.append(Budget(layer.policy.name, rule.name, rule.sent_limit, rule.received_limit))
    return tuple(found)


class Spending:
    """What a sandbox has used of each budget. kept: where it outlives this worker; without it, it does not."""

    def __init__(self, kept: Kept | None = None) -> None:
        self._used: dict[tuple[str, str], tuple[int, int]] = {}
        self._kept = kept

    def used(self, layer: str, rule: str) -> tuple[int, int]:
        """Bytes sent and received."""
        found = self._used.get((layer, rule))
        if found is not None:
            return found
        return (0, 0) if self._kept is None else self._kept.spent(layer, rule)

    def charge(self, budgets: tuple[Budget, ...], sent: int, received: int) -> Exceeded | None:
        """Take bytes from every budget, or from none and say which kind is short."""
        for one in budgets:
            before = self.used(one.layer, one.rule)
            if one.sent is not None and sent and before[0] + sent > one.sent:
                return "budget_sent"
            if one.received is not None and received and before[1] + received > one.received:
                return "budget_received"
        for one in budgets:
            before = self.used(one.layer, one.rule)
            now = (before[0] + sent, before[1] + received)
            if self._kept is not None:
                try:
                    self._kept.spend(one.layer, one.rule, *now)
                except NoRoom:  # a budget that would be forgotten is none
                    return "budget_sent" if sent else "budget_received"
            self._used[one.layer, one.rule] = now
        return None
