"""Where a request that names a sandbox goes: whose it is, which one, which of its ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from space.control.e2b.ids import to_e2b
from space.control.e2b.store import Extras
from space.control.records import Record


@dataclass(frozen=True, slots=True)
class Seat:
    """It was let in. sandbox: our id."""

    tenant: str
    sandbox: str
    port: int


def environment(record: Record, extras: Extras) -> dict[str, str]:
    """What every process of a sandbox has in its environment, below what its own request says."""
    return {
        **(record.spec.env if extras.env is None else extras.env),
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": to_e2b(record.id),
        "E2B_TEMPLATE_ID": extras.template or record.spec.template,
    }


def metadata(record: Record, extras: Extras) -> Mapping[str, str]:
    """As E2B's clients gave it: what ours has a form for, and the rest."""
    return {**record.spec.metadata, **extras.metadata}
