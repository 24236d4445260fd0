"""One dial for one sandbox: its policy of now, resolve once, vet the whole answer, connect to a checked address, record, hand over.

The policy is the dialer's own copy. Whoever asks says under which generation it judged; with another one than the dialer's it is refused,
and a policy that changed while the connection was being made is asked again before the socket goes out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Protocol

from space.core.policy.addresses import Address
from space.dialer.connect import Connected, NotConnected, connect
from space.dialer.policies import Policies, Refused
from space.dialer.resolve import Resolved
from space.dialer.vet import Checked, NotChecked
from space.model.errors import SpaceError


@dataclass(frozen=True, slots=True)
class DialRecord:
    """For the audit. reason: why there is no socket, or empty. answers: what the name led to. address: the one that was connected to."""

    sandbox: str
    generation: int
    target: str
    port: int
    answers: tuple[str, ...]
    reason: str = ""
    denied: bool = False
    address: str = ""
    seconds: float = 0.0


class Resolves(Protocol):
    """What of a resolver is needed."""

    async def resolve(self, name: str) -> Resolved: ...


@dataclass(frozen=True, slots=True)
class Dialer:
    """All that a dial stands on. record: what cannot be recorded does not happen (an error or a timeout of it refuses)."""

    policies: Policies
    resolver: Resolves
    vet: Callable[[tuple[Address, ...]], Checked | NotChecked]
    record: Callable[[DialRecord], Awaitable[None]]
    clock: Callable[[], float]
    connect: Callable[[Checked, int], Awaitable[Connected | NotConnected]] = connect

    async def dial(self, sandbox: str, generation: int, target: str | IPv4Address, port: int) -> Connected | Refused:
        """The connected socket, which the caller closes, or why there is none. target: a canonical name, or an address as it is.

        generation: of the policy by which the asker judged. A cancelled call leaves no socket.
        """
        began = self.clock()
        answers: tuple[Address, ...] = ()
        ended: Connected | Refused | None = self.policies.refusal(sandbox, target, port, generation)
        if ended is None:
            found = Resolved((target,)) if isinstance(target, IPv4Address) else await self.resolver.resolve(target)
            answers = found.addresses
            ended = Refused(found.fault) if found.fault is not None else await self._connected(answers, port)
        ended = self._judged_again(ended, sandbox, target, port)
        asked = DialRecord(sandbox, generation, str(target), port, tuple(map(str, answers)))
        ended = await self._recorded(ended, asked, began)
        now = self._judged_again(ended, sandbox, target, port)  # the record may have waited
        return ended if now is ended else await self._recorded(now, asked, began)

    def _judged_again(self, ended: Connected | Refused, sandbox: str, target: str | IPv4Address, port: int) -> Connected | Refused:
        if isinstance(ended, Connected) and (late := self.policies.refusal(sandbox, target, port)) is not None:
            ended.sock.close()
            return late
        return ended

    async def _recorded(self, ended: Connected | Refused, asked: DialRecord, began: float) -> Connected | Refused:
        seconds = self.clock() - began
        if isinstance(ended, Connected):
            record = replace(asked, address=str(ended.address), seconds=seconds)
        else:
            record = replace(asked, reason=ended.reason, denied=ended.denied, seconds=seconds)
        try:
            await self.record(record)
        except (OSError, SpaceError):  # TimeoutError among them
            if isinstance(ended, Connected):
                ended.sock.close()
            return Refused("record_failed")
        except BaseException:
            if isinstance(ended, Connected):
                ended.sock.close()
            raise
        return ended

    async def _connected(self, answers: tuple[Address, ...], port: int) -> Connected | Refused:
        checked = self.vet(answers)
        if isinstance(checked, NotChecked):
            return Refused(checked.reason, checked.denied)
        ended = await self.connect(checked, port)
        return Refused(ended.reason) if isinstance(ended, NotConnected) else ended
