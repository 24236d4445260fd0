"""The services of egress in memory, and what may happen to each: it dies, is away for a while, refuses, or hangs.

    services.kill("dialer")                     it forgets everything; who was connected is told; it is back at once
    with services.gone("broker"): ...           nobody listens there
    services.fail_next("audit", "bind_source", Unavailable("...")) ; when="after": it had its effect
    services.holds("sb-...")                    who holds something of a sandbox

Each connection is a `_Line` to the one fake behind it. Sockets that are handed over are kept open, as a service would.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from space.core.credentials.grant import Life
from space.model.errors import Gone, NotFound, Unavailable
from space.node.services import Link, Services
from space.rpc import audit_api, gateway_api, minter_api
from space.testing.fakedialer import FakeDialer
from space.testing.fakegateway import FakeGateway
from space.testing.memorycredentials import MemoryCredentials
from space.testing.memoryhost import MemoryHost

NAMES = ("gateway", "broker", "audit", "dialer")  # that hold something of each sandbox


class FakeBroker(MemoryCredentials):
    """Roots that rootd has provided; lives; writers; secrets and grants, which outlive it."""

    def __init__(self, host: MemoryHost) -> None:
        super().__init__()
        self._host = host
        self.lives: dict[str, tuple[int, Life]] = {}
        self.bound: dict[str, tuple[int, str, socket.socket]] = {}
        self.ended: dict[str, int] = {}
        self.writers: socket.socket | None = None
        self.handed: dict[str, socket.socket] = {}

    async def head_key(self) -> bytes:
        return bytes(32)

    async def bind_sandbox(
        self,
        sock: socket.socket,
        sandbox: str,
        generation: int,
        template: str,
        template_generation: int,
        *,
        tenant: str = "",
        template_name: str = "",
        labels: Mapping[str, str] | None = None,
        forked: bool = False,
    ) -> None:
        with sock:
            assert template_generation == 0, "of a template's digest there is one"
            if generation <= self.ended.get(sandbox, -1):
                raise Gone(f"{sandbox} {generation} is over")
            if template not in self._host.provided:
                raise NotFound(f"there is no root of {template}")
            self._close(sandbox)
            self.bound[sandbox] = (generation, template, sock.dup())
            self.lives[sandbox] = (generation, Life(tenant, sandbox, template_name, dict(labels or {}), forked))

    async def placeholders(self, sandbox: str, generation: int) -> dict[str, str]:
        known, life = self.lives.get(sandbox, (0, None))
        if life is None or known != generation:
            raise Gone(f"{sandbox} {generation} is not bound")
        return self.environment(life, generation)

    async def end_sandbox(self, sandbox: str, generation: int) -> None:
        self.ended[sandbox] = max(generation, self.ended.get(sandbox, -1))
        if sandbox in self.bound and self.bound[sandbox][0] <= generation:
            self._close(sandbox)

    async def bind_writer(self, sock: socket.socket, writers: tuple[str, ...]) -> None:
        with sock:
            assert set(writers) == {"gateway", "dialer", "broker"}
            if self.writers is not None:
                self.writers.close()
            self.writers = sock.dup()

    async def bind_minter(self, sock: socket.socket) -> None:
        self._hand("minter", sock)

    async def bind_audit(self, sock: socket.socket) -> None:
        self._hand("audit", sock)

    def _hand(self, name: str, sock: socket.socket) -> None:
        with sock:
            before, self.handed[name] = self.handed.get(name), sock.dup()
            if before is not None:
                before.close()

    def die(self) -> None:
        """It forgets."""
        for sandbox in list(self.bound):
            self._close(sandbox)
        self.ended.clear()
        self.lives.clear()
        for sock in self.handed.values():
            sock.close()
        self.handed.clear()
        if self.writers is not None:
            self.writers.close()
            self.writers = None

    def _close(self, sandbox: str) -> None:
        bound = self.bound.pop(sandbox, None)
        if bound is not None:
            bound[2].close()


class FakeAudit:
    """Sources by writer, sandbox and generation."""

    def __init__(self) -> None:
        self.sources: dict[tuple[str, str, int], socket.socket] = {}
        self.broker: socket.socket | None = None

    async def status(self) -> audit_api.Standing:
        return audit_api.Standing(1, [], len(self.sources))

    async def bind_source(self, sock: socket.socket, writer: str, sandbox: str, generation: int) -> None:
        with sock:
            await self.end_source(writer, sandbox, generation)
            self.sources[writer, sandbox, generation] = sock.dup()

    async def end_source(self, writer: str, sandbox: str, generation: int) -> None:
        before = self.sources.pop((writer, sandbox, generation), None)
        if before is not None:
            before.close()

    async def bind_broker(self, sock: socket.socket) -> None:
        with sock:
            if self.broker is not None:
                self.broker.close()
            self.broker = sock.dup()

    def die(self) -> None:
        """It forgets."""
        for sock in self.sources.values():
            sock.close()
        self.sources.clear()
        if self.broker is not None:
            self.broker.close()
            self.broker = None


class FakeMinter:
    """What it was handed."""

    def __init__(self) -> None:
        self.handed: dict[str, socket.socket] = {}

    async def describe(self) -> minter_api.Standing:
        return minter_api.Standing(1, [], "broker" in self.handed, "dialer" in self.handed)

    async def bind_broker(self, sock: socket.socket) -> None:
        self._take("broker", sock)

    async def bind_dialer(self, sock: socket.socket) -> None:
        self._take("dialer", sock)

    def die(self) -> None:
        """It forgets."""
        for sock in self.handed.values():
            sock.close()
        self.handed.clear()

    def _take(self, name: str, sock: socket.socket) -> None:
        with sock:
            before, self.handed[name] = self.handed.get(name), sock.dup()
            if before is not None:
                before.close()


class _Line:
    """One connection."""

    def __init__(self, services: MemoryServices, name: str, ended: Callable[[], None]) -> None:
        self._services, self._name, self._ended = services, name, ended
        self._open = True

    def close(self) -> None:
        self._open = False
        self._services.lines[self._name].discard(self)

    def cut(self) -> None:
        """The other side is gone."""
        self.close()
        self._ended()

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            try:
                self._living()
                await self._services.turn(self._name, method, "before")
                self._living()
                found = await getattr(self._services.fakes[self._name], method)(*arguments, **named)
                await self._services.turn(self._name, method, "after")
                self._living()
            finally:
                for one in arguments:
                    if isinstance(one, socket.socket):
                        one.close()
            return found

        return call

    def _living(self) -> None:
        if not self._open:
            raise Unavailable(f"the {self._name} is gone")


class MemoryServices:
    """All of them. calls: what was asked of them, as `name.method`."""

    def __init__(self, host: MemoryHost) -> None:
        self.gateway = FakeGateway(self._heard)
        self.broker = FakeBroker(host)
        self.audit = FakeAudit()
        self.dialer = FakeDialer()
        self.minter = FakeMinter()
        self.fakes: dict[str, Any] = {
            "gateway": self.gateway, "broker": self.broker, "audit": self.audit, "dialer": self.dialer, "minter": self.minter,
        }  # fmt: skip
        self.lines: dict[str, set[_Line]] = defaultdict(set)
        self.calls: list[str] = []
        self.at: dict[tuple[str, str, str], Callable[[], object]] = {}  # (name, method, when): done there, once
        self._away: set[str] = set()
        self._listening: Callable[[gateway_api.Unasked], None] | None = None

    def links(self, heard: Callable[[gateway_api.Unasked], None]) -> Services:
        """For a node, which from now on is told what the zygote says."""
        self._listening = heard

        def link(name: str, greet: str) -> Link[Any]:
            return Link(name, lambda ended: self._connect(name, ended), lambda client: getattr(client, greet)())

        return Services(
            link("gateway", "describe"),
            link("broker", "head_key"),
            link("audit", "status"),
            link("dialer", "describe"),
            link("minter", "describe"),
        )

    def kill(self, name: str) -> None:
        """SIGKILL, and serve starts the next one."""
        fake = self.fakes[name]
        if name == "dialer":
            fake.close()
            fake.documents.clear()
        else:
            fake.die()
        if name == "gateway":
            fake.alive = True
        for line in list(self.lines[name]):
            line.cut()

    @contextmanager
    def gone(self, name: str) -> Iterator[None]:
        """Killed, and not started again meanwhile."""
        self._away.add(name)
        self.kill(name)
        try:
            yield
        finally:
            self._away.discard(name)

    def fail_next(self, name: str, method: str, error: Exception | None = None, *, when: str = "before") -> None:
        """The next call of it raises, `before` or `after` it had its effect."""

        def fail() -> None:
            raise error or Unavailable(f"the {name} is gone")

        self.at[name, method, when] = fail

    def kill_at(self, name: str, method: str, *, when: str = "before") -> None:
        """It dies when that is asked of it."""
        self.at[name, method, when] = lambda: self.kill(name)

    def holds(self, sandbox: str) -> list[str]:
        """Who holds something of a sandbox."""
        found = [f"gateway {generation}" for one, generation in self.gateway.bound if one == sandbox]
        found += ["broker"] if sandbox in self.broker.bound else []
        found += [f"audit {generation}" for _, one, generation in self.audit.sources if one == sandbox]
        found += ["dialer"] if sandbox in self.dialer.bound else []
        return found

    def whole(self, sandbox: str) -> bool:
        """All four hold it, the worker's ends lead to those that hold the others, and both who decide have one policy."""
        gateway = next((one for one in self.gateway.bound.values() if one.sandbox == sandbox), None)
        if gateway is None or len(self.holds(sandbox)) != len(NAMES):
            return False
        others = (
            self.broker.bound[sandbox][2],
            self.audit.sources["gateway", sandbox, gateway.generation],
            self.dialer.bound[sandbox].sock,
        )
        joined = all(_joined(mine, other) for mine, other in zip(gateway.held[3:6], others, strict=True))
        dialer = self.dialer.bound[sandbox]
        return joined and gateway.policy_generation == dialer.policy_generation and bool(gateway.document)

    def close(self) -> None:
        """Let go of every descriptor."""
        for name in self.fakes:
            self.kill(name)

    async def turn(self, name: str, method: str, when: str) -> None:
        """A call gets there, or its answer leaves."""
        if when == "before":
            self.calls.append(f"{name}.{method}")
        await asyncio.sleep(0)
        do = self.at.pop((name, method, when), None)
        if do is not None:
            do()

    def _connect(self, name: str, ended: Callable[[], None]) -> Any:
        if name in self._away:
            raise Unavailable(f"the {name} cannot be reached")
        line = _Line(self, name, ended)
        self.lines[name].add(line)
        return line

    def _heard(self, event: gateway_api.Unasked) -> None:
        if self._listening is not None and self.lines["gateway"]:
            self._listening(event)


def _joined(descriptor: int, other: socket.socket) -> bool:
    """Whether both ends are open. (Which belong together, a test finds out by speaking.)"""
    poll = select.poll()
    for one in (descriptor, other.fileno()):
        poll.register(one, select.POLLHUP)
    return not poll.poll(0)
