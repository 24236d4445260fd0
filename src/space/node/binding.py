"""One sandbox's egress: what each service has to hold of it, and the rounds that make it so.

    begun (create: all of it, or it fails) or found (a restarted node) -> held, healed whenever a service comes back -> ended

A round compares what should be with what each service was told in its present life, and tells what is missing; all at once, for a
worker's ends of its sockets exist before their other ends are handed over. A service that is away is left out: the worker gets an end that
nobody holds, which fails closed, and another by Reconnect later. One round at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from space.model.errors import DeadlineExceeded, NotFound, SpaceError, Unavailable
from space.node import limits
from space.node.edge import Edge
from space.node.ops import Rootd
from space.node.policies import Policies
from space.node.services import Services
from space.node.shield import ended
from space.rpc.gateway_client import Means, make_memory
from space.rpc.packets import pair

log = logging.getLogger(__name__)
What = Literal["signer", "audit", "dialer"]
WHATS: tuple[What, ...] = ("signer", "audit", "dialer")
_DECIDE = ("gateway", "dialer", "rootd")  # who has to have a policy before it holds
WRITER = "gateway"  # whose chain of records the workers write into


@dataclass(frozen=True, slots=True)
class Bound:
    """Whose egress. template: digest of the build whose root certificate the guest trusts. synthetic: the network of names' addresses.

    The rest is what grants look at: forked: it began as a copy of another's memory.
    """

    sandbox: str
    generation: int
    slot: int
    template: str
    synthetic: str
    tenant: str = ""
    template_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """A policy, and control's number of it."""

    digest: str
    generation: int


@dataclass(slots=True)
class _Known:
    """What each service was told, and in which of its lives; 0: nothing."""

    gateway: int = 0
    sockets: dict[What, int] = field(default_factory=dict)
    worker_policy: tuple[int, Held] | None = None
    dialer_policy: tuple[int, Held] | None = None
    literal: bool | None = None


