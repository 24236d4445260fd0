"""MemoryNode: a whole node in this process, over a `MemoryHost` and a `FakeVmm`, behind a real socket; it can be killed and followed.

async with MemoryNode(directory) as lab:
    async with lab.connected() as session: ...
lab.crash(); await lab.start()       as after SIGKILL: nothing of the old one acts any more
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from space.config.artefacts import Store, TemplateManifest
from space.core.lifecycle.admission import Capacity
from space.node.archive import Archive
from space.node.board import Board
from space.node.egress import Egress
from space.node.gate import Gate
from space.node.history import History
from space.node.ledger import Ledger
from space.node.node import Node
from space.node.policies import Policies
from space.node.processes import Quota
from space.node.release import Releases
from space.node.slots import Slots
from space.node.stages import Trace, no_trace
from space.node.surroundings import Surroundings
from space.node.verbs import Verbs
from space.node.vmm.accelerator import Accelerators
from space.rpc.session import Door, Session
from space.testing.fakevmm import AnyGuest, FakeVmm
from space.testing.guest import FakeGuest
from space.testing.memoryhost import MemoryHost, MemoryVmm
from space.testing.memoryservices import MemoryServices

ROOMY = Capacity(memory_mib=1 << 20, sandboxes=1000, boots=1000, queue=1000)
QUOTA = Quota()
_DIGEST = "0123456789abcdef"


class Lifeline:
    """rootd as one node sees it. Cut, its operations never begin: that node is dead."""

    def __init__(self, host: MemoryHost) -> None:
        self._host = host
        self._cut = False

    def cut(self) -> None:
        """From now on."""
        self._cut = True

    def vmm(self, sandbox: str) -> MemoryVmm | None:
        """The host's, for the fake driver."""
        return self._host.vmm(sandbox)

    def image(self, sandbox: str) -> object:
        """Likewise."""
        return self._host.image(sandbox)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._host, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if self._cut:
                await asyncio.get_running_loop().create_future()
            return await operation(*arguments, **named)

        return call


class MemoryNode:
    """A node, its host and its services of egress, which live on when it crashes.

    directory: for its ledger, its socket and a store with a `base` template that no byte of is read.
    """

    clones_ahead = 4  # of each size that is warm
    export_key = bytes(32)
    ends_pipes = False  # whether its VMM's snapshots end the pipes of what they are taken of

    def __init__(
        self,
        directory: Path,
        *,
        host: MemoryHost | None = None,
        services: MemoryServices | None = None,
        guests: Callable[[], AnyGuest] = FakeGuest,
        capacity: Capacity = ROOMY,
        trace: Trace = no_trace,
        ready_slots: int = 0,
        quota: Quota = QUOTA,
        retention: float = 3600.0,
        interval: float = 0.0,
        warm: int = 0,
    ) -> None:
        self.host = host or MemoryHost()
        self.services = services or MemoryServices(self.host)
        self.path = directory / "node.sock"
        self._directory = directory
        self._capacity = capacity
        self._trace = trace
        self._ready_slots = ready_slots
        self._quota, self._retention, self._interval = quota, retention, interval
        self._guests, self._warm = guests, warm
        self._lifeline: Lifeline | None = None
        self._door: Door | None = None
        self._node: Node | None = None
        self._listener: socket.socket | None = None

    @property
    def node(self) -> Node:
        """The node that lives."""
        assert self._node is not None, "it was not started"
        return self._node

    async def start(self) -> None:
        """Recover and serve; also after a crash."""
        store = self._directory / "artefacts"
        _make_store(store)
        self.host.store = Store(store, self._directory / "templates")
        self._lifeline = Lifeline(self.host)
        ledger = Ledger(self._directory / "ledger.db")
        rootd: Any = self._lifeline  # a proxy of `MemoryHost`
        egress = Egress(self.services.links, rootd, Policies(self._directory / "policies"), "198.18.0.0/15")
        releases = Releases(rootd, ledger, egress)
        around = Surroundings(
            rootd=rootd,
            vmm=FakeVmm(rootd, self._guests, ends_pipes=self.ends_pipes),
            ledger=ledger,
            gate=Gate(self._capacity),
            slots=Slots(ledger, rootd, releases, egress.synthetic, ready=self._ready_slots),
            egress=egress,
            releases=releases,
            board=Board(),
            accelerators=Accelerators("tcg", self._directory, device_is_there=False, boot_id="boot"),
            archive=Archive(self._directory / "spool", self._quota, self._retention),
            history=History(self._interval),
            disk_of=lambda _: self._directory / "ledger.db",
            export_key=self.export_key,
            warm_templates=self._warm,
            clones_ahead=self.clones_ahead,
            trace=self._trace,
        )
        self._node = Node(around, self.host.store)
        await self._node.recover()
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._door = Door(self._listener, frozenset({os.getuid()}), Verbs(self._node))
        self._door.open()

    def crash(self) -> None:
        """SIGKILL, as far as others can tell."""
        assert self._lifeline is not None, "it lives"
        self._lifeline.cut()
        self.node.warm.stop()
        self.node.around.archive.stop()
        self.node.around.history.stop()
        self.node.around.releases.give_up()
        self.node.around.egress.give_up()
        self.node.around.ledger.close()
        self._shut()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Session]:
        """Control's session."""
        session = await Session.connect(self.path)
        try:
            yield session
        finally:
            await session.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._shut()
        self.services.close()
        self.node.around.ledger.close()

    def _shut(self) -> None:
        if self._door is not None and self._listener is not None:
            self._door.close()
            self._listener.close()
            self._door = None
            self.node.around.releases.give_up()
            self.node.around.egress.give_up()
            self.node.around.history.stop()
            self.node.around.archive.stop()


def _make_store(root: Path) -> None:
    template = root / "template" / _DIGEST
    if template.exists():
        return
    for kind in ("template", "kernel", "initramfs", "qemu"):
        (root / kind / _DIGEST).mkdir(parents=True)
    manifest = TemplateManifest(
        name="base",
        digest=_DIGEST,
        kernel=_DIGEST,
        initramfs=_DIGEST,
        qemu=_DIGEST,
        disk_bytes=1 << 30,
        protocol=1,
        kernel_release="fake",
        source="fake",
    )
    manifest.save(template / "manifest.json")
    (root / "names").mkdir()
    (root / "names" / "base").symlink_to(f"../template/{_DIGEST}")
