"""SimNode's egress: policies by digest, what holds for each sandbox, requests that wait for a person, counters; no traffic.

node.egress.ask("sb-...", host="example.com")     # as if a request waited; the id that answers it
node.egress.crash_worker("sb-...", "signal 11")
node.egress.answered                              # [(sandbox, ask, allow)]
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from space.model.errors import InvalidArgument, NotFound
from space.rpc import node_api as api
from space.rpc.session import Data, Stream


@dataclass(slots=True)
class SimTraffic:
    """Of one sandbox."""

    policy: str = ""
    policy_generation: int = 0
    asks: dict[str, api.PendingAsk] = field(default_factory=dict)
    crashes: int = 0
    last_crash: str | None = None
    waiting_for: list[str] = field(default_factory=list)
    alarms: dict[tuple[str, str], api.CredentialAlarm] = field(default_factory=dict)
    counters: api.EgressCounters = field(default_factory=lambda: api.EgressCounters({"guest_udp": 2}, 3, 5, 1, 2, 700, 9000, False, 0))

    def state(self) -> api.EgressState:
        """As it is told."""
        return api.EgressState(
            self.policy, self.policy_generation, list(self.waiting_for), self.crashes, self.last_crash, list(self.alarms.values())
        )  # fmt: skip


class SimEgress:
    """Part of a SimNode's verbs. find: NotFound; changed: its level is to be shown again."""

    def __init__(self, find: Callable[[str], SimTraffic], changed: Callable[[str], None]) -> None:
        self._find = find
        self._changed = changed
        self._number = 0
        self.policies: dict[str, bytes] = {}
        self.answered: list[tuple[str, str, bool]] = []
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "policy_put": self._put,
            "set_policy": self._set,
            "egress_answer": self._answer,
            "egress_counters": self._counters,
        }

    def begin(self, asked: api.Create) -> SimTraffic:
        """A sandbox is made. NotFound without its policy."""
        self.known(asked.policy)
        return SimTraffic(asked.policy, asked.policy_generation)

    def ask(
        self, sandbox: str, *, host: str = "example.com", port: int = 443, method: str = "GET", path: str = "/", rule: str = "rule 1"
    ) -> str:
        """A request waits."""
        self._number += 1
        ask = api.PendingAsk(f"ask-{self._number}", host, port, "https", method, path, rule, time.time_ns() // 1000)
        self._find(sandbox).asks[ask.ask] = ask
        self._changed(sandbox)
        return ask.ask

    def give_up(self, sandbox: str, ask: str) -> None:
        """It waits no longer: its client left, or its time is over."""
        if self._find(sandbox).asks.pop(ask, None) is not None:
            self._changed(sandbox)

    def crash_worker(self, sandbox: str, detail: str) -> None:
        """As if the sandbox's worker had crashed."""
        traffic = self._find(sandbox)
        traffic.crashes, traffic.last_crash = traffic.crashes + 1, detail
        self._changed(sandbox)

    def known(self, digest: str) -> None:
        """NotFound without that policy."""
        if digest and digest not in self.policies:
            raise NotFound(f"this node has no policy {digest}", hint="put it, then ask again")

    async def _put(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.PolicyPut)
        taken = bytearray()
        async for event in stream:
            if isinstance(event, Data):
                taken += event.payload
        found = hashlib.sha256(taken).hexdigest()[:32]
        if (len(taken), found) != (asked.bytes, asked.digest):
            raise InvalidArgument(f"{len(taken)} bytes with digest {found} came, {asked.bytes} with {asked.digest} were announced")
        self.policies[asked.digest] = bytes(taken)
        await stream.send_message(api.Done())

    async def _set(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.SetPolicy)
        traffic = self._find(asked.sandbox)
        self.known(asked.policy)
        if asked.policy_generation >= traffic.policy_generation:
            traffic.policy, traffic.policy_generation = asked.policy, asked.policy_generation
            self._changed(asked.sandbox)
        await stream.send_message(api.Done())

    async def _answer(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.EgressAnswer)
        if self._find(asked.sandbox).asks.pop(asked.ask, None) is None:
            raise NotFound(f"sandbox {asked.sandbox} has no request {asked.ask} that waits")
        self.answered.append((asked.sandbox, asked.ask, asked.allow))
        self._changed(asked.sandbox)
        await stream.send_message(api.Done())

    async def _counters(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(self._find(msgspec.msgpack.decode(request, type=api.Target).sandbox).counters)
