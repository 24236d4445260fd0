"""Whether an answer may be dialled: the table, the host's own addresses of this moment, the ranges that the operator lists.

Only `vet` makes a `Checked`, and `connect` takes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from space.core.policy.addresses import Address, Network, Ranges, Undialable, judge_all


@dataclass(frozen=True, slots=True)
class Checked:
    """Addresses that may be dialled, every one, at the time of the check."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class NotChecked:
    """None of them may. reason: `address_` and the table's word, or that own addresses cannot be known."""

    reason: str
    denied: bool = True


class Vetter:
    """own: the host's addresses now, OSError when they cannot be known. listed: the operator's ranges."""

    def __init__(self, own: Callable[[], frozenset[Address]], listed: Sequence[Network] = ()) -> None:
        self._own = own
        self._listed = tuple(listed)

    def vet(self, answers: Sequence[Address]) -> Checked | NotChecked:
        """An answer as a whole: one address that may not be dialled condemns all."""
        try:
            own = self._own()
        except OSError:
            return NotChecked("own_addresses_unknown", denied=False)
        verdict = judge_all(answers, Ranges(own, self._listed))
        if isinstance(verdict, Undialable):
            return NotChecked(f"address_{verdict.kind.replace('-', '_')}")
        return Checked(tuple(answers))
