"""What every sandbox of a node shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from space.node.archive import Archive
from space.node.board import Board
from space.node.egress import Egress
from space.node.gate import Gate
from space.node.history import History
from space.node.ledger import Ledger
from space.node.ops import Rootd
from space.node.release import Releases
from space.node.slots import Slots
from space.node.stages import Trace, no_trace
from space.node.vmm.accelerator import Accelerators
from space.node.vmm.seam import Vmm


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Made once, by the composition root."""

    rootd: Rootd
    vmm: Vmm
    ledger: Ledger
    gate: Gate
    slots: Slots
    egress: Egress
    releases: Releases
    board: Board
    accelerators: Accelerators
    archive: Archive
    history: History
    disk_of: Callable[[str], Path]  # a sandbox's disk, to have it on stable storage
    export_key: bytes  # seals sandboxes that go out as files
    warm_templates: int = 0
    clones_ahead: int = 4
    trace: Trace = no_trace
