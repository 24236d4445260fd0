"""Slot numbers: which are free. A number is a namespace and a uid, so it stays taken while a disk of that uid is there."""

from __future__ import annotations

from space.config.instance import SLOTS
from space.model.errors import NoCapacity
from space.node.ledger import Holding, Kind, Ledger


class Slots:
    """Numbers by the ledger's rows."""

    def __init__(self, ledger: Ledger, count: int = SLOTS) -> None:
        self._ledger = ledger
        self._count = count

    def take(self, sandbox: str, generation: int, tenant: str) -> int:
        """The lowest free number, held in the ledger; NoCapacity when there is none."""
        taken = {int(each.name) for each in self._ledger.holdings() if each.kind is Kind.SLOT}
        slot = next((number for number in range(self._count) if number not in taken), None)
        if slot is None:
            raise NoCapacity(f"all {self._count} slots of this machine are taken", hint="delete sandboxes that have failed")
        self._ledger.hold(Holding(Kind.SLOT, str(slot), sandbox, generation, tenant))
        return slot
