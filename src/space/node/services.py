"""The five services of egress, as long as each lives: one connection to each, made again when it ends, and what joins them to each other.

    away --connected, and answered once--> up, in its next life --the connection ends--> away

A service that serve starts again is found by the same connection attempt that waits in its listener's backlog, so nobody polls; one that
nobody listens for is tried after growing pauses. What a service forgets when it dies is told again by whoever watches `arrived`.
The keeper of the records needs the broker (which vouches for its chains), broker and dialer need the keeper, the minter broker and dialer:
they are joined here, again in each life of either. Without the minter nothing waits: only credentials that it would exchange are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from space.model.errors import SpaceError, Unavailable
from space.node import limits
from space.node.policies import Policies
from space.node.shield import ended
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl
from space.rpc.dialer_client import DialerControl
from space.rpc.gateway_client import GatewayClient
from space.rpc.minter_client import MinterControl
from space.rpc.packets import pair

log = logging.getLogger(__name__)
WRITERS = ("gateway", "dialer", "broker")  # the chains of records


class Client(Protocol):
    """Any of them."""

    def close(self) -> None:
        """Hang up."""


C = TypeVar("C", bound=Client)


class Link(Generic[C]):
    """One service. connect: given what is to be called when the connection ends. life: counts its lives; 0 before the first."""

    def __init__(self, name: str, connect: Callable[[Callable[[], None]], C], greet: Callable[[C], Awaitable[object]]) -> None:
        self.name = name
        self._connect = connect
        self._greet = greet
        self.life = 0
        self.client: C | None = None
        self._up: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, arrived: Callable[[object], None], departed: Callable[[], None]) -> None:
        """Keep it. arrived: gets what the greeting gave, before anybody else speaks to that life."""
        self._task = asyncio.create_task(self._keep(arrived, departed), name=f"link to the {self.name}")

    async def up(self) -> C:
        """The client of the life of now; waits for one."""
        while self.client is None:
            await self._up.wait()
        return self.client

    def now(self) -> C:
        """The same. Unavailable while there is none."""
        if self.client is None:
            raise Unavailable(f"the {self.name} is away", hint="it is started again; repeat in a moment")
        return self.client

    async def stop(self) -> None:
        """Hang up for good."""
        if self._task is not None:
            await ended(self._task)

    def give_up(self) -> None:
        """The same, at once: this node is dead."""
        if self._task is not None:
            self._task.cancel()

    async def _keep(self, arrived: Callable[[object], None], departed: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        pause = limits.SERVICE_PAUSE_FIRST
        while True:
            began = loop.time()
            try:
                await self._live(arrived, departed)
            except SpaceError as error:
                log.log(logging.INFO if pause < limits.SERVICE_PAUSE_LAST else logging.WARNING, "the %s is away: %s", self.name, error)
            if loop.time() - began > limits.SERVICE_STEADY:
                pause = limits.SERVICE_PAUSE_FIRST
            await asyncio.sleep(pause)
            pause = min(pause * 2, limits.SERVICE_PAUSE_LAST)

    async def _live(self, arrived: Callable[[object], None], departed: Callable[[], None]) -> None:
        gone = asyncio.Event()
        client = self._connect(gone.set)
        try:
            found = await self._greet(client)
            if gone.is_set():
                return
            self.life += 1
            self.client = client
            arrived(found)
            self._up.set()
            await gone.wait()
        finally:
            self._up.clear()
            was, self.client = self.client, None
            client.close()
            if was is not None and gone.is_set():
                departed()


class Services:
    """One a node. `egress.Egress` is the one who watches."""

    def __init__(
        self,
        gateway: Link[GatewayClient],
        broker: Link[BrokerControl],
        audit: Link[AuditControl],
        dialer: Link[DialerControl],
        minter: Link[MinterControl],
    ) -> None:
        self.gateway, self.broker, self.audit, self.dialer, self.minter = gateway, broker, audit, dialer, minter
        self._joins: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.unasked: Callable[[object], None] = lambda said: None  # gets what the broker says by itself
        self._put: tuple[int, dict[str, asyncio.Future[None]]] = (0, {})  # what the dialer was given, in which of its lives

    async def put_policy(self, policies: Policies, digest: str) -> None:
        """The dialer has that document when this returns: put once in each of its lives, however many ask at the same time."""
        if not digest:
            return
        dialer, life = self.dialer.now(), self.dialer.life
        if self._put[0] != life:
            self._put = (life, {})
        given = self._put[1]
        if digest not in given:
            given[digest] = asyncio.ensure_future(dialer.put_policy(digest, policies.document(digest)))
        putting = given[digest]
        try:
            await asyncio.shield(putting)
        except SpaceError:
            if given.get(digest) is putting:
                del given[digest]
            raise

    async def drop_policies(self) -> None:
        """The dialer lets go of those that no sandbox is bound to, once they are many."""
        life, given = self._put
        if self.dialer.client is not None and life == self.dialer.life and len(given) > limits.DIALER_POLICIES:
            given.clear()  # what is bound from now on is put before it again
            with suppress(SpaceError):  # it is gone, and so are they
                await self.dialer.client.drop_policies(())

    def start(self, arrived: Callable[[str, object], None], departed: Callable[[str], None]) -> None:
        """Keep them all. Both are told the service's name."""
        for link in self._all():
            link.start(partial(self._arrived, arrived, link.name), partial(departed, link.name))

    def _all(self) -> tuple[Link[Any], ...]:
        return (self.gateway, self.broker, self.audit, self.dialer, self.minter)

    def away(self) -> list[str]:
        """Names of those that are, and that every sandbox's traffic needs."""
        return [link.name for link in (self.gateway, self.broker, self.audit, self.dialer) if link.client is None]

    async def all_up(self) -> None:
        """Until every service is that every sandbox's traffic needs."""
        await asyncio.gather(self.gateway.up(), self.broker.up(), self.audit.up(), self.dialer.up())

    async def stop(self) -> None:
        """Hang up on all of them; what is bound stays bound."""
        self._stopping = True
        await ended(*self._joins)
        for link in self._all():
            await link.stop()

    def give_up(self) -> None:
        """At once: this node is dead."""
        self._stopping = True
        for task in self._joins:
            task.cancel()
        for link in self._all():
            link.give_up()

    def _arrived(self, arrived: Callable[[str, object], None], name: str, found: object) -> None:
        if name in (self.broker.name, self.audit.name):
            self._join(self._broker_to_audit, (self.broker, self.audit))
            self._join(self._audit_to_broker, (self.audit, self.broker))
        if name in (self.audit.name, self.dialer.name):
            self._join(self._audit_to_dialer, (self.audit, self.dialer))
        if name in (self.dialer.name, self.minter.name):
            self._join(self._dialer_to_minter, (self.dialer, self.minter))
        if name in (self.broker.name, self.minter.name):
            self._join(self._minter_to_broker, (self.minter, self.broker))
        arrived(name, found)

    def _join(self, join: Callable[[], Awaitable[None]], both: tuple[Link[Any], Link[Any]]) -> None:
        if all(link.client is not None for link in both):
            task = asyncio.create_task(self._until_joined(join, both), name=f"join {both[0].name} and {both[1].name}")
            self._joins.add(task)
            task.add_done_callback(self._joins.discard)

    @staticmethod
    async def _until_joined(join: Callable[[], Awaitable[None]], both: tuple[Link[Any], Link[Any]]) -> None:
        """In these lives of theirs: whoever of them dies is joined again when it is back."""
        lives = [link.life for link in both]
        pause = limits.SERVICE_PAUSE_FIRST
        while all(link.client is not None for link in both) and lives == [link.life for link in both]:
            try:
                await join()
            except SpaceError as error:
                log.warning("cannot join %s and %s yet: %s", both[0].name, both[1].name, error)
            else:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, limits.SERVICE_PAUSE_LAST)

    async def _broker_to_audit(self) -> None:
        ours, theirs = pair()
        with ours, theirs:
            await self.broker.now().bind_writer(ours, WRITERS)
            await self.audit.now().bind_broker(theirs)

    async def _audit_to_broker(self) -> None:
        ours, theirs = pair()
        with ours, theirs:
            await asyncio.gather(self.audit.now().bind_source(ours, "broker", "", 0), self.broker.now().bind_audit(theirs))

    async def _audit_to_dialer(self) -> None:
        ours, theirs = pair()
        with ours, theirs:
            await asyncio.gather(self.audit.now().bind_source(ours, "dialer", "", 0), self.dialer.now().bind_audit(theirs))

    async def _dialer_to_minter(self) -> None:
        ours, theirs = pair()
        with ours, theirs:
            await asyncio.gather(self.dialer.now().bind_minter(ours), self.minter.now().bind_dialer(theirs))

    async def _minter_to_broker(self) -> None:
        ours, theirs = pair()
        with ours, theirs:
            await asyncio.gather(self.minter.now().bind_broker(ours), self.broker.now().bind_minter(theirs))
