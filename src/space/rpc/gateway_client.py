"""The gateway's zygote, as the node sees it."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from space.core.policy.kept import SIZE as MEMORY_BYTES
from space.model.errors import InvalidArgument, Unavailable
from space.rpc import gateway_api as api
from space.rpc.asking import Asker
from space.rpc.dialer_client import sealed

__all__ = ["MEMORY_BYTES", "MEMORY_SEALS", "POLICY_SEALS", "GatewayClient", "Means", "make_memory", "make_policy"]

MEMORY_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
POLICY_SEALS = MEMORY_SEALS | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class Means:
    """Descriptors of what a worker needs, in the order of Bind. They stay the caller's."""

    listener: int
    dns: int
    dns_tcp: int
    signer: int
    audit: int
    dialer: int
    memory: int
    cgroups: Sequence[int]

    def all(self) -> list[int]:
        """As they go over the socket."""
        return [self.listener, self.dns, self.dns_tcp, self.signer, self.audit, self.dialer, self.memory, *self.cgroups]


class GatewayClient:
    """Over a connected socket, which it takes over.

    heard: gets what comes unasked, within the event loop; it must not raise. ended: the zygote is gone, with every binding and worker.
    Every method: Unavailable when the zygote is gone; NotFound for a life that is not bound.
    """

    def __init__(self, sock: socket.socket, heard: Callable[[api.Unasked], None], ended: Callable[[], None] | None = None) -> None:
        def unasked(message: object) -> None:
            if isinstance(message, api.WorkerStarted | api.WorkerEnded | api.Heard):
                heard(message)

        self._asker = Asker(sock, api.Answer | api.Unasked, who="the gateway", unasked=unasked, ended=ended)

    @classmethod
    def connect(cls, path: Path, heard: Callable[[api.Unasked], None], ended: Callable[[], None] | None = None) -> Self:
        """Unavailable when nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the gateway cannot be reached at {path}: {error.strerror}") from error
        return cls(sock, heard, ended)

    async def bind(self, sandbox: str, generation: int, slot: int, synthetic: str, means: Means) -> None:
        """From now on a worker serves it when something comes. Conflict: another sandbox, or a later life, has the slot."""
        await self._do(api.Bind(self._asker.number(), sandbox, generation, slot, synthetic), means.all())

    async def set_policy(self, sandbox: str, generation: int, policy_generation: int, memfd: int) -> None:
        """The document in `memfd` (`make_policy`) holds when this returns. InvalidArgument: it cannot be read, and nothing is allowed."""
        await self._do(api.SetPolicy(self._asker.number(), sandbox, generation, policy_generation), [memfd])

    async def reconnect(self, sandbox: str, generation: int, what: api.What, sock: socket.socket) -> None:
        """Hand over the worker's end of a new socket; it is closed here."""
        with sock:
            await self._do(api.Reconnect(self._asker.number(), sandbox, generation, what), [sock.fileno()])

    async def say(self, sandbox: str, generation: int, message: bytes) -> None:
        """A message to the living worker."""
        await self._do(api.Say(self._asker.number(), sandbox, generation, message))

    async def end(self, sandbox: str, generation: int) -> None:
        """Its worker is dead and nothing of it is open when this returns."""
        await self._do(api.End(self._asker.number(), sandbox, generation))

    async def describe(self) -> list[api.Binding]:
        """Every binding, by slot."""
        found: list[api.Binding] = []
        more = True
        while more:
            number = self._asker.number()
            question = api.Describe(number, after=found[-1].slot if found else -1)
            part = await self._asker.ask(number, api.encode(question), api.Standing)
            found += part.bindings
            more = part.more and bool(part.bindings)
        return found

    def close(self) -> None:
        """Hang up; bindings and workers go on."""
        self._asker.close()

    async def _do(self, question: api.ToControl, descriptors: Sequence[int] = ()) -> None:
        await self._asker.ask(question.id, api.encode(question), api.Done, descriptors)


def make_memory() -> int:
    """A memfd for what outlives a sandbox's workers (`core.policy.kept`), of a size that nobody can change."""
    descriptor = os.memfd_create("space-names", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MEMORY_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, MEMORY_SEALS)
    return descriptor


def make_policy(document: bytes) -> int:
    """A sealed memfd of a policy's document, for `set_policy`."""
    if not 0 < len(document) <= api.MOST_POLICY:
        raise InvalidArgument(f"a policy document of {len(document)} bytes, 1 to {api.MOST_POLICY} are possible")
    return sealed(document)
