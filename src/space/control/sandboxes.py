"""The sandboxes: what tenants asked for, what the node says, and the steps that bring the two together.

    create: row, and beside its commit node.create -> running, or failed(reason); nobody is told before the commit
    delete: desired = gone (on the disk) -> node.delete -> gone;   also by its time to live or its idle rule (`expiry`)
    node up: every row is compared with the node's list (`decide`); what is wanted and absent failed, what is there and unwanted is deleted

`book` owns the records, `creation`, `forks`, `lives`, `ends` and `expiry` take the steps; this is their one face, and the node link's
listener. Every public call takes the tenant first: what belongs to another one is not found, by construction.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

from space.control import decide, limits, listing, records
from space.control.activity import Activity
from space.control.asks import Asks
from space.control.book import Book
from space.control.creation import Creation
from space.control.ends import Ends
from space.control.entry import Entry
from space.control.events import EventLog
from space.control.expiry import Expiry
from space.control.forks import Forks
from space.control.link import NodeLink
from space.control.lives import Lives, Wish
from space.control.memory import Memory
from space.control.policies import Asked, Policies
from space.control.prometheus import Figures
from space.control.quotas import Quotas
from space.control.records import UNWANTED, WANTED, Record, Repeat
from space.control.store.store import Store
from space.control.timers import Timers
from space.control.wire_lives import ForkRequest, child_spec
from space.control.wire_tenants import ChangeRequest, changed_spec
from space.core.lifecycle.table import Refuse, Request, answer
from space.model.errors import Conflict, Gone, NoCapacity, NotFound, SpaceError, Unavailable
from space.model.ids import new_sandbox_id
from space.model.sandbox import Phase, SandboxInfo, SandboxSpec
from space.model.tenants import Usage
from space.rpc.life_api import Imported
from space.rpc.node_api import Done, NodeInfo, SandboxState, SetLabels

Resolve = Callable[[str, str], tuple[str, str]]
Change = Callable[[Connection], object]
_MOST_DISK_MIB = 1 << 20
_FIRST_EXEC = "first_exec"  # a stage of the node that is over only when somebody has run a command


def nothing(connection: Connection) -> None:
    """Nothing is stored besides."""


class Sandboxes:
    """The service behind the routes. It is the node link's listener."""

    def __init__(
        self,
        store: Store,
        timers: Timers,
        events: EventLog,
        activity: Activity,
        quotas: Quotas,
        *,
        max_sandboxes: int,
        max_ttl_seconds: int,
        retention: float = limits.RETENTION_SECONDS,
        remember: float = 90 * 86_400.0,
    ) -> None:
        """remember: seconds for which it is known whose a sandbox was."""
        self._owners: dict[str, str] = {}
        self._remember = remember
        self._book = Book(store, timers, events, retention=retention)
        self._activity = activity
        self._quotas = quotas
        self._max = max_sandboxes
        self._max_ttl = max_ttl_seconds
        self._closing = False
        self._arriving: set[str] = set()  # that the node makes of files, and that have no row yet
        self._isolation = "unknown"

    async def start(self, link: NodeLink, figures: Figures, resolve: Resolve = lambda tenant, name: (name, "")) -> None:
        """Take up what the store holds. Before the link runs. resolve: name and digest of a template's reference."""
        self._link = link
        self._resolve = resolve
        self._stages: Callable[[str, dict[str, float]], None] = figures.stages
        self._ends = Ends(self._book, link)
        self.policies = Policies(self._book, link)
        self.asks = Asks(self._book, link)
        self._creation = Creation(self._book, self._ends, link, self.node_level, self._absent, resolve, self.policies.telling)
        self.lives = Lives(self._book, link, self._quotas, self.policies.telling, self.node_level, figures.woken)
        self._forks = Forks(self._book, self.policies, self.lives, self._creation, self._quotas)
        self._expiry = Expiry(self._book, self._ends, self._activity, self.lives, figures.idle)
        self._memory = Memory(self._book)
        await self._book.load()
        await self.policies.load()
        self.forget_former()

    def stopping(self) -> None:
        """Tell those who wait for a creation that the server ends."""
        self._creation.stopping()

    async def stop(self) -> None:
        """Let go; what is promised is in the store."""
        await self._book.stop()

    @property
    def phases(self) -> Counter[tuple[str, str]]:
        """How many live sandboxes are in each (tenant, phase)."""
        return self._book.phases

    @property
    def busy(self) -> int:
        """In how many something runs, as the node says."""
        return sum(entry.busy for entry in self._book.live.values())

    def usage(self, tenant: str) -> Usage:
        """What a tenant's sandboxes take, and what is beside them."""
        return self._book.usage(tenant)

    def beside(self, usage: Callable[[str], Usage]) -> None:
        """What else counts towards a tenant's quota: templates and their builders."""
        self._book.beside = usage

    def heeded(self, heed: Callable[[Entry], None]) -> None:
        """heed: called after every change of a live sandbox; short, does not raise."""
        self._book.on_change.append(heed)

    # -- what tenants ask -----------------------------------------------------------------------------------------------

    async def create(
        self,
        tenant: str,
        spec: SandboxSpec,
        *,
        wait: bool,
        repeat: tuple[str, bytes] | None = None,
        policy: Asked = None,
        grants: Sequence[str] = (),
        beside: Callable[[str], Change] = lambda sandbox: nothing,
    ) -> SandboxInfo:
        """A sandbox; running when this returns, if `wait`. repeat: idempotency key and digest of the body. policy: None for the default.
        grants: names of those that it has besides. beside: by its id, what is stored of it besides, in the same transaction.

        Unavailable without a node, NoCapacity when there is no room; nothing is kept then. A caller that goes away changes nothing.
        """
        if repeat is not None and (earlier := self._book.repeated(tenant, repeat[0])) is not None:
            return await self._creation.join(tenant, earlier, repeat[1], wait=wait)
        self._resolve(tenant, spec.template)
        if self._closing:
            raise Unavailable("the server ends its sandboxes and stops")
        if not self._link.is_up:
            raise Unavailable("the node is not connected", hint="repeat in a few seconds; `space doctor` says what is missing")
        # Read before the rest is asked: what follows is decided with nothing awaited between.
        chosen = await self.policies.choose(tenant, policy, default=True)
        if repeat is not None and (earlier := self._book.repeated(tenant, repeat[0])) is not None:
            return await self._creation.join(tenant, earlier, repeat[1], wait=wait)
        if self._closing:
            raise Unavailable("the server ends its sandboxes and stops")
        self._room(1)
        # Counted and taken with nothing awaited between: two that come together cannot both have the last place.
        self._quotas.admit(tenant, spec, lambda: self._book.usage(tenant))
        now = time.time_ns() // 1000
        record = Record(
            id=new_sandbox_id(),
            tenant=tenant,
            spec=spec,
            desired=WANTED,
            phase=Phase.REQUESTED,
            isolation=self._isolation,
            created_us=now,
            expires_us=now + spec.ttl_seconds * 1_000_000,
            # The node holds it before anything of it runs.
            policy_generation=1 if chosen.made.digest else 0,
            policy_applied=1 if chosen.made.digest else 0,
            **chosen.fields,
        )
        used = None if repeat is None else Repeat(tenant, repeat[0], repeat[1], record.id, now)
        keep, also = self.policies.keep(chosen), beside(record.id)
        entry = self._book.add(record, used, lambda connection: (keep(connection), also(connection)))
        entry.grants = list(grants)
        self.policies.begun(entry, chosen)
        self._book.spawn(self._creation.drive(entry, keep_refused=not wait), f"create {record.id}")
        await entry.committed()
        return await self._creation.running(entry) if wait else entry.record.info()

    async def fork(self, tenant: str, sandbox: str, asked: ForkRequest, repeat: tuple[str, bytes] | None = None) -> list[SandboxInfo]:
        """Children of one instant of it, each running; or none, and why. It goes on in any case. repeat: as of `create`."""
        there = await self._forks.again(tenant, sandbox, asked.count, repeat)
        if there is not None:
            return there
        entry = await self._wanted(tenant, sandbox)
        spec = child_spec(entry.record.spec, asked, max_ttl_seconds=self._max_ttl)
        return await self._forks.fork(entry, spec, asked.count, self._room, repeat, asked.grants)

    async def arrive(self, tenant: str, receive: Callable[[str, int], Awaitable[Imported]]) -> SandboxInfo:
        """A suspended sandbox of a file. receive: has the node make it under that id, with a disk of at most so many MiB.

        The node has it before its row is here: what a control that dies between leaves there is of no row, and so is deleted.
        """
        self._room(1)
        name = new_sandbox_id()
        most = self._quotas.room(tenant, lambda: self._book.usage(tenant), most=_MOST_DISK_MIB)
        chosen = await self.policies.choose(tenant, None, default=True)
        self._arriving.add(name)
        try:
            made = await receive(name, most)
            spec = SandboxSpec(template=made.template, cpus=made.cpus, memory_mib=made.memory_mib, disk_mib=made.disk_mib, env=made.env)
            self._room(1)
            self._quotas.admit_rest(tenant, spec, self._book.usage(tenant))
            record = Record(
                id=name, tenant=tenant, spec=spec, desired=WANTED, phase=Phase.SUSPENDED, isolation=self._isolation,
                created_us=time.time_ns() // 1000, expires_us=None, rest="request", snapshot_bytes=made.snapshot_bytes,
                policy_generation=1 if chosen.made.digest else 0, policy_state="pending" if chosen.made.digest else "applied",
                **chosen.fields,
            )  # fmt: skip
            entry = self._book.add(record, None, self.policies.keep(chosen))
            entry.creating = False
            self.policies.begun(entry, chosen)
            await entry.committed()
        except BaseException:
            self._ends.delete_there(name)
            raise
        finally:
            self._arriving.discard(name)
        return entry.record.info()

    def _room(self, count: int) -> None:
        if self._closing:
            raise Unavailable("the server ends its sandboxes and stops")
        if self._book.size + count > self._max:
            left = max(self._max - self._book.size, 0)
            raise NoCapacity(f"{left} of {self._max} sandboxes of this server are free", hint="delete one, or raise max_sandboxes")

    async def get(self, tenant: str, sandbox: str) -> SandboxInfo:
        """One, also after its end for as long as it is kept. NotFound."""
        return (await self._book.find(tenant, sandbox)).info()

    def of_tenant(self, tenant: str) -> list[Record]:
        """Those of a tenant that have not ended and are not about to."""
        entries = self._book.live.values()
        return [one.record for one in entries if one.record.tenant == tenant and not one.record.ended and one.record.desired == WANTED]

    def living(self, sandbox: str) -> Record | None:
        """One that has not ended and is not about to, whoever's it is: who asks has another proof than a tenant's key."""
        entry = self._book.live.get(sandbox)
        if entry is None or entry.record.ended or entry.record.desired == UNWANTED:
            return None
        return entry.record

    @property
    def running(self) -> list[str]:
        """Those that run, or are paused."""
        return [name for name, entry in self._book.live.items() if entry.record.phase in (Phase.RUNNING, Phase.PAUSED)]

    async def owner(self, sandbox: str) -> str | None:
        """Whose it is or was, for as long as records of its egress are kept; None: nobody's that is known."""
        entry = self._book.live.get(sandbox)
        if entry is not None:
            return entry.record.tenant
        known = self._owners.get(sandbox)
        if known is None:
            known = await self._book.store.read(lambda connection: records.owner(connection, sandbox))
            if known is not None:
                if len(self._owners) >= limits.OWNERS:
                    self._owners.clear()
                self._owners[sandbox] = known
        return known

    async def was(self, tenant: str, sandbox: str) -> None:
        """NotFound unless it is, or was, that tenant's."""
        if await self.owner(sandbox) != tenant:
            raise NotFound(f"there is no sandbox {sandbox[:64]!r}", hint="GET /v1/sandboxes lists those of this key's tenant")

    def forget_former(self) -> None:
        """Forget whose sandboxes were that ended too long ago; now and every hour."""
        before = time.time_ns() // 1000 - int(self._remember * 1e6)
        self._book.store.post(lambda connection: records.forget_former(connection, before, limits.EVENTS_PRUNE_EVERY))
        self._book.timers.after(limits.SWEEP_SECONDS, self.forget_former)

    async def page(self, tenant: str, wanted: listing.Filter) -> tuple[list[SandboxInfo], str | None]:
        """A page, and the next cursor."""
        found, cursor = await self._book.store.read(lambda connection: listing.page(connection, tenant, wanted))
        return [record.info() for record in found], cursor

    async def delete(self, tenant: str, sandbox: str) -> bool:
        """End it; idempotent. True when it is gone; False when it is promised (on the disk) and the node has not said so yet."""
        entry = self._book.mine(tenant, sandbox)
        if entry is None:
            await self._book.find(tenant, sandbox)
            return True
        await self._ends.unwant(entry, "deleted by request")
        if not self._link.is_up:
            return entry.record.ended
        return await entry.until(lambda record: record.ended, limits.DELETE_SECONDS)

    async def change(self, tenant: str, sandbox: str, asked: ChangeRequest, *, revision: int | None = None) -> SandboxInfo:
        """Its time to live (from now on), metadata, idle rule, end. revision: only if it is at this one. NotFound, Gone, Conflict."""
        entry = await self._wanted(tenant, sandbox)
        record = entry.record
        if revision is not None and revision != record.revision:
            raise Conflict(
                f"sandbox {sandbox} is at revision {record.revision}, and If-Match says {revision}", hint="GET it, and decide anew"
            )
        spec, fields = changed_spec(record.spec, asked, max_ttl_seconds=self._max_ttl)
        expires = record.expires_us
        if "ttl_seconds" in fields:
            expires = time.time_ns() // 1000 + spec.ttl_seconds * 1_000_000
        info = (await self._book.change(entry, fields, spec=spec, expires_us=expires)).info()
        if "metadata" in fields:
            await self._label([entry])
        return info

    async def _label(self, entries: Sequence[Entry]) -> None:
        """Grants select by what `metadata` says now. A node that is away is told when it is back."""
        for entry in entries:
            with suppress(SpaceError):
                await self._link.call("set_labels", SetLabels(entry.record.id, dict(entry.record.spec.metadata)), Done)

    async def delete_all(self, reason: str, seconds: float) -> int:
        """Make no more, and end every one: promised on the disk, then waited for; how many are not gone after `seconds`."""
        self._closing = True
        entries = list(self._book.live.values())
        await asyncio.gather(*(self._ends.unwant(entry, reason) for entry in entries), return_exceptions=True)
        if self._link.is_up:
            await asyncio.gather(*(entry.until(lambda record: record.ended, seconds) for entry in entries))
        return sum(not entry.record.ended for entry in entries)

    async def usable(self, tenant: str, sandbox: str, *, paused: bool = False, wakes: bool = True) -> Entry:
        """A running sandbox (or a paused one). NotFound, Gone, Conflict.

        wakes: wait for one that is waking, and wake one that rests by a rule (`Lives.hold`). TooMany, DeadlineExceeded.
        """
        entry = await self._wanted(tenant, sandbox)
        if wakes and not paused:
            await self.lives.hold(entry)
            entry = await self._wanted(tenant, sandbox)
        record = entry.record
        if record.phase is Phase.PAUSED and paused:
            return entry
        if isinstance(said := answer(record.phase, Request.USE), Refuse):
            raise said.fault(sandbox, record.rest_reason if record.phase is not Phase.FAILED else record.reason)
        if (wish := Wish.of(record)) is not None and wish.rests and not paused:
            raise Conflict(f"sandbox {sandbox} is told to {wish.request.value}", hint=f"wake it with POST /v1/sandboxes/{sandbox}/wake")
        return entry

    async def live(self, tenant: str, sandbox: str, wish: Wish) -> SandboxInfo:
        """Pause, resume, suspend, stop, wake, roll back; idempotent, but for the last. Conflict, Gone, QuotaPassed, or the node's fault."""
        entry = await self._wanted(tenant, sandbox)
        await self.lives.carry_out(entry, wish)
        return entry.record.info()

    async def record(self, tenant: str, sandbox: str) -> Record:
        """One, also after its end for as long as it is kept. NotFound."""
        return await self._book.find(tenant, sandbox)

    async def wanted(self, tenant: str, sandbox: str) -> Entry:
        """One that has not ended. NotFound, Gone."""
        return await self._wanted(tenant, sandbox)

    async def _wanted(self, tenant: str, sandbox: str) -> Entry:
        entry = self._book.mine(tenant, sandbox)
        record = entry.record if entry is not None else await self._book.find(tenant, sandbox)
        if entry is None or record.ended or record.phase is Phase.DELETING or record.desired == UNWANTED:
            raise Gone(f"sandbox {sandbox} has ended: {record.reason or record.phase}", hint="create a new one")
        return entry

    # -- what the node says ---------------------------------------------------------------------------------------------

    def node_up(self, info: NodeInfo, levels: list[SandboxState]) -> None:
        """Compare everything. No create of this process is in hand on a session that has just begun."""
        self._isolation = info.isolation
        there = {level.sandbox: level for level in levels}
        for level in levels:
            entry = self._book.live.get(level.sandbox)
            if entry is not None:
                entry.seen = -1
            self.node_level(level)
        for entry in [entry for entry in self._book.live.values() if entry.record.id not in there]:
            entry.seen = -1
            self._absent(entry)
        self.lives.node_up()
        self._book.spawn(self._label([entry for entry in self._book.live.values() if entry.record.id in there]), "labels")

    def node_level(self, level: SandboxState) -> None:
        """A sandbox is now like this on the node; older news are dropped by the node's revision."""
        entry = self._book.live.get(level.sandbox)
        if entry is not None:
            if level.revision <= entry.seen:
                return
            self._measure(entry, level)
            entry.seen = level.revision
            self._heed(entry, level)
        record = None if entry is None else entry.record
        self._take(entry, level.sandbox, decide.decide(record, level, creating=entry is not None and entry.creating))
        if entry is not None and not entry.record.ended:
            self._stored(entry)

    def node_down(self) -> None:
        """Levels of the next session count from the start."""
        self.policies.telling.down()
        for entry in self._book.live.values():
            entry.seen = -1

    def _measure(self, entry: Entry, level: SandboxState) -> None:
        """How long its create took, once, and its first command; of what was done before this session nobody knows what was counted."""
        if level.phase != Phase.RUNNING:
            return
        if entry.record.phase is not Phase.RUNNING and entry.creating:
            self._stages(level.start, {name: took for name, took in level.stages_ms.items() if name != _FIRST_EXEC})
        if not entry.ran_first and _FIRST_EXEC in level.stages_ms:
            entry.ran_first = True
            if entry.seen >= 0:
                self._stages(level.start, {_FIRST_EXEC: level.stages_ms[_FIRST_EXEC]})

    def _heed(self, entry: Entry, level: SandboxState) -> None:
        """What a level says beside the phase."""
        entry.generation_seen, entry.said = level.generation, level.reason
        entry.stored = {"start": level.start, "snapshot_bytes": level.snapshot_bytes, "checkpoints": level.checkpoints}
        if level.busy is not entry.busy:
            entry.busy = level.busy
            self._expiry.heed(entry)
        self._memory.heed(entry, level.oom_kills, level.last_oom)
        self.policies.telling.heed(entry, level.egress)
        self.asks.heed(entry, level.asks, level.egress)

    def _absent(self, entry: Entry) -> None:
        self._take(entry, entry.record.id, decide.decide(entry.record, None, creating=entry.creating))

    def _take(self, entry: Entry | None, sandbox: str, step: decide.Step) -> None:
        match step:
            case decide.Wait():
                pass
            case decide.DeleteThere():
                if sandbox not in self._arriving:
                    self._ends.delete_there(sandbox)
            case decide.Note(phase, isolation):
                assert entry is not None
                self._note(entry, phase, isolation)
                self.policies.telling.look(entry)
            case decide.End(phase, reason):
                assert entry is not None
                if phase is Phase.FAILED:
                    self._ends.delete_there(sandbox)
                self._book.end(entry, phase, reason)

    def _note(self, entry: Entry, phase: Phase, isolation: str) -> None:
        """The phase moved. Rest by a rule has its reason; who runs again without an end begins another time to live."""
        record, now = entry.record, time.time_ns() // 1000
        fields: dict[str, Any] = {"expires_us": record.expires_us, "reason": entry.said or record.rest_reason}
        if phase in (Phase.PAUSED, Phase.SUSPENDED, Phase.STOPPED):
            over = record.expires_us is not None and record.expires_us <= now  # unless it was set anew meanwhile
            kept = record.rest == "request" and phase is not Phase.PAUSED
            if kept or (record.rest == "timeout" and over):
                fields["expires_us"] = None
        elif phase is Phase.RUNNING:
            if (wish := Wish.of(record)) is None or not wish.rests:
                fields |= {"rest": "", "rest_reason": None, "reason": entry.said}
            if record.expires_us is None:
                fields["expires_us"] = now + record.spec.ttl_seconds * 1_000_000
        elif phase is Phase.FAILED:
            fields |= {"rest": "", "rest_reason": None, "reason": entry.said}
        self._book.move(entry, phase=phase, isolation=isolation, **entry.stored, **fields)

    def _stored(self, entry: Entry) -> None:
        """What is kept of it on the node's disk, how its life began, and its generation, where a store was put back from a copy."""
        record = entry.record
        fields = {**entry.stored, "generation": max(entry.generation_seen, record.generation)}
        if any(getattr(record, name) != value for name, value in fields.items()):
            self._book.move(entry, **fields)
