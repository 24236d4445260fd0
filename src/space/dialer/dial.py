"""One dial for one sandbox: its policy of now, resolve once, vet the whole answer, connect to a checked address, record, hand over.

The policy is the dialer's own copy. Whoever asks says under which generation it judged; with another one than the dialer's it is refused,
and a policy that changed while the connection was being made is asked again before the socket goes out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol

from space.core.policy.addresses import Address
from space.core.policy.verdict import Deny, Layer, Stack
from space.dialer.connect import Connected, NotConnected, connect
from space.dialer.resolve import Resolved
from space.dialer.vet import Checked, NotChecked


@dataclass(frozen=True, slots=True)
class Refused:
    """No socket. denied: by rule, rather than for want of success."""

    reason: str
    denied: bool = False


@dataclass(frozen=True, slots=True)
class DialRecord:
    """For the audit. reason: why there is no socket, or empty. answers: what the name led to. address: the one that was connected to."""

    sandbox: str
    generation: int
    target: str
    port: int
    reason: str
    denied: bool
    answers: tuple[str, ...]
    address: str
    seconds: float


class Resolves(Protocol):
    """What of a resolver is needed."""

    async def resolve(self, name: str) -> Resolved: ...


class Policies:
    """The layers of each sandbox, by its newest generation."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Stack]] = {}

    def put(self, sandbox: str, generation: int, layers: tuple[Layer, ...]) -> bool:
        """Hold it; False when a newer one is held. One that is held already stays: another number, another policy."""
        held = self._held.get(sandbox)
        if held is not None and held[0] >= generation:
            return held[0] == generation
        self._held[sandbox] = (generation, Stack(layers))
        return True

    def remove(self, sandbox: str) -> None:
        """Nothing may be dialled for it any more."""
        self._held.pop(sandbox, None)

    def refusal(self, sandbox: str, target: str | IPv4Address, port: int, generation: int | None = None) -> Refused | None:
        """Why it may not be dialled; None when it may. generation: what the asker judged by, None for whatever holds now."""
        held = self._held.get(sandbox)
        if held is None:
            return Refused("no_policy", denied=True)
        if generation is not None and generation != held[0]:
            return Refused("policy_generation")
        verdict = held[1].flow(target, port) if isinstance(target, str) else held[1].literal(target, port)
        return Refused(verdict.reason, denied=True) if isinstance(verdict, Deny) else None


@dataclass(frozen=True, slots=True)
class Dialer:
    """All that a dial stands on. record: what cannot be recorded does not happen (an OSError of it refuses)."""

    policies: Policies
    resolver: Resolves
    vet: Callable[[tuple[Address, ...]], Checked | NotChecked]
    record: Callable[[DialRecord], None]
    clock: Callable[[], float]
    connect: Callable[[Checked, int], Awaitable[Connected | NotConnected]] = connect

    async def dial(self, sandbox: str, generation: int, target: str | IPv4Address, port: int) -> Connected | Refused:
        """The connected socket, which the caller closes, or why there is none. target: a canonical name, or an address as it is."""
        began = self.clock()
        answers: tuple[Address, ...] = ()
        ended: Connected | Refused | None = self.policies.refusal(sandbox, target, port, generation)
        if ended is None:
            found = Resolved((target,)) if isinstance(target, IPv4Address) else await self.resolver.resolve(target)
            answers = found.addresses
            ended = Refused(found.fault) if found.fault is not None else await self._connected(answers, port)
        if isinstance(ended, Connected) and (late := self.policies.refusal(sandbox, target, port)) is not None:
            ended.sock.close()
            ended = late
        refused = ended if isinstance(ended, Refused) else Refused("")
        address = str(ended.address) if isinstance(ended, Connected) else ""
        said = (str(target), port, refused.reason, refused.denied, tuple(map(str, answers)), address, self.clock() - began)
        try:
            self.record(DialRecord(sandbox, generation, *said))
        except OSError:
            if isinstance(ended, Connected):
                ended.sock.close()
            return Refused("record_failed")
        return ended

    async def _connected(self, answers: tuple[Address, ...], port: int) -> Connected | Refused:
        checked = self.vet(answers)
        if isinstance(checked, NotChecked):
            return Refused(checked.reason, checked.denied)
        ended = await self.connect(checked, port)
        return Refused(ended.reason) if isinstance(ended, NotConnected) else ended
