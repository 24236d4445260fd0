"""Warm templates: snapshots of a template's guest that is up and ready, in the sizes that are asked for. A sandbox of one is a clone.

    a create of a size that is not warm boots cold -> once it is up, that size is baked: booted, started, ready, snapshot, deleted
    a create of a size that is warm is a clone of the snapshot, whose memory is held once for all

Baking waits until the node has nothing else to boot, one at a time, and takes no room from anybody: what is held is let go when a sandbox
needs its memory. The default size of the base template is baked when a node that keeps templates warm has had nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from space.config.artefacts import Store, TemplateManifest
from space.model.errors import BuildFailed, DeadlineExceeded, NoCapacity, SpaceError
from space.model.ids import new_sandbox_id, new_snapshot_id
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_DISK_MIB, DEFAULT_MEMORY_MIB, DEFAULT_TEMPLATE, MIB, Phase
from space.node import limits
from space.node.board import Board
from space.node.ledger import Baked, Record, Size
from space.node.pool import Pool
from space.node.sandbox import Sandbox
from space.node.surroundings import Surroundings
from space.node.vmm.seam import SnapshotPlan
from space.rpc import node_api as api
from space.rpc.rootd_client import SnapshotOnHost

log = logging.getLogger(__name__)
# No tenant has this name (it does not begin with a letter).
TENANT = "-warm"
_READY_PAUSE = 0.2
_MOST_SPOILT = 3


class Warm:
    """One a node. most: sizes that are kept, 0 for none. busy: whether the node has something to boot. users: snapshots in use."""

    def __init__(self, around: Surroundings, store: Store, most: int, busy: Callable[[], bool], users: Callable[[], Iterable[str]]) -> None:
        self._around, self._store, self._most = around, store, most
        self._busy, self._users = busy, users
        self._ready: dict[Size, Baked] = {}  # held; the last used one last
        self._refused: set[Size] = set()  # that could not be baked: a create is not slowed down twice for it
        self._spoilt: dict[Size, int] = {}  # snapshots one after the other of which a clone did not come up
        self._baking = asyncio.Lock()
        self._news = asyncio.Event()
        self.pool = Pool(around, busy)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted: set[Size] = set()

    # -- what a create asks --------------------------------------------------------------------------------------

    def find(self, size: Size) -> Baked | None:
        """What a sandbox of that size is cloned from, if it is warm."""
        found = self._ready.pop(size, None)
        if found is not None:
            self._ready[size] = found
            self.pool.wanted(found)
        return found

    @property
    def known(self) -> int:
        """Sizes that are warm."""
        return len(self._ready)

    def missed(self, size: Size, *, yields: bool = False) -> None:
        """A sandbox of that size had to be booted, and is up: bake it, when there is time. yields: nothing that is warm gives way to it."""
        if self._most and size not in self._ready and size not in self._wanted and size not in self._refused:
            self._wanted.add(size)
            self._in_background(self._bake_in_time(size, yields), f"bake {size.digest[:8]}")

    def came_up(self, size: Size) -> None:
        """A clone of it is there."""
        self._spoilt.pop(size, None)

    def spoiled(self, size: Size, snapshot: str) -> None:
        """A clone of it did not come up, and was booted: nothing is cloned from it any more.

        The machine may have been the reason (a VMM that was killed, a host that was too busy), so the size is baked anew; one whose
        snapshots are spoilt again and again is not.
        """
        found = self._ready.get(size)
        if found is not None and found.snapshot == snapshot:
            del self._ready[size]
            self.pool.let_go(size)
            self._in_background(self._forget(found), "forget")
            self._spoilt[size] = self._spoilt.get(size, 0) + 1
            if self._spoilt[size] < _MOST_SPOILT:
                self.missed(size)
            else:
                log.warning("%s is not kept warm: %d snapshots of it came to nothing", size, self._spoilt[size])
                self._refused.add(size)

    def make_room(self) -> bool:
        """Let the memory of what was not used for longest go; False when nothing is held."""
        if self.pool.let_go():
            return True
        if not self._ready:
            return False
        size = next(iter(self._ready))
        found = self._ready.pop(size)
        self._around.gate.give_back(found.snapshot)
        self._in_background(self._forget(found), "forget")
        return True

    async def bake(self, size: Size) -> None:
        """There is a warm snapshot of that size. SpaceError when it cannot be made."""
        async with self._baking:
            if size not in self._ready:
                self._refused.discard(size)
                self._spoilt.pop(size, None)
                await self._bake(size)

    async def drop(self, digest: str) -> None:
        """The template goes: so does what is warm of it. What is in use goes with its last user."""
        for size in [each for each in self._ready if each.digest == digest]:
            await self._forget(self._ready.pop(size))

    def look(self) -> None:
        """A sandbox has come up, come to rest, or is gone: what waits for that may begin, what only it needed may go."""
        self._news.set()
        self.pool.look()
        self.tidy()

    async def _until_quiet(self) -> None:
        while self._busy():
            self._news.clear()
            await self._news.wait()

    def tidy(self) -> None:
        """What is retired and needed by nobody goes."""
        known = {each.snapshot for each in self._ready.values()}
        used = set(self._users())
        for row in self._around.ledger.baked() if self._most else ():
            if row.retired and row.snapshot not in known | used:
                self._in_background(self._discard(row), "discard")

    # -- before and after ----------------------------------------------------------------------------------------

    def recover(self, there: Iterable[SnapshotOnHost]) -> None:
        """What an earlier node baked, and what it left half done."""
        shared = {each.snapshot for each in there if each.shared}
        rows = {row.snapshot: row for row in self._around.ledger.baked()}
        for snapshot in shared - rows.keys():
            self._in_background(self._around.releases.snapshot(snapshot), "discard")
        for snapshot, row in rows.items():
            if snapshot not in shared:
                self._around.ledger.forget_baked(snapshot)
            elif not row.retired and self._most:
                self._in_background(self._hold(row), "hold")
        if self._most and not rows:
            self._in_background(self._bake_the_usual(), "bake the usual")
        self.tidy()

    def stop(self) -> None:
        """The node is ending; the next one goes on with what is there."""
        for task in self._tasks:
            task.cancel()

    async def drain(self) -> None:
        """Once it was stopped: until what was half baked is undone."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _bake_the_usual(self) -> None:
        await asyncio.sleep(limits.WARM_AFTER)
        with suppress(SpaceError):  # not set up: nothing to keep warm
            manifest = self._store.template(DEFAULT_TEMPLATE)
            verdict = await self._around.accelerators.decide(manifest.kernel)
            disk = max(DEFAULT_DISK_MIB, -(-manifest.disk_bytes // MIB))
            self.missed(Size(manifest.digest, DEFAULT_CPUS, DEFAULT_MEMORY_MIB, disk, verdict.accelerator), yields=True)

    # -- baking --------------------------------------------------------------------------------------------------

    async def _bake_in_time(self, size: Size, yields: bool) -> None:
        try:
            async with self._baking:
                await self._until_quiet()
                if size not in self._ready and not (yields and len(self._ready) >= self._most):
                    await self._bake(size)
        except NoCapacity as error:
            log.info("%s is not kept warm: %s", size, error)  # it is asked for again
        except SpaceError as error:
            log.warning("%s cannot be kept warm: %s", size, error)
            self._refused.add(size)
        finally:
            self._wanted.discard(size)

    async def _bake(self, size: Size) -> None:
        self._limit()
        manifest = self._store.template_by_digest(size.digest)
        self._store.stands(manifest)
        record = Record(
            sandbox=new_sandbox_id(),
            tenant=TENANT,
            generation=1,
            template=manifest.name,
            digest=size.digest,
            cpus=size.cpus,
            memory_mib=size.memory_mib,
            disk_mib=size.disk_mib,
            env=dict(manifest.env),
            phase=Phase.REQUESTED,
            accelerator=size.accelerator,
            user=manifest.user,
            cwd=manifest.cwd,
        )
        around = self._around
        around.gate.enter(record.sandbox, record.memory_mib)
        sandbox = Sandbox.create(record, replace(around, board=Board()))  # on a board of its own: nobody else is to see it
        row: Baked | None = None
        try:
            await sandbox.opened()
            if sandbox.phase is not Phase.RUNNING:
                raise sandbox.fault or BuildFailed(f"it did not boot: {sandbox.record.reason}")
            await _prove(sandbox, manifest)
            instant = await sandbox.instant(SnapshotPlan(new_snapshot_id(), shared=True, durable=True))
            row = Baked(instant.snapshot, size, instant.taken.private_bytes, sandbox.processes.heads(instant.kept))
            around.ledger.put_baked(row)
        finally:
            with suppress(DeadlineExceeded):  # its deletion goes on
                await asyncio.shield(sandbox.delete())
            around.archive.discard(record.sandbox)
        log.info("%s is warm: %d MiB, stopped for %.0f ms", size, row.bytes >> 20, instant.taken.stopped_ms)
        await self._hold(row)

    async def _hold(self, row: Baked) -> None:
        """Its memory is in memory, counted, and clones are made of it."""
        try:
            self._around.gate.set_aside(row.snapshot, -(-row.bytes // MIB))
            await self._around.rootd.hold_memory(row.snapshot)
        except SpaceError as error:
            self._around.gate.give_back(row.snapshot)
            log.info("%s is not kept warm: %s", row.size, error)
            await self._forget(row)
            return
        self._ready[row.size] = row
        self._around.slots.refill()  # a slot is what a clone would wait for most

    def _limit(self) -> None:
        while len(self._ready) >= self._most:
            self.make_room()

    async def _forget(self, row: Baked) -> None:
        """Nothing is cloned of it any more; its files go with the last that was."""
        self.pool.let_go(row.size)
        self._around.gate.give_back(row.snapshot)
        self._around.ledger.put_baked(Baked(row.snapshot, row.size, row.bytes, row.heads, retired=True))
        with suppress(SpaceError):
            await self._around.rootd.release_memory(row.snapshot)
        if row.snapshot not in set(self._users()):
            await self._discard(row)

    async def _discard(self, row: Baked) -> None:
        await self._around.releases.snapshot(row.snapshot)
        self._around.ledger.forget_baked(row.snapshot)

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: %s", task.get_name(), error, exc_info=None if isinstance(error, SpaceError) else error)


async def _prove(sandbox: Sandbox, manifest: TemplateManifest) -> None:
    """What its template starts runs and is ready, and a first command has been run."""
    if manifest.start:
        start = api.Exec(
            sandbox.record.sandbox,
            list(manifest.start),
            cwd=manifest.cwd or None,
            user=manifest.user or None,
            attach=False,
            overflow="drop_oldest",
        )
        await sandbox.processes.start(start).running()
    if not manifest.ready:
        with suppress(SpaceError):  # it may have no shell: then nothing is warmed beyond its boot
            await _status(sandbox, ["/bin/sh", "-c", ":"], limits.ANSWER)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(manifest.ready_seconds):
            while await _status(sandbox, list(manifest.ready), manifest.ready_seconds) != 0:  # noqa: ASYNC110 (a guest's own word)
                await asyncio.sleep(_READY_PAUSE)
            return
    raise BuildFailed(f"it was not ready after {manifest.ready_seconds} s: {' '.join(manifest.ready)[:200]}")


async def _status(sandbox: Sandbox, argv: list[str], seconds: float) -> int | None:
    asked = sandbox.as_its_template_has_it(
        api.Exec(sandbox.record.sandbox, argv, attach=False, overflow="drop_oldest", timeout_ms=int(seconds * 1000))
    )
    process = sandbox.processes.start(asked)
    await process.running()
    while process.state == "running":
        await process.news.wait()
    end = process.spool.end
    await sandbox.processes.forget(process.name)
    return None if end is None else end.code
