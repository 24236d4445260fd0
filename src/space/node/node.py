"""The node: every sandbox of this machine by id, how one is made, and how all are found again after a crash.

It decides nothing that a table in `core.lifecycle` can decide, and owns no transition: each sandbox's task does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from space.config.artefacts import Store, TemplateManifest
from space.core.lifecycle import recovery
from space.core.lifecycle.recovery import Adopt, Destroy, DestroyOrphan, Discard, Fail, Found, FreeSlot, Keep, Rest, Row
from space.core.lifecycle.table import Refuse, Request, answer
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.ids import new_snapshot_id, sandbox_id, template_name, tenant_id
from space.model.isolation import isolation
from space.model.rootd import SandboxOp
from space.model.sandbox import DEFAULT_DISK_MIB, DEFAULT_TEMPLATE, MIB, Phase
from space.node import becoming, builder, limits, probe
from space.node.builder import Builds
from space.node.bundles import Bundles
from space.node.guest import environment_fits
from space.node.ledger import Baked, Holding, Kind, Record, Size, host_name
from space.node.life import Origin
from space.node.parcels import Parcels
from space.node.sandbox import Instant, Sandbox
from space.node.surroundings import Surroundings
from space.node.templates import Templates
from space.node.vmm.seam import SnapshotPlan
from space.node.warm import TENANT as TENANT_WARM
from space.node.warm import Warm
from space.rpc.life_api import Bake, Child, Fork, TemplateSnapshot
from space.rpc.node_api import Create, Exec, NodeInfo, SandboxState, Target

log = logging.getLogger(__name__)

_LEAST_MEMORY_MIB = 64  # a guest kernel with its initramfs does not come up with less
_MOST_CPUS = 64
_MOST_DISK_MIB = 1 << 20  # 1 TiB, rootd's limit


class Node:
    """One a process."""

    def __init__(self, around: Surroundings, store: Store) -> None:
        self.around = around
        self._store = store
        self._sandboxes: dict[str, Sandbox] = {}
        self._stopping = False
        self._background: set[asyncio.Task[None]] = set()
        self.templates = Templates(around, store)
        self.builds = Builds(around, store, self.templates)
        self.bundles = Bundles(around, store, self.templates, self.builds)
        self.parcels = Parcels(around, self.templates, self.find, self._arrived)
        self.warm = Warm(around, store, around.warm_templates, self._boots, self._origins)
        around.accelerators.probe_with(lambda kernel: probe.probe_kvm(around, store, kernel))

    async def bake(self, asked: Bake) -> None:
        """There is a warm snapshot of that size of a template; InvalidArgument, NotFound, NoCapacity."""
        manifest = self.templates.named(asked.tenant, asked.template, asked.digest)
        verdict = await self.around.accelerators.decide(manifest.kernel)
        disk = asked.disk_mib or max(DEFAULT_DISK_MIB, -(-manifest.disk_bytes // MIB))
        await self.warm.bake(Size(manifest.digest, asked.cpus, asked.memory_mib, disk, verdict.accelerator))

    async def keep_as_template(self, asked: TemplateSnapshot) -> TemplateManifest:
        """A sandbox's disk of this instant is a template of its tenant, which begins as the sandbox's own. It is baked once it was used."""
        sandbox = self.find(Target(asked.sandbox))
        record = sandbox.record
        with suppress(NotFound):  # then the answer to an earlier request was lost
            there = self._store.template_by_digest(asked.digest)
            if there.tenant != record.tenant:
                raise Conflict(f"{asked.digest} is the digest of another template")
            return there
        try:
            template_name(asked.name)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        base = self._store.template_by_digest(record.digest)
        kept = replace(
            base, name=asked.name, digest=asked.digest, kind="template", tenant=record.tenant, created_us=time.time_ns() // 1000,
            source=f"sandbox {record.sandbox}",
        )  # fmt: skip
        await sandbox.keep_disk(asked.digest, kept.settings())
        return self._store.template_by_digest(asked.digest)

    def has_sandboxes_of(self, digest: str) -> bool:
        """Whether any that was asked for is of that template."""
        return any(each.record.digest == digest for each in self._sandboxes.values())

    def _boots(self) -> bool:
        return any(each.phase in (Phase.REQUESTED, Phase.PREPARING, Phase.WAKING, Phase.STARTING) for each in self._sandboxes.values())

    def _origins(self) -> list[str]:
        return [each.record.origin for each in self._sandboxes.values() if each.record.origin] + self.warm.pool.origins()

    # -- sandboxes -----------------------------------------------------------------------------------------------

    def find(self, target: Target) -> Sandbox:
        """The sandbox; NotFound when it is not here, or not in that generation."""
        sandbox = self._sandboxes.get(target.sandbox)
        if sandbox is None:
            raise NotFound(f"sandbox {target.sandbox[:64]} is not on this node")
        if target.generation not in (0, sandbox.record.generation):
            raise NotFound(f"sandbox {target.sandbox} is here in generation {sandbox.record.generation}, not {target.generation}")
        return sandbox

    async def create(self, asked: Create) -> Sandbox:
        """A new sandbox, or the one that is there already. NoCapacity at once when there is no room; nothing is kept then."""
        if (there := self._join(asked)) is not None:
            return there
        manifest = self._checked(asked)
        verdict = await self.around.accelerators.decide(manifest.kernel)
        await self._attach(asked.sandbox, asked.generation, asked.tenant, asked.grants)
        if (there := self._join(asked)) is not None:  # a repeat overtook it during the probe
            return there
        try:
            return self._made(asked, manifest, verdict.accelerator)
        except BaseException:
            self._let_go_of_grants(asked.sandbox)
            raise

    async def _attach(self, sandbox: str, generation: int, tenant: str, grants: list[str]) -> None:
        """Its grants are attached: before anything of it runs, or it is not made. NotFound."""
        if not grants:
            return
        around = self.around
        around.ledger.hold(Holding(Kind.GRANTS, sandbox, sandbox, generation, tenant))
        try:
            await around.egress.services.broker.now().attach_grants(tenant, sandbox, tuple(grants))
        except BaseException:
            self._let_go_of_grants(sandbox)
            raise

    def _let_go_of_grants(self, sandbox: str) -> None:
        if sandbox not in self._sandboxes and self.around.ledger.holds(Kind.GRANTS, sandbox):
            self.around.releases.later(self.around.releases.grants(sandbox))

    def _made(self, asked: Create, manifest: TemplateManifest, accelerator: str) -> Sandbox:
        if self.templates.is_low:
            self._in_background(self.templates.make_room())
        size = Size(manifest.digest, asked.cpus, asked.memory_mib, asked.disk_mib, accelerator)
        baked = self.warm.find(size)
        ahead = self.warm.pool.take(size) if baked and asked.generation == 1 else None
        try:
            self._enter(asked.sandbox, asked.memory_mib)  # what was made ahead gave its memory back for this
        except BaseException:
            if ahead is not None:
                self.warm.pool.put_away(ahead)
            raise
        record = Record(
            sandbox=asked.sandbox,
            tenant=asked.tenant,
            generation=asked.generation,
            template=asked.template,
            digest=manifest.digest,
            cpus=asked.cpus,
            memory_mib=asked.memory_mib,
            disk_mib=asked.disk_mib,
            env={**manifest.env, **asked.env},
            phase=Phase.REQUESTED,
            accelerator=accelerator,
            user=manifest.user,
            cwd=manifest.cwd,
            policy=asked.policy,
            policy_generation=asked.policy_generation,
            labels=asked.labels,
            start="pool" if ahead else "warm" if baked else "cold",
            origin=baked.snapshot if baked else "",
            host=ahead.name if ahead else "",
        )
        if baked:
            self.around.archive.of(asked.sandbox).inherit(baked.heads)
        origin = Origin(baked.snapshot, restore=True, ahead=ahead) if baked else Origin()
        try:
            sandbox = self._keep(Sandbox.create(record, self.around, origin))
        except BaseException:
            if ahead is not None:
                self.warm.pool.put_away(ahead)
            raise
        sandbox.when("opened", lambda: self._came_up(sandbox, size, baked))
        return sandbox

    def _enter(self, sandbox: str, memory_mib: int) -> None:
        """Take its memory at the gate, for which what is warm gives way."""
        while True:
            try:
                return self.around.gate.enter(sandbox, memory_mib)
            except NoCapacity:
                if not self.warm.make_room():
                    raise

    def _came_up(self, sandbox: Sandbox, size: Size, baked: Baked | None) -> None:
        """It is there, or not: was it what it was to be?"""
        if sandbox.record.generation != 1 or sandbox.phase is not Phase.RUNNING:
            return
        if sandbox.record.start != "cold":
            self.warm.came_up(size)
        elif baked is not None:
            self.warm.spoiled(size, baked.snapshot)
        else:
            self.warm.missed(size)

    async def fork(self, asked: Fork) -> tuple[Instant, list[Sandbox]]:
        """Children of one instant of a sandbox. All or none is admitted; each may fail for itself afterwards."""
        parent = self.find(Target(asked.sandbox))
        if there := [child.sandbox for child in asked.children if child.sandbox in self._sandboxes]:
            raise Conflict(f"sandbox {there[0]} is here already")
        if len({child.sandbox for child in asked.children}) != len(asked.children):
            raise InvalidArgument("two children have one id")
        for child in asked.children:
            self.around.egress.policies.check(child.policy)
            environment_fits(parent.record.env if child.env is None else child.env)
        entered: list[str] = []
        try:
            for child in asked.children:
                self.around.gate.enter(child.sandbox, parent.record.memory_mib)
                entered.append(child.sandbox)
            for child in asked.children:
                await self._attach(child.sandbox, child.generation, parent.record.tenant, child.grants)
            instant = await parent.instant(SnapshotPlan(new_snapshot_id()))
        except BaseException:
            for name in entered:
                self.around.gate.leave(name)
                self._let_go_of_grants(name)
            raise
        children: list[Sandbox] = []
        try:
            for child in asked.children:
                children.append(self._child(parent, child, instant))
                entered.remove(child.sandbox)
        finally:
            for name in entered:
                self.around.gate.leave(name)
                self._let_go_of_grants(name)
            self._in_background(self._discard_after(instant.snapshot, children))
        return instant, children

    def _child(self, parent: Sandbox, child: Child, instant: Instant) -> Sandbox:
        record = msgspec.structs.replace(
            parent.record,
            sandbox=child.sandbox,
            generation=child.generation,
            env=parent.record.env if child.env is None else child.env,
            phase=Phase.REQUESTED,
            reason=None,
            stages_ms={},
            policy=child.policy,
            policy_generation=child.policy_generation,
            labels=parent.record.labels if child.labels is None else child.labels,
            forked=True,
            traffic={},
            last_crash=None,
            start="fork",
            snapshot="",
            snapshot_bytes=0,
            checkpoints=[],
            origin="",
            host="",
        )
        self.around.archive.of(child.sandbox).inherit(parent.processes.heads(instant.kept))
        return self._keep(Sandbox.create(record, self.around, Origin(instant.snapshot, restore=True)))

    def _arrived(self, record: Record) -> Sandbox:
        """It came as a file, and is suspended."""
        if record.sandbox in self._sandboxes:
            raise Conflict(f"sandbox {record.sandbox} is here already")
        return self._keep(Sandbox.at_rest(record, self.around))

    async def _discard_after(self, snapshot: str, children: list[Sandbox]) -> None:
        for child in children:
            await child.opened()
        await self.around.releases.snapshot(snapshot)

    async def delete(self, target: Target) -> SandboxState:
        """Gone; a sandbox that is not here (any more) is gone already."""
        try:
            sandbox = self.find(target)
        except NotFound:
            return SandboxState(target.sandbox, "", target.generation, Phase.GONE.value, self.around.board.revision, "")
        return await sandbox.delete()

    async def info(self) -> NodeInfo:
        """What an operator reads."""
        templates = self._store.templates()
        chosen = next((each for each in templates if each.name == DEFAULT_TEMPLATE), templates[0] if templates else None)
        accelerator = "tcg"  # while it is not known, the node promises no more than that
        if chosen is not None:
            with suppress(SpaceError):
                accelerator = (await self.around.accelerators.decide(chosen.kernel)).accelerator
        gate = self.around.gate
        return NodeInfo(
            isolation=isolation(accelerator),
            accelerator=accelerator,
            templates=[each.name for each in templates],
            sandboxes=len(self._sandboxes),
            max_sandboxes=gate.capacity.sandboxes,
            memory_mib=gate.capacity.memory_mib,
            memory_used_mib=gate.memory_mib,
            warm=self.warm.known,
            ahead=self.warm.pool.ready,
        )

    def _begin(self, sandbox: Sandbox) -> None:
        """Its template's start command, in the background, after each boot. How it does is seen in the list of processes."""
        booted, sandbox.booted = sandbox.booted, False
        if not booted or sandbox.phase is not Phase.RUNNING:
            return
        with suppress(SpaceError):  # it was deleted, and sandboxes of it live on
            manifest = self._store.template_by_digest(sandbox.record.digest)
            if manifest.start:
                self._start_command(sandbox, manifest)
                if manifest.ready:
                    becoming.begin(sandbox, manifest)

    @staticmethod
    def _start_command(sandbox: Sandbox, manifest: TemplateManifest) -> None:
        argv = list(manifest.start)
        try:
            sandbox.processes.start(
                Exec(
                    sandbox.record.sandbox, argv, cwd=manifest.cwd or None, user=manifest.user or None, attach=False, overflow="drop_oldest"
                ),
                sandbox.placeholders(),
            )
        except SpaceError as error:
            log.warning("%s: its start command %s cannot be started: %s", sandbox.record.sandbox, argv[:1], error)

    def _join(self, asked: Create) -> Sandbox | None:
        there = self._sandboxes.get(asked.sandbox)
        if there is None:
            return None
        if (there.record.tenant, there.record.generation) != (asked.tenant, asked.generation):
            raise Conflict(f"sandbox {asked.sandbox} is here already in generation {there.record.generation}")
        verdict = answer(there.phase, Request.CREATE)
        if isinstance(verdict, Refuse):
            raise verdict.fault(asked.sandbox)
        return there

    def _checked(self, asked: Create) -> TemplateManifest:
        try:
            sandbox_id(asked.sandbox)
            tenant_id(asked.tenant)
            template_name(asked.template)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        if asked.generation < 1:
            raise InvalidArgument(f"generation is at least 1, not {asked.generation}")
        most = min(_MOST_CPUS, os.cpu_count() or 1)  # a guest with more than the machine has does not even boot in time
        if not 1 <= asked.cpus <= most:
            raise InvalidArgument(f"cpus is 1 to {most} on this machine, not {asked.cpus}")
        if asked.memory_mib < _LEAST_MEMORY_MIB:
            raise InvalidArgument(f"memory_mib is at least {_LEAST_MEMORY_MIB}, not {asked.memory_mib}")
        manifest = self.templates.named(asked.tenant, asked.template, asked.digest)
        least = -(-manifest.disk_bytes // MIB)
        if not least <= asked.disk_mib <= _MOST_DISK_MIB:
            raise InvalidArgument(f"disk_mib is {least} (the size of template {asked.template}) to {_MOST_DISK_MIB}, not {asked.disk_mib}")
        environment_fits({**manifest.env, **asked.env})
        self.around.egress.policies.check(asked.policy)
        return manifest

    def _keep(self, sandbox: Sandbox) -> Sandbox:
        name = sandbox.record.sandbox
        self._sandboxes[name] = sandbox
        sandbox.when("opened", self._keep_slots)
        if sandbox.record.tenant != builder.TENANT:
            sandbox.when("opened", lambda: self._begin(sandbox))
        sandbox.when("over", self._keep_slots)
        sandbox.when("gone", lambda: self._sandboxes.pop(name, None))
        if self.around.warm_templates:
            for what in ("opened", "over", "gone"):
                sandbox.when(what, self.warm.look)
        return sandbox

    def _keep_slots(self) -> None:
        """Slots ahead for a node that has sandboxes, none for one that has not. Off a create's path: one has just come up, or ended."""
        if self._stopping:
            return
        phases = {sandbox.phase for sandbox in self._sandboxes.values()}
        if self.warm.known or phases & {Phase.RUNNING, Phase.PAUSED}:  # where a slot is half of a clone's time, an idle node has some
            self.around.slots.refill()
        elif not phases & {Phase.REQUESTED, Phase.PREPARING, Phase.WAKING, Phase.STARTING}:
            self.around.slots.rest()

    # -- after a crash -------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Adopt what runs, and undo what an earlier node left half done. Releases may go on, and adoptions of guests that are slow."""
        self.around.archive.load()
        records = {record.sandbox: _as_left(record) for record in self.around.ledger.records()}
        found = await self.around.rootd.describe()
        rows = [
            Row(
                host_name(record),
                record.generation,
                record.phase,
                self.around.ledger.slot_of(record.sandbox),
                record.reason,
                record.snapshot,
                frozenset(each.snapshot for each in record.checkpoints),
            )
            for record in records.values()
        ]
        sandboxes = [Found(each.sandbox, each.generation, each.slot, each.alive) for each in found.sandboxes]
        there = await self.around.rootd.list_snapshots()
        snapshots = [each.snapshot for each in there if not each.shared]
        by_host = {host_name(record): record for record in records.values()}
        steps = recovery.plan(rows, found.slots, sandboxes, snapshots)
        adopting: list[Sandbox] = []
        for step in steps:
            log.info("recovery: %s", step)
            match step:
                case Adopt() | Fail() | Keep() | Rest() | Destroy():
                    record = msgspec.structs.replace(by_host[step.row.sandbox], generation=step.row.generation)
                    sandbox = self._keep(Sandbox.recover(record, self.around, step))
                    if isinstance(step, Adopt):
                        adopting.append(sandbox)
                case DestroyOrphan(found=orphan):
                    self._in_background(self._destroy_orphan(SandboxOp(orphan.sandbox, orphan.generation), orphan.slot))
                case Discard(snapshot=snapshot):
                    self._in_background(self.around.releases.snapshot(snapshot))
                case FreeSlot(slot=slot):
                    self._in_background(self.around.slots.free(slot))
        await self.bundles.tidy()
        self.around.egress.start()  # whom nobody knows now, nobody will
        await self._adopted(adopting)
        self._drop_rows_of_nobody(records)
        self.warm.recover(there)
        self.around.archive.retire_strangers(set(self._sandboxes))

    @staticmethod
    async def _adopted(sandboxes: list[Sandbox]) -> None:
        if not sandboxes:
            return
        openings = {asyncio.ensure_future(sandbox.opened()): sandbox for sandbox in sandboxes}
        _, late = await asyncio.wait(openings, timeout=limits.ADOPTIONS)
        for opening in late:
            opening.cancel()  # the wait; the adoption itself is its sandbox's
            log.warning("%s: not taken over within %g s; that goes on", openings[opening].record.sandbox, limits.ADOPTIONS)

    def _drop_rows_of_nobody(self, records: dict[str, Record]) -> None:
        for holding in self.around.ledger.holdings():  # also of clones that were made ahead: they went with their node
            if holding.sandbox in records or holding.sandbox in self._sandboxes:
                continue
            if holding.kind is Kind.GRANTS:
                self.around.releases.later(self.around.releases.grants(holding.name))
            else:
                self.around.releases.row(holding.kind, holding.name)

    async def _destroy_orphan(self, op: SandboxOp, slot: int) -> None:
        releases = self.around.releases
        await releases.vmm(op)
        await releases.egress(op)
        await releases.files(op)
        if not any(self.around.ledger.slot_of(name) == slot for name in self._sandboxes):
            await self.around.slots.free(slot)

    async def stop(self, seconds: float) -> None:
        """Undo what is half made, at most so long, and let go of the rest, which runs on for the next node."""
        self._stopping = True
        self.warm.stop()
        half = [each for each in self._sandboxes.values() if each.phase in (Phase.REQUESTED, Phase.PREPARING, Phase.DELETING)]
        for sandbox in half:
            sandbox.ask_delete()
        if half:
            await asyncio.wait({asyncio.ensure_future(sandbox.delete()) for sandbox in half}, timeout=seconds)
        endings = {asyncio.ensure_future(each) for each in (self.around.slots.drain(), self.warm.drain(), self.warm.pool.drain())}
        await asyncio.wait(endings, timeout=seconds)
        self.around.releases.give_up()
        await self.around.egress.stop()
        self.around.history.stop()
        self.around.archive.write()
        self.around.archive.stop()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="recovery")
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _as_left(record: Record) -> Record:
    """A row as a recovery sees it: nobody waits for a probe."""
    return msgspec.structs.replace(record, phase=Phase.DELETING) if record.tenant in (probe.TENANT, builder.TENANT, TENANT_WARM) else record