class Binding:
    """Made by `egress.Egress`. edge: the slot's descriptors, which it owns until the zygote has them; None: an earlier node had them."""

    def __init__(self, who: Bound, policy: Held, services: Services, rootd: Rootd, policies: Policies, edge: Edge | None) -> None:
        self.who = who
        self.policy = policy
        self.faults: dict[str, SpaceError] = {}  # by service: why it does not hold its part, although it is there
        self._services = services
        self._rootd = rootd
        self._policies = policies
        self._edge = edge
        self._memory: int | None = make_memory() if edge is not None else None
        self._known = _Known(literal=edge.literal if edge is not None else None)
        self._turn = asyncio.Lock()
        self._healing: asyncio.Task[None] | None = None
        self._wanted = False
        self._over = False
        self.placeholders: dict[str, str] = {}  # by variable, as the broker said last
        self._stale = True  # they may be others by now

    # -- what others do with it ----------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Everybody holds it. Raises the reason of whoever does not; what is held then is undone by `Egress.end`."""
        while True:
            await self._services.all_up()
            async with self._turn:
                faults = await self._round()
            if not faults:
                return
            if not all(isinstance(fault, Unavailable) for fault in faults.values()):
                break
            await asyncio.sleep(limits.SERVICE_PAUSE_FIRST)  # it died over it, and is started again
        for name, fault in faults.items():
            if name == "signer" and isinstance(fault, NotFound) and not self.policy.digest:
                log.warning("%s: nothing can be allowed to it: %s", self.who.sandbox, fault)
                self.faults = {name: fault}
            elif not isinstance(fault, Unavailable):
                fault.message = f"{name}: {fault.message}"
                raise fault

    async def change(self, policy: Held) -> None:
        """That policy holds. DeadlineExceeded: not everybody who decides has it yet, and that goes on."""
        self.policy = policy
        try:
            async with asyncio.timeout(limits.SET_POLICY):
                while True:
                    await asyncio.gather(self._services.gateway.up(), self._services.dialer.up())
                    async with self._turn:
                        faults = await self._round()
                    serious = [fault for name, fault in faults.items() if name in _DECIDE or isinstance(fault, NotFound)]
                    if not serious:
                        return
                    for fault in serious:
                        if not isinstance(fault, Unavailable):
                            raise fault
                    await asyncio.sleep(limits.SERVICE_PAUSE_FIRST)
        except TimeoutError:
            away = " and ".join(self._services.away()) or "a service"
            raise DeadlineExceeded(
                f"policy {policy.generation} of {self.who.sandbox} does not hold everywhere after {limits.SET_POLICY:g} s: {away} is away",
                hint="it is applied as soon as that is back",
            ) from None
        finally:
            self.heal()

    def label(self, labels: Mapping[str, str]) -> None:
        """These are its labels: the broker is told soon, as what another socket of the worker's is for."""
        self.who = replace(self.who, labels=dict(labels))
        self._known.sockets.pop("signer", None)
        self.heal()

    def grants_changed(self) -> None:
        """Its placeholders may be others."""
        self._stale = True

    async def environment(self) -> None:
        """`placeholders` are those of now; of the broker's last word while that is away: a process starts without it as well."""
        if self._stale:
            self._stale = False
            try:
                await self._read_placeholders()
            except (SpaceError, TimeoutError):
                self._stale = True
            except BaseException:
                self._stale = True
                raise

    def heal(self) -> None:
        """Soon: what is missing is told. Called when a service has come, or somebody found something missing."""
        self._wanted = True
        if not self._over and (self._healing is None or self._healing.done()):
            self._healing = asyncio.create_task(self._heal(), name=f"egress of {self.who.sandbox}")

    def found_in_gateway(self, life: int, policy_generation: int | None) -> None:
        """What the zygote said of it in this life: it is not bound (None), or bound under that policy."""
        known = self._known
        if policy_generation is None:
            known.gateway = 0
            return
        known.gateway = life
        known.worker_policy = (life, self.policy) if policy_generation == self.policy.generation else None

    def found_in_dialer(self, life: int, digest: str, policy_generation: int, *, connected: bool) -> None:
        """What the dialer said of it in this life."""
        if connected and self._known.gateway:
            self._known.sockets["dialer"] = life
            self._known.dialer_policy = (life, Held(digest, policy_generation))

    async def close(self) -> None:
        """Heal nothing any more, and let go of every descriptor. Idempotent."""
        self._over = True
        if self._healing is not None:
            await ended(self._healing)
        async with self._turn:
            self._let_go()

    def give_up(self) -> None:
        """The same, at once: this node is dead."""
        self._over = True
        if self._healing is not None:
            self._healing.cancel()
        self._let_go()

    # -- rounds --------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        pause = limits.SERVICE_PAUSE_FIRST
        while self._wanted:
            self._wanted = False
            async with self._turn:
                faults = await self._round()
            refusals = {name: fault for name, fault in faults.items() if not isinstance(fault, Unavailable)}
            if refusals != self.faults:
                for name, fault in refusals.items():
                    log.warning("%s: the %s does not take its part of egress: %s", self.who.sandbox, name, fault)
            self.faults = refusals
            if refusals:  # nobody will tell when that is over
                self._wanted = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, limits.SERVICE_PAUSE_LAST)

    async def _round(self) -> dict[str, SpaceError]:
        """Tell what is missing; what did not go, by service. `_turn` is held."""
        services, known, policy = self._services, self._known, self.policy
        if self._over or services.gateway.client is None:
            return {"gateway": Unavailable("the gateway is away")}
        life = services.gateway.life
        fresh = known.gateway != life
        with ExitStack() as stack:
            ours: dict[What, socket.socket] = {}
            jobs: dict[str, Coroutine[Any, Any, None]] = {}
            for what in WHATS:
                link = self._link(what)
                if not fresh and (link.client is None or known.sockets.get(what) == link.life):
                    continue
                ours[what], theirs = (stack.enter_context(one) for one in pair())
                if link.client is not None:
                    jobs[what] = self._hand(what, theirs, ours[what] if not fresh else None, link.life, policy)
                else:
                    theirs.close()
            if fresh:
                known.sockets.clear()
                known.dialer_policy = None
                jobs["gateway"] = self._bind_worker(ours, life, policy)
            elif known.worker_policy != (life, policy):
                jobs["gateway"] = self._set_worker_policy(life, policy)
            dialer = services.dialer
            if "dialer" not in jobs and dialer.client is not None and known.dialer_policy != (dialer.life, policy):
                jobs["dialer"] = self._set_dialer_policy(dialer.life, policy)
            jobs["rootd"] = self._set_literal(policy)
            results = await asyncio.gather(*jobs.values(), return_exceptions=True)
        return _faults(jobs, results)

    async def _hand(self, what: What, theirs: socket.socket, ours: socket.socket | None, life: int, policy: Held) -> None:
        """One service gets its end, and where `ours` is given the zygote the other, for the worker that it has."""
        handing: dict[What, Callable[[socket.socket], Awaitable[None]]] = {
            "signer": self._bind_signer,
            "audit": self._bind_audit,
            "dialer": lambda sock: self._bind_dialer(sock, life, policy),
        }
        who = self.who
        if ours is None:
            await handing[what](theirs)
        else:
            gateway = self._services.gateway.now()
            await _together(handing[what](theirs), gateway.reconnect(who.sandbox, who.generation, what, ours))
        self._known.sockets[what] = life

    async def _bind_signer(self, sock: socket.socket) -> None:
        who = self.who
        again = sock.dup()
        with again:
            try:
                await self._bind_broker(sock)
            except NotFound:  # the first sandbox of this template since the broker's store began
                await self._rootd.provide_root(who.template)
                await self._bind_broker(again)
        self._stale = True
        await self.environment()

    async def _bind_broker(self, sock: socket.socket) -> None:
        who, broker = self.who, self._services.broker.now()
        await broker.bind_sandbox(
            sock, who.sandbox, who.generation, who.template, 0,
            tenant=who.tenant, template_name=who.template_name, labels=who.labels, forked=who.forked,
        )  # fmt: skip

    async def _read_placeholders(self) -> None:
        async with asyncio.timeout(limits.PLACEHOLDERS):
            self.placeholders = await self._services.broker.now().placeholders(self.who.sandbox, self.who.generation)

    async def _bind_audit(self, sock: socket.socket) -> None:
        await self._services.audit.now().bind_source(sock, WRITER, self.who.sandbox, self.who.generation)

    async def _bind_dialer(self, sock: socket.socket, life: int, policy: Held) -> None:
        who = self.who
        dialer = self._services.dialer.now()
        await self._services.put_policy(self._policies, policy.digest)
        await dialer.bind(sock, who.sandbox, who.generation, policy.digest, policy.generation)
        self._known.dialer_policy = (life, policy)

    async def _set_dialer_policy(self, life: int, policy: Held) -> None:
        who = self.who
        dialer = self._services.dialer.now()
        await self._services.put_policy(self._policies, policy.digest)
        await dialer.set_policy(who.sandbox, who.generation, policy.digest, policy.generation)
        self._known.dialer_policy = (life, policy)

    async def _bind_worker(self, ours: dict[What, socket.socket], life: int, policy: Held) -> None:
        who = self.who
        gateway = self._services.gateway.now()
        edge = self._edge
        if edge is None:  # the zygote that had it is gone
            edge = self._edge = await Edge.make(self._rootd, who.slot, who.synthetic, literal=await self._policies.literals(policy.digest))
            self._known.literal = edge.literal
        if self._memory is None:
            self._memory = make_memory()
        signer, audit, dialer = (ours[what].fileno() for what in WHATS)
        means = Means(edge.transparent, edge.dns, edge.dns_tcp, signer, audit, dialer, self._memory, edge.cgroups)
        await _together(
            gateway.bind(who.sandbox, who.generation, who.slot, who.synthetic, means),
            self._set_worker_policy(life, policy),
        )
        self._known.gateway = life
        edge.close()
        self._edge = None

    async def _set_worker_policy(self, life: int, policy: Held) -> None:
        who = self.who
        memfd = self._policies.sealed(policy.digest)
        try:
            await self._services.gateway.now().set_policy(who.sandbox, who.generation, policy.generation, memfd)
        finally:
            os.close(memfd)
        self._known.worker_policy = (life, policy)

    async def _set_literal(self, policy: Held) -> None:
        """The slot's filter lets packets to addresses that no name has in, or no longer."""
        literal = await self._policies.literals(policy.digest)
        if literal == self._known.literal:
            return
        (await self._rootd.create_edge(self.who.slot, self.who.synthetic, literal=literal)).close()
        self._known.literal = literal

    # -- parts ---------------------------------------------------------------------------------------------------

    def _link(self, what: What) -> Any:
        services = self._services
        return {"signer": services.broker, "audit": services.audit, "dialer": services.dialer}[what]

    def _let_go(self) -> None:
        if self._edge is not None:
            self._edge.close()
            self._edge = None
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None


async def _together(*work: Awaitable[None]) -> None:
    """All of it, begun in this order; the first fault once all have ended, so that no descriptor is in use any more."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _faults(jobs: dict[str, Coroutine[Any, Any, None]], results: list[BaseException | None]) -> dict[str, SpaceError]:
    faults: dict[str, SpaceError] = {}
    for name, result in zip(jobs, results, strict=True):
        if isinstance(result, SpaceError):
            faults[name] = result
        elif isinstance(result, OSError):
            faults[name] = Unavailable(f"{result.strerror}")
        elif result is not None:
            raise result
    return faults
