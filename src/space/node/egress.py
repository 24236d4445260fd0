"""Egress of all sandboxes of this node: who is bound, what comes from their workers, and what to do when a service comes or goes.

    zygote --WorkerStarted, Heard, WorkerEnded--> traffic of one sandbox --changed--> its level
    a service arrives in a new life --> every binding heals; the zygote's and the dialer's that nobody knows are ended

A `binding.Binding` makes the services hold what a sandbox needs; `Traffic` is what is known of what they serve.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from space.core.wire import workertalk
from space.model.errors import NotFound, SpaceError
from space.model.rootd import SandboxOp
from space.node import limits
from space.node.binding import WRITER, Binding, Bound, Held
from space.node.edge import Edge
from space.node.ledger import Record
from space.node.ops import Rootd
from space.node.policies import Policies
from space.node.services import Services
from space.rpc import broker_api, dialer_api, gateway_api
from space.rpc.node_api import AlarmKind, CredentialAlarm, EgressCounters, EgressState, PendingAsk

log = logging.getLogger(__name__)
_ALARMS: dict[workertalk.Alarming, AlarmKind] = {"credential_echoed": "tripwire", "placeholder_misplaced": "misplaced"}
COUNTS = ("connections", "requests", "denied", "names", "sent", "received")


@dataclass(slots=True)
class Traffic:
    """What a sandbox's workers told. before: counts of those that have ended; now: of the one that lives, or lived last."""

    before: dict[str, int] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)
    worker: int = 0
    workers: int = 0
    crashes: int = 0
    last_crash: str | None = None
    asks: dict[str, PendingAsk] = field(default_factory=dict)
    alarms: dict[tuple[str, str], CredentialAlarm] = field(default_factory=dict)  # by kind and grant

    def alarm(self, kind: AlarmKind, grant: str, secret: str, host: str, count: int) -> None:
        """So many more of them."""
        before = self.alarms.get((kind, grant))
        if before is None and len(self.alarms) >= limits.ALARMS:
            return
        counted = count + (0 if before is None else before.count)
        told = secret or ("" if before is None else before.secret)
        self.alarms[kind, grant] = CredentialAlarm(kind, grant, told, host, counted, time.time_ns() // 1000)

    def total(self, name: str) -> int:
        """Of all its workers."""
        return self.before.get(name, 0) + self.now.get(name, 0)

    @classmethod
    def of(cls, kept: dict[str, int], last_crash: str | None) -> Self:
        """As a node before this one left it."""
        before = {name: count for name, count in kept.items() if name in COUNTS}
        return cls(before, workers=kept.get("workers", 0), crashes=kept.get("crashes", 0), last_crash=last_crash)

    def kept(self) -> dict[str, int]:
        """What a node after this one is to know."""
        return {**{name: self.total(name) for name in COUNTS}, "workers": self.workers, "crashes": self.crashes}


class Told(NamedTuple):
    """Who is told of a sandbox's egress. changed: its level is another one; ended: a worker of it has, so that what is kept is written."""

    changed: Callable[[], None]
    ended: Callable[[Traffic], None]


@dataclass(slots=True)
class Life:
    """One sandbox that has egress."""

    binding: Binding
    traffic: Traffic
    told: Told


class Egress:
    """One a node. services: makes them, given who hears what the zygote says. synthetic: the network of names' addresses."""

    def __init__(
        self, services: Callable[[Callable[[gateway_api.Unasked], None]], Services], rootd: Rootd, policies: Policies, synthetic: str
    ) -> None:
        self.services = services(self.heard)
        self.services.unasked = self.alarmed
        self.policies = policies
        self.synthetic = synthetic
        self._rootd = rootd
        self._lives: dict[str, Life] = {}
        self._background: set[asyncio.Task[None]] = set()
        policies.used = lambda: {life.binding.policy.digest for life in self._lives.values()}

    def start(self) -> None:
        """Keep the services, once every sandbox of before is known (`found`)."""
        self.services.start(self._arrived, self._departed)

    async def stop(self) -> None:
        """Let go of everything; workers run on for the next node."""
        await self.services.stop()
        for life in self._lives.values():
            await life.binding.close()

    def give_up(self) -> None:
        """At once: this node is dead."""
        self.services.give_up()
        for life in self._lives.values():
            life.binding.give_up()

    # -- one sandbox ---------------------------------------------------------------------------------------------

    def found(self, record: Record, slot: int, told: Told, edge: Edge | None) -> Binding:
        """Know a sandbox from now on: one that is being made (with its edge, which becomes the binding's), or that an earlier node left."""
        who = Bound(
            record.sandbox, record.generation, slot, record.digest, self.synthetic,
            record.tenant, record.template, dict(record.labels), record.forked,
        )  # fmt: skip
        binding = Binding(who, Held(record.policy, record.policy_generation), self.services, self._rootd, self.policies, edge)
        self._lives[record.sandbox] = Life(binding, Traffic.of(record.traffic, record.last_crash), told)
        return binding

    async def end(self, op: SandboxOp) -> None:
        """Its worker is dead and nobody holds anything of it: the slot may go. Idempotent; raises when that is not known.

        While the zygote is away this waits: only it can say so. What the others hold is gone when they are.
        """
        life = self._lives.get(op.sandbox)
        if life is not None and life.binding.who.generation == op.generation:
            await life.binding.close()
        else:
            life = None
        await (await self.services.gateway.up()).end(op.sandbox, op.generation)
        if life is not None and self._lives.get(op.sandbox) is life:
            del self._lives[op.sandbox]
        await asyncio.gather(*(self._let_go(one, op) for one in ("broker", "audit", "dialer")))
        await self.services.drop_policies()

    async def _let_go(self, what: str, op: SandboxOp) -> None:
        services = self.services
        try:
            if what == "broker" and services.broker.client is not None:
                await services.broker.client.end_sandbox(op.sandbox, op.generation)
            elif what == "audit" and services.audit.client is not None:
                await services.audit.client.end_source(WRITER, op.sandbox, op.generation)
            elif what == "dialer" and services.dialer.client is not None:
                await services.dialer.client.end(op.sandbox, op.generation)
        except SpaceError as error:
            # Its end of the worker's socket is closed, and so is that service's part in it; it learns the rest when it is back.
            log.info("%s: the %s was not told of its end: %s", op.sandbox, what, error)

    # -- what is asked of it -------------------------------------------------------------------------------------

    def state(self, record: Record) -> tuple[EgressState, list[PendingAsk]]:
        """Its level."""
        life = self._lives.get(record.sandbox)
        if life is None:
            return EgressState(record.policy, record.policy_generation), []
        binding, traffic = life.binding, life.traffic
        waiting = sorted({*self.services.away(), *binding.faults})
        state = EgressState(
            record.policy, record.policy_generation, waiting, traffic.crashes, traffic.last_crash, list(traffic.alarms.values())
        )  # fmt: skip
        return state, list(traffic.asks.values())

    async def answer(self, sandbox: str, ask: str, *, allow: bool) -> None:
        """NotFound when nobody waits for it."""
        life = self._lives.get(sandbox)
        if life is None or ask not in life.traffic.asks:
            raise NotFound(f"sandbox {sandbox} has no request {ask[:64]} that waits")
        who = life.binding.who
        message = workertalk.encode(workertalk.Answer(_number(ask), allow))
        await self.services.gateway.now().say(who.sandbox, who.generation, message)
        if life.traffic.asks.pop(ask, None) is not None:
            life.told.changed()

    async def counters(self, sandbox: str) -> EgressCounters:
        """Of this life. NotFound without egress."""
        life = self._lives.get(sandbox)
        if life is None:
            raise NotFound(f"sandbox {sandbox} has no egress (any more)")
        drops = await self._rootd.slot_counters(life.binding.who.slot)
        traffic = life.traffic
        connections, requests, denied, names, sent, received = (traffic.total(name) for name in COUNTS)
        return EgressCounters(
            drops, connections, requests, denied, names, sent, received, bool(traffic.worker), max(traffic.workers - 1, 0)
        )  # fmt: skip

    # -- services ------------------------------------------------------------------------------------------------

    def _arrived(self, name: str, found: object) -> None:
        services = self.services
        if name == services.gateway.name and isinstance(found, list):
            self._gateway_arrived(found)
        elif name == services.dialer.name and isinstance(found, dialer_api.Standing):
            self._dialer_arrived(found)
        for life in self._lives.values():
            life.binding.heal()
            life.told.changed()

    def _departed(self, name: str) -> None:
        log.warning("the %s is gone: what needs it waits, or is refused", name)
        for life in self._lives.values():
            if name == self.services.gateway.name and life.traffic.worker:
                self._worker_is_over(life, crashed=False, detail="")
            life.told.changed()

    def _gateway_arrived(self, found: list[gateway_api.Binding]) -> None:
        standing = {(one.sandbox, one.generation): one for one in found}
        for sandbox, life in self._lives.items():
            one = standing.pop((sandbox, life.binding.who.generation), None)
            life.binding.found_in_gateway(self.services.gateway.life, None if one is None else one.policy_generation)
            life.traffic.worker = life.traffic.worker or (0 if one is None else one.worker_pid)
        for sandbox, generation in standing:
            log.warning("the gateway has life %d of %s, which nobody knows: it is ended", generation, sandbox)
            self._soon(self.services.gateway.now().end(sandbox, generation), f"end of {sandbox}")

    def _dialer_arrived(self, found: dialer_api.Standing) -> None:
        for one in found.bindings:
            life = self._lives.get(one.sandbox)
            if life is not None and life.binding.who.generation == one.generation:
                life.binding.found_in_dialer(self.services.dialer.life, one.digest, one.policy_generation, connected=one.open)
            else:
                self._soon(self.services.dialer.now().end(one.sandbox, one.generation), f"end of {one.sandbox}")

    # -- credentials ---------------------------------------------------------------------------------------------

    def grants_changed(self, tenant: str) -> None:
        """Placeholders of that tenant's sandboxes may be others."""
        for life in self._lives.values():
            if life.binding.who.tenant == tenant:
                life.binding.grants_changed()

    async def forget(self, sandbox: str) -> None:
        """The broker knows of no grants that were attached to it. Unavailable while it is away."""
        await self.services.broker.now().forget_sandbox(sandbox)

    def alarmed(self, said: object) -> None:
        """What the broker says unasked."""
        if not isinstance(said, broker_api.Alarm):
            return
        log.warning("credential %s of tenant %s: %s at %s, %d times", said.grant, said.tenant, said.kind, said.host, said.count)
        life = self._lives.get(said.sandbox)
        if life is not None and life.binding.who.tenant == said.tenant:
            life.traffic.alarm(said.kind, said.grant, said.secret, said.host, said.count)
            life.told.changed()

    # -- workers -------------------------------------------------------------------------------------------------

    def heard(self, event: gateway_api.Unasked) -> None:
        """What the zygote says unasked."""
        life = self._lives.get(event.sandbox)
        if life is None or life.binding.who.generation != event.generation:
            return
        match event:
            case gateway_api.WorkerStarted(pid=pid):
                life.traffic.worker = pid
                life.traffic.workers += 1
            case gateway_api.WorkerEnded(crashed=crashed, detail=detail):
                self._worker_is_over(life, crashed=crashed, detail=detail)
            case gateway_api.Heard(message=message):
                self._said(life, message)

    def _worker_is_over(self, life: Life, *, crashed: bool, detail: str) -> None:
        traffic = life.traffic
        traffic.before = {name: traffic.total(name) for name in COUNTS}
        traffic.now = {}
        traffic.worker = 0
        if crashed:
            traffic.crashes += 1
            traffic.last_crash = detail[:200]
            log.warning("%s: its gateway worker ended: %s", life.binding.who.sandbox, detail[:200])
        asks, traffic.asks = traffic.asks, {}
        life.told.ended(traffic)
        if crashed or asks:
            life.told.changed()

    def _said(self, life: Life, message: bytes) -> None:
        try:
            said = workertalk.from_worker(message)
        except workertalk.TalkRefused as refused:
            log.warning("%s: its gateway worker said what means nothing: %s", life.binding.who.sandbox, refused)
            return
        asks = life.traffic.asks
        match said:
            case workertalk.Counted():
                life.traffic.now = {name: getattr(said, name) for name in COUNTS}
            case workertalk.Alarm():
                kind = _ALARMS[said.kind]
                log.warning("credential %s of %s: %s at %s, %d times", said.grant, life.binding.who.sandbox, kind, said.host, said.count)
                life.traffic.alarm(kind, said.grant, "", said.host, said.count)
                life.told.changed()
            case workertalk.AskOver(ask=number):
                if asks.pop(_name(number), None) is not None:
                    life.told.changed()
            case workertalk.Ask(ask=number) if len(asks) < limits.ASKS:
                name = _name(number)
                asks[name] = PendingAsk(
                    name, said.host, said.port, said.scheme, said.method, said.path, said.rule, time.time_ns() // 1000
                )  # fmt: skip
                life.told.changed()
            case workertalk.Ask(ask=number):
                who = life.binding.who
                refusal = workertalk.encode(workertalk.Answer(number, allow=False))
                self._soon(self.services.gateway.now().say(who.sandbox, who.generation, refusal), f"too many asks of {who.sandbox}")

    def _soon(self, work: Coroutine[Any, Any, None], name: str) -> None:
        async def quietly() -> None:
            try:
                await work
            except SpaceError as error:
                log.info("%s: %s", name, error)  # whoever is gone holds nothing; whoever comes back is asked again

        task = asyncio.create_task(quietly(), name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _name(number: int) -> str:
    return f"ask-{number}"


def _number(name: str) -> int:
    return int(name.removeprefix("ask-"))
