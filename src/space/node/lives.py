"""The transitions of a sandbox: how each life begins and ends. All of it runs in the sandbox's one task.

    prepare              the first life: cold, or a clone of a snapshot          fails as a whole: only the row is left
    suspend              snapshot on stable storage -> row -> VMM killed, everything undone              fails: it goes on
    stop                 guest shut down -> disk on stable storage -> compute freed                      fails: the VMM is killed
    wake, roll back      a new generation: restored, or booted from the disk                             fails: back to what is stored
    checkpoint, fork     an instant beside the life that goes on

The row is written before the host is changed, so that a node which dies anywhere is followed by one that knows what was meant
(`core.lifecycle.recovery`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from space.core.lifecycle import recovery
from space.core.lifecycle.table import Accept, Ignore, Refuse, Request, answer
from space.model.errors import Conflict, Gone, Internal, NoCapacity, NotFound, SandboxDied, SpaceError
from space.model.ids import new_snapshot_id
from space.model.rootd import KeepTemplate
from space.model.sandbox import Phase
from space.node import limits, steps
from space.node.egress import Told, Traffic
from space.node.guest import Guest
from space.node.halting import ROOM, STALLED, halt, halt_found, unless_stalled
from space.node.ledger import Checkpoint, Kept, Record
from space.node.life import Life, Origin
from space.node.processes import Processes
from space.node.stages import Stage, timed
from space.node.surroundings import Surroundings
from space.node.vmm.seam import SnapshotPlan, Taken
from space.rpc import life_api

log = logging.getLogger(__name__)
# A create that the ledger does not know is given up, and so is a life. What ends has ended, whatever the ledger can take.
_WRITTEN_FIRST = (Request.BEGIN, Request.READY, Request.SUSPEND, Request.STOP, Request.WAKE, Request.START, Request.ROLLBACK)
# How a row that is on its way comes to rest.
_COMING_TO_REST: dict[tuple[Phase, Phase], Request] = {
    (Phase.SUSPENDING, Phase.SUSPENDED): Request.STORED,
    (Phase.WAKING, Phase.SUSPENDED): Request.UNWOKEN,
    (Phase.STARTING, Phase.SUSPENDED): Request.UNWOKEN,
    (Phase.STOPPING, Phase.SUSPENDED): Request.UNWOKEN,
    (Phase.STOPPING, Phase.STOPPED): Request.HALTED,
    (Phase.STARTING, Phase.STOPPED): Request.UNSTARTED,
}

_SAME: Any = object()


class Lives:
    """The part of a `Sandbox` that changes it."""

    record: Record
    processes: Processes

    def __init__(self, record: Record, around: Surroundings) -> None:
        self.record = record
        self._around = around
        self._life = Life(self, around)
        self._was_running = False
        self._adopting = False
        self.booted = False  # from its disk, and what its template starts has not been started yet
        self.becoming: asyncio.Task[None] | None = None  # what its template starts is not known to be ready before that is over

    # -- the first life ------------------------------------------------------------------------------------------

    async def _prepare(self, origin: Origin) -> None:
        origin = await self._prepare_life(origin)
        # A clone keeps what its template's guest ran when it was baked, and no more: usually nothing.
        if origin.restore and (self.processes.running or not self.record.origin):
            await self._life.while_alive(self.processes.reattach(restarted=False))
        self._become(Request.READY)
        self._was_running, self.booted = True, not origin.restore

    async def _prepare_life(self, origin: Origin) -> Origin:
        """Prepared from there; a clone of a template that cannot be is booted instead, from the same disk."""
        try:
            await self._life.prepare(origin, lambda: self._become(Request.BEGIN))
        except SpaceError as error:
            if not self.record.origin or not self._life.has_place:
                raise
            log.warning("%s: not a clone: %s; it is booted", self.record.sandbox, error)
            self.processes.clear()
            self.record = msgspec.structs.replace(self.record, start="cold", origin="")
            await self._life.boot_instead()
            return Origin()
        return origin

    async def _adopt(self) -> None:
        machine = await self._around.vmm.adopt(self._life.op.sandbox, self.record.generation)
        if machine is None:
            raise SandboxDied(recovery.VMM_DIED)
        life = self._life
        life.take(machine)
        async with asyncio.timeout(limits.RECONNECT):
            # A node that died in the middle of a pause or a resume left either state; for hello the guest must run.
            await machine.resume()
            await life.while_alive(life.open_channel(reconnect=True))
            await life.while_alive(self.processes.reattach())
            if self.record.phase is Phase.PAUSED:
                await life.stand()
        if self.record.phase is not Phase.PAUSED:
            await life.set_clock("the node's restart")
        self._adopting = False
        if self.record.phase is Phase.SUSPENDING:
            self._become(Request.WENT_ON, snapshot="", snapshot_bytes=0)

    async def _found_dead(self, reason: str) -> None:
        raise SandboxDied(reason)

    async def _found_at_rest(self, phase: Phase) -> None:
        """What an earlier node left of a life is undone; what is stored stays."""
        if phase is Phase.SUSPENDED:
            await self._life.undo_all()
            self._come_to_rest(phase)
            return
        if self.record.phase is Phase.STOPPING:
            await halt_found(self._life, self._around.vmm)
        await self._life.free_compute()
        if self.record.phase is not phase:
            await self._rest_on_disk()

    # -- pause and resume ----------------------------------------------------------------------------------------

    async def _switch(self, request: Request) -> None:
        life = self._life
        assert life.machine is not None and life.guest is not None, "only a running or paused sandbox gets here"  # noqa: PT018
        if request is Request.PAUSE:
            await life.stand()
        else:
            await life.go_on()
            await life.set_clock("its resume")  # it stood still
        self._become(request)

    # -- ends ----------------------------------------------------------------------------------------------------

    async def _suspend(self) -> None:
        """Memory and disk go to the storage, and only then anything is undone."""
        paused, snapshot = self.record.phase is Phase.PAUSED, new_snapshot_id()
        self._become(Request.SUSPEND, snapshot=snapshot, stages_ms={}, reason=None)
        try:
            taken = await self._take(SnapshotPlan(snapshot, durable=True, resume=False), paused=paused, sync=True)
            async with self.stage(Stage.RECORD):
                self.keep(msgspec.structs.replace(self.record, snapshot_bytes=taken.private_bytes))
                await self._around.ledger.durable()
        except SpaceError as error:
            await self._go_on(error, paused=paused)
            return
        self.processes.parted()
        async with self.stage(Stage.UNDO):
            await self._life.undo_all()
        self._become(Request.STORED)

    async def _go_on(self, error: SpaceError, *, paused: bool) -> None:
        """There is no snapshot. The machine runs on, if it does."""
        log.warning("%s: not suspended: %s", self.record.sandbox, error)
        life, snapshot = self._life, self.record.snapshot
        self.keep(msgspec.structs.replace(self.record, snapshot="", snapshot_bytes=0))
        self._let_go_of(snapshot)  # it may have been committed, and the answer lost
        if life.machine is not None and life.guest is not None and not paused:
            await life.go_on()
            await life.set_clock("a suspension that failed")
        self._become(Request.STOOD if paused else Request.WENT_ON, f"it could not be suspended: {error.message}")

    async def _take(self, plan: SnapshotPlan, *, paused: bool, sync: bool) -> Taken:
        """A snapshot. The machine stands still for it, and stays so without `resume`, or runs again."""
        life = self._life
        assert life.machine is not None and life.guest is not None, "it lives"  # noqa: PT018
        if sync and not paused:
            async with self.stage(Stage.SYNC):
                try:
                    async with asyncio.timeout(limits.SYNC):
                        await unless_stalled(life, life.guest.prepare_snapshot())
                except TimeoutError:
                    log.warning(
                        "%s: its guest did not write its files within %g s; they are stored as they are", life.op.sandbox, limits.SYNC
                    )
        if not paused:
            life.guest.hold()  # its silence means nothing
        try:
            async with self.stage(Stage.SNAPSHOT):
                taken = await life.machine.snapshot(plan, life)
            self.lap(Stage.STOPPED, taken.stopped_ms)
            return taken
        finally:
            if not paused and plan.resume:
                life.guest.release()

    async def _stop(self) -> None:
        """Its guest ends in order, then its disk is on stable storage, and its compute is freed."""
        if self._life.stalled.is_set():
            raise NoCapacity(f"sandbox {self.record.sandbox} cannot be shut down: {STALLED}", hint=ROOM)
        suspended = self.record.phase is Phase.SUSPENDED
        paused = self.record.phase is Phase.PAUSED
        self._become(Request.STOP, stages_ms={}, reason=None)
        if suspended:
            await self._stop_suspended()
            return
        async with self.stage(Stage.HALT):
            await halt(self._life, paused=paused)
        self.processes.lose("the sandbox was stopped")
        async with self.stage(Stage.UNDO):
            await self._life.free_compute()
        await self._rest_on_disk()

    async def _rest_on_disk(self) -> None:
        op = self._life.op
        async with self.stage(Stage.STORE):
            await asyncio.to_thread(_sync, self._around.disk_of(op.sandbox))
            await self._around.rootd.renew_sandbox(op.sandbox, op.generation, op.generation)
        async with self.stage(Stage.RECORD):
            self._come_to_rest(Phase.STOPPED, snapshot="", snapshot_bytes=0)
            await self._around.ledger.durable()

    async def _stop_suspended(self) -> None:
        """Its disk is taken out of the snapshot, its memory is dropped, and nothing is booted."""
        snapshot = self.record.snapshot
        self.record = msgspec.structs.replace(self.record, host="")
        self._life = Life(self, self._around)
        try:
            async with self.stage(Stage.DISK):
                await self._life.take_disk_out(snapshot)
        except SpaceError as error:
            await self._life.undo_all()
            self._come_to_rest(Phase.SUSPENDED, reason=f"it could not be stopped: {error.message}")
            return
        self.processes.lose("the sandbox was stopped")
        try:
            await self._rest_on_disk()
        finally:
            if self.record.snapshot != snapshot:
                self._let_go_of(snapshot)

    # -- begins --------------------------------------------------------------------------------------------------

    async def _wake(self, asked: life_api.Wake | life_api.Rollback) -> None:
        """Another life, of a sandbox that is at rest. SpaceError before anything was changed; afterwards it falls back by itself."""
        record, around = self.record, self._around
        wish = Request.ROLLBACK if isinstance(asked, life_api.Rollback) else Request.START if asked.cold else Request.WAKE
        checkpoint = self._checkpoint_of(asked.checkpoint) if isinstance(asked, life_api.Rollback) else None
        if asked.generation <= record.generation:
            raise Conflict(f"sandbox {record.sandbox} has had generation {record.generation}, {asked.generation} is no new life")
        if record.phase is Phase.FAILED and not record.snapshot and self._life.slot is None and checkpoint is None:
            raise Gone(f"sandbox {record.sandbox} has failed and left no disk: {record.reason}", hint="delete it and create another")
        around.egress.policies.check(asked.policy)
        if checkpoint is None:
            around.gate.enter(record.sandbox, record.memory_mib)
        try:
            await self._begin_again(asked, wish, checkpoint)
        except BaseException:
            if self.record.phase is not Phase.RUNNING:
                around.gate.leave(record.sandbox)
            raise

    def _checkpoint_of(self, name: str) -> Checkpoint:
        found = next((each for each in self.record.checkpoints if each.name == name), None)
        if found is None:
            raise NotFound(f"sandbox {self.record.sandbox} has no checkpoint {name}")
        return found

    async def _begin_again(self, asked: life_api.Wake | life_api.Rollback, wish: Request, checkpoint: Checkpoint | None) -> None:
        before = self.record
        snapshot = checkpoint.snapshot if checkpoint else before.snapshot
        cold = isinstance(asked, life_api.Wake) and asked.cold
        stored = {"snapshot": snapshot, "snapshot_bytes": 0 if checkpoint else before.snapshot_bytes}
        self._become(wish, stages_ms={}, reason=None, **stored)
        origin = Origin(snapshot, restore=not cold) if snapshot else Origin(disk=self._life.op.generation)
        fresh: dict[str, Any] = {
            "generation": asked.generation,
            "policy": asked.policy,
            "policy_generation": asked.policy_generation,
            "env": before.env if asked.env is None else asked.env,
            "labels": before.labels if asked.labels is None else asked.labels,
            "start": "restore" if snapshot and not cold else "cold",
            "origin": "",
            "host": "" if snapshot else before.host,
        }
        try:
            if checkpoint is not None:
                await self._give_up_present(before, checkpoint)
            record = msgspec.structs.replace(self.record, **fresh)
            self._around.ledger.put(record)
            self.record = record
            self._publish()
            if not origin.restore:
                self.processes.lose("the sandbox was started anew")
            self._life = Life(self, self._around)
            await self._life.prepare(origin)
            if origin.restore:
                await self._life.while_alive(self.processes.reattach(restarted=False))
            self._become(Request.READY, snapshot="", snapshot_bytes=0)
        except Exception as error:
            await self._fall_back(error, origin)
            if isinstance(error, SpaceError):
                raise
            raise Internal(f"it could not be woken: a fault of the node: {type(error).__name__}", hint="its log says which") from error
        self._was_running, self.booted = True, not origin.restore
        self._let_go_of(snapshot)

    async def _give_up_present(self, before: Record, checkpoint: Checkpoint) -> None:
        """From here on the sandbox is that checkpoint, and nothing else of it is left."""
        self.processes.go_back(checkpoint.processes, "the sandbox was rolled back")
        self.processes.parted()
        await self._life.undo_all()
        if before.snapshot != checkpoint.snapshot:
            self._let_go_of(before.snapshot)
        self._around.gate.enter(self.record.sandbox, self.record.memory_mib)  # it has just left: nobody came in between

    def _let_go_of(self, snapshot: str) -> None:
        """Nothing needs it any more, unless it is a checkpoint. Soon, and for sure."""
        if snapshot and snapshot not in (each.snapshot for each in self.record.checkpoints):
            self._around.releases.later(self._around.releases.snapshot(snapshot))

    async def _fall_back(self, error: Exception, origin: Origin) -> None:
        """What was stored is what there is. Nothing of it was touched by the life that did not begin."""
        steps.log_failure(self.record, self._life.machine, str(error), error)
        self.processes.parted()
        reason = f"it could not be woken: {error}"
        if origin.snapshot:
            await self._life.undo_all()
            self._come_to_rest(Phase.SUSPENDED, reason=reason)
        else:
            await self._life.free_compute()
            generation = await self._life.find_generation()
            self._come_to_rest(Phase.STOPPED, reason=reason, generation=generation)

    # -- instants ------------------------------------------------------------------------------------------------

    async def _checkpoint(self, asked: life_api.Checkpoint) -> None:
        if any(each.name == asked.checkpoint for each in self.record.checkpoints):
            return
        if len(self.record.checkpoints) >= life_api.MOST_CHECKPOINTS:
            raise Conflict(f"sandbox {self.record.sandbox} has {len(self.record.checkpoints)} checkpoints", hint="drop some")
        snapshot, kept = new_snapshot_id(), self.processes.instant()
        taken = await self._take_beside(SnapshotPlan(snapshot, durable=True), sync=True)
        made = Checkpoint(asked.checkpoint, snapshot, taken.private_bytes, taken.stopped_ms, time.time_ns() // 1000, kept)
        record = msgspec.structs.replace(self.record, checkpoints=[*self.record.checkpoints, made])
        try:
            async with self.stage(Stage.RECORD):
                self._around.ledger.put(record)
                await self._around.ledger.durable()
        except BaseException:
            self._let_go_of(snapshot)
            raise
        self.record = record
        self._publish()

    async def _instant(self, plan: SnapshotPlan) -> tuple[Taken, list[Kept]]:
        """For others: children, which copy it at once, or all clones of a template, which may also boot from its disk."""
        kept = self.processes.instant()
        taken = await self._take_beside(plan, sync=plan.durable)
        self._publish()
        return taken, kept

    async def _take_beside(self, plan: SnapshotPlan, *, sync: bool) -> Taken:
        try:
            return await self._take(plan, paused=self.record.phase is Phase.PAUSED, sync=sync)
        except BaseException:
            self._let_go_of(plan.snapshot)  # it may be there, and nobody will name it
            raise

    async def _keep_disk(self, asked: KeepTemplate) -> None:
        paused, life = self.record.phase is Phase.PAUSED, self._life
        assert life.machine is not None and life.guest is not None, "it lives"  # noqa: PT018
        if not paused:
            async with self.stage(Stage.SYNC):
                await life.while_alive(life.guest.prepare_snapshot())
            await life.stand()
        try:
            await self._around.rootd.keep_template(asked)
        finally:
            if not paused:
                await life.go_on()

    async def drop_checkpoint(self, name: str) -> None:
        """It is gone; idempotent."""
        found = next((each for each in self.record.checkpoints if each.name == name), None)
        if found is None:
            return
        left = [each for each in self.record.checkpoints if each is not found]
        if found.snapshot == self.record.snapshot:
            raise Conflict(f"sandbox {self.record.sandbox} is at checkpoint {name}", hint="wake it first")
        self.keep(msgspec.structs.replace(self.record, checkpoints=left))
        self._publish()
        self._let_go_of(found.snapshot)

    # -- words ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stage(self, stage: Stage) -> AsyncIterator[None]:
        """A step of the present transition, timed."""
        name = self.record.sandbox
        await self._around.trace(name, stage, "before")
        async with timed(stage) as took:
            yield
        self.record = msgspec.structs.replace(self.record, stages_ms={**self.record.stages_ms, stage.value: took()})
        await self._around.trace(name, stage, "after")

    def lap(self, stage: Stage, milliseconds: float, *, within: Stage | None = None) -> None:
        """What a step took that was measured elsewhere; no part any more of the one within which it was."""
        laps = {**self.record.stages_ms, stage.value: round(milliseconds, 3)}
        if within is not None:
            laps[within.value] = round(max(0.0, laps[within.value] - milliseconds), 3)
        self.record = msgspec.structs.replace(self.record, stages_ms=laps)

    def told(self) -> Told:
        """Who hears of its egress."""
        return Told(self._publish, self._keep_traffic)

    def connected(self, guest: Guest) -> None:
        """Its processes have this guest."""
        self.processes.connected(guest)

    def joined(self) -> None:
        """What its guest keeps of processes that nobody here has any more goes."""
        self.processes.tidy()

    def stalled(self, stands: bool) -> None:
        """Told as the reason of what it is, and in the log."""
        if stands:
            log.warning("%s: the host's disk is full: its guest stands still until there is room for what it writes", self.record.sandbox)
        elif self.record.reason == STALLED:
            log.info("%s: there is room for what its guest writes", self.record.sandbox)
        if self.record.phase in (Phase.RUNNING, Phase.PAUSED) and self.record.reason in (None, STALLED):
            self.keep(msgspec.structs.replace(self.record, reason=STALLED if stands else None))
            self._publish()

    def _keep_traffic(self, traffic: Traffic) -> None:
        self.keep(msgspec.structs.replace(self.record, traffic=traffic.kept(), last_crash=traffic.last_crash))

    def keep(self, record: Record) -> None:
        """Written, or owed on a full disk."""
        self._around.releases.record(record)
        self.record = record

    def _come_to_rest(self, phase: Phase, **changes: Any) -> None:
        """Be there, from whichever phase leads there; one that is there already stays."""
        request = _COMING_TO_REST.get((self.record.phase, phase))
        if request is not None:
            self._become(request, **changes)
        elif changes:
            self.keep(msgspec.structs.replace(self.record, **changes))
            self._publish()

    def _become(self, request: Request, reason: Any = _SAME, **changes: Any) -> None:
        verdict = answer(self.record.phase, request)
        if not isinstance(verdict, Accept):
            return
        if reason is not _SAME:
            changes["reason"] = reason
        record = msgspec.structs.replace(self.record, phase=verdict.phase, **changes)
        if request in _WRITTEN_FIRST:
            self._around.ledger.put(record)
        elif verdict.phase is not Phase.GONE:
            self.keep(record)
        self.record = record
        self._publish()

    def _verdict(self, request: Request) -> Accept | Ignore:
        verdict = answer(self.record.phase, request)
        if isinstance(verdict, Refuse):
            raise verdict.fault(self.record.sandbox, self.record.reason if self.record.phase is Phase.FAILED else None)
        return verdict

    def _publish(self) -> None:
        raise NotImplementedError


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
