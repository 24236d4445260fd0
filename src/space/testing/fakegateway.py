"""The gateway's zygote in memory, with `GatewayClient`'s methods: for the node's tests. What a sandbox would do is called by the test.

No worker runs: `came` says that something waits at a sandbox's listener, `says` that its worker sends a message, `crash` that it died.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from space.core.policy.document import DocumentRefused, read
from space.model.errors import Conflict, InvalidArgument, NotFound, Unavailable
from space.rpc import gateway_api as api
from space.rpc.gateway_client import Means

Life = tuple[str, int]


@dataclass(slots=True)
class Bound:
    """A binding. document: the bytes of its policy; said: what the node said to its workers; reconnected: sockets since, by kind."""

    sandbox: str
    generation: int
    slot: int
    synthetic: str
    held: list[int]
    policy_generation: int = 0
    document: bytes = b""
    refused: str = ""
    pid: int = 0
    said: list[bytes] = field(default_factory=list)
    reconnected: list[api.What] = field(default_factory=list)


class FakeGateway:
    """alive: False fails every method as when the zygote is gone; `die` does that, tells `ended` and forgets everything."""

    def __init__(self, heard: Callable[[api.Unasked], None], ended: Callable[[], None] | None = None) -> None:
        self.bound: dict[Life, Bound] = {}
        self.alive = True
        self._heard = heard
        self._ended = ended
        self._pids = 100_000

    # -- as GatewayClient ----------------------------------------------------------------------------------------
    async def bind(self, sandbox: str, generation: int, slot: int, synthetic: str, means: Means) -> None:
        self._living()
        if not 1 <= len(means.cgroups) <= api.MOST_CGROUPS:
            raise InvalidArgument(f"Bind comes with 1 to {api.MOST_CGROUPS} cgroup files, and this came with {len(means.cgroups)}")
        for one in list(self.bound.values()):
            if one.sandbox == sandbox and one.generation > generation:
                raise Conflict(f"{sandbox} is bound in its life {one.generation}, and {generation} is earlier")
            if one.sandbox != sandbox and one.slot == slot:
                raise Conflict(f"slot {slot} is bound to {one.sandbox}")
        for one in list(self.bound.values()):
            if one.sandbox == sandbox:
                self._drop(one)
        held = [os.dup(descriptor) for descriptor in means.all()]
        self.bound[sandbox, generation] = Bound(sandbox, generation, slot, synthetic, held)

    async def set_policy(self, sandbox: str, generation: int, policy_generation: int, memfd: int) -> None:
        bound = self._get(sandbox, generation)
        bound.policy_generation, bound.refused = policy_generation, ""
        bound.document = os.pread(memfd, api.MOST_POLICY, 0)
        if bound.pid:
            try:
                read(bound.document)
            except DocumentRefused as error:
                bound.refused = str(error)
                raise InvalidArgument(f"the policy of {sandbox} cannot be read, and nothing is allowed: {error}") from error

    async def reconnect(self, sandbox: str, generation: int, what: api.What, sock: socket.socket) -> None:
        with sock:
            bound = self._get(sandbox, generation)
            place = {"signer": 3, "audit": 4, "dialer": 5}[what]
            os.close(bound.held[place])
            bound.held[place] = os.dup(sock.fileno())
            bound.reconnected.append(what)

    async def say(self, sandbox: str, generation: int, message: bytes) -> None:
        bound = self._get(sandbox, generation)
        if not bound.pid:
            raise NotFound(f"no worker of {sandbox} lives")
        bound.said.append(message)

    async def end(self, sandbox: str, generation: int) -> None:
        self._living()
        if (sandbox, generation) in self.bound:
            self._drop(self.bound[sandbox, generation])

    async def describe(self) -> list[api.Binding]:
        self._living()
        ordered = sorted(self.bound.values(), key=lambda one: one.slot)
        return [api.Binding(one.sandbox, one.generation, one.slot, one.policy_generation, one.pid, one.refused) for one in ordered]

    def close(self) -> None:
        self.alive = False

    # -- what happens on the other side --------------------------------------------------------------------------
    def came(self, sandbox: str) -> None:
        """Something waits at its listener: a worker is forked, if there is none."""
        bound = self._of(sandbox)
        if not bound.pid:
            self._pids += 1
            bound.pid = self._pids
            self._heard(api.WorkerStarted(sandbox, bound.generation, bound.pid))

    def says(self, sandbox: str, message: bytes) -> None:
        """Its worker sends a message."""
        self._heard(api.Heard(sandbox, self._of(sandbox).generation, message))

    def crash(self, sandbox: str, detail: str = "ended by SIGSEGV", *, crashed: bool = True) -> None:
        """Its worker is gone; crashed=False: for idleness."""
        bound = self._of(sandbox)
        bound.pid = 0
        self._heard(api.WorkerEnded(sandbox, bound.generation, crashed, detail))

    def die(self) -> None:
        """As the zygote killed: no binding is left, and who listens is told once. `alive = True` is the next one."""
        self.alive = False
        for one in self.bound.values():
            _close(one)
        self.bound.clear()
        if self._ended is not None:
            self._ended()

    # -- inside --------------------------------------------------------------------------------------------------
    def _living(self) -> None:
        if not self.alive:
            raise Unavailable("the gateway is gone")

    def _get(self, sandbox: str, generation: int) -> Bound:
        self._living()
        try:
            return self.bound[sandbox, generation]
        except KeyError:
            raise NotFound(f"life {generation} of {sandbox} is not bound") from None

    def _of(self, sandbox: str) -> Bound:
        return next(one for one in self.bound.values() if one.sandbox == sandbox)

    def _drop(self, bound: Bound) -> None:
        del self.bound[bound.sandbox, bound.generation]
        _close(bound)
        if bound.pid:
            bound.pid = 0
            self._heard(api.WorkerEnded(bound.sandbox, bound.generation, crashed=False, detail="asked to"))


def _close(bound: Bound) -> None:
    for descriptor in bound.held:
        os.close(descriptor)
    bound.held.clear()
