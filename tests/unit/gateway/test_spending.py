"""What a sandbox has used of its budgets does not come back with the next worker."""

from __future__ import annotations

from space.core.policy import kept
from space.core.policy.kept import Kept
from space.gateway.budgets import Budget, Spending

BUDGET = (Budget("sandbox", "uploads", 100, None),)


def test_a_budget_that_is_used_up_is_used_up_for_the_next_worker() -> None:
    memory = bytearray(kept.SIZE)
    first = Spending(Kept(memory))
    assert first.charge(BUDGET, 60, 5) is None
    second = Spending(Kept(memory))
    assert second.used("sandbox", "uploads") == (60, 5)
    assert second.charge(BUDGET, 41, 0) == "budget_sent"
    assert second.charge(BUDGET, 40, 0) is None
    assert Spending(Kept(memory)).charge(BUDGET, 1, 0) == "budget_sent"


def test_a_budget_that_could_not_be_kept_is_refused() -> None:
    table = Kept(bytearray(kept.SIZE))
    for number in range(kept.MOST_BUDGETS):
        table.spend("sandbox", f"rule[{number}]", 1, 1)
    assert Spending(table).charge(BUDGET, 1, 0) == "budget_sent"
    assert Spending(table).charge((Budget("sandbox", "rule[7]", 100, None),), 1, 0) is None
