"""Credentials that are lent to one worker: asked for when there is none at hand, used as often and as long as the broker said.

Nothing is kept beyond its time but what replies are searched for, which costs some time to make, and is the same from lease to lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args

from space.core.credentials.grant import Outline, Reason
from space.core.credentials.tripwire import Needles, needles
from space.gateway.loans import Lease, Loan
from space.model.errors import PermissionDenied, RateLimited, SpaceError
from space.rpc.broker_api import Credential

_STATUS = {"grant_rate": 429, "credential_unavailable": 503}
_KNOWN = frozenset(get_args(Reason))
_MOST_PATH = 2048  # of a path as the broker is asked; a longer one is no one's to grant


class LendRefused(Exception):
    """No credential. reason: a stable word. status: what to answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = _STATUS.get(reason, 403)


# grant, host, port, method, path, request, whether a person has agreed
Ask = Callable[[str, str, int, str, str, str, bool], Awaitable[Credential]]


class _Kept:
    """A lease with uses left. until: by the clock."""

    __slots__ = ("lease", "until", "uses")

    def __init__(self, lease: Lease, uses: int, until: float) -> None:
        self.lease, self.uses, self.until = lease, uses, until


class Lender:
    """ask: the broker; raises what it refuses with. clock: seconds. most: seconds to wait for an answer."""

    def __init__(self, ask: Ask, clock: Callable[[], float], most: float) -> None:
        self._ask = ask
        self._clock = clock
        self._most = most
        self._kept: dict[str, _Kept] = {}
        self._sought: dict[str, tuple[tuple[bytes, ...], Needles]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def at_hand(self, loan: Loan) -> bool:
        """Take a use of a lease that is there."""
        kept = self._kept.get(loan.grant)
        if kept is None or loan.outline is None:
            return False
        if kept.uses < 1 or self._clock() >= kept.until or kept.lease.slot != loan.outline.slot:
            del self._kept[loan.grant]
            return False
        kept.uses -= 1
        loan.lease = kept.lease
        return True

    async def lend(self, loan: Loan, host: str, port: int, method: str, path: str, request: str, *, approved: bool) -> None:
        """The same, asked for if need be; whoever comes meanwhile takes of what one has got. LendRefused."""
        turn = self._turns.setdefault(loan.grant, asyncio.Lock())
        waited = turn.locked()
        async with turn:
            if waited and self.at_hand(loan):
                return
            began = self._clock()
            found = await self._asked(loan, host, port, method, path, request, approved=approved)
            if loan.outline is None or found.slot != loan.outline.slot or found.uses < 1:
                raise LendRefused("credential_unavailable")  # it is told of later, or anew: the next request knows it
            lease = Lease(found.slot, found.value, found.more, found.version, self._searched(found))
            loan.lease = lease
            if found.uses > 1:
                self._kept[loan.grant] = _Kept(lease, found.uses - 1, began + found.seconds)

    def forget(self, outlines: dict[str, Outline]) -> None:
        """Only these are there from now on: what was lent of others, or of what has changed, is dropped."""
        self._kept = {name: kept for name, kept in self._kept.items() if name in outlines and outlines[name].slot == kept.lease.slot}
        self._sought = {name: sought for name, sought in self._sought.items() if name in outlines}
        self._turns = {name: turn for name, turn in self._turns.items() if turn.locked()}

    async def _asked(self, loan: Loan, host: str, port: int, method: str, path: str, request: str, *, approved: bool) -> Credential:
        if len(path) > _MOST_PATH:
            raise LendRefused("grant_scope")
        try:
            async with asyncio.timeout(self._most):
                return await self._ask(loan.grant, host, port, method, path, request, approved)
        except (PermissionDenied, RateLimited) as error:
            reason = str(error.message)
            raise LendRefused(reason if reason in _KNOWN else "grant_unknown") from None
        except (SpaceError, TimeoutError):
            raise LendRefused("credential_unavailable") from None

    def _searched(self, found: Credential) -> Needles:
        """What replies are searched for: all that is secret in it, of `user:password` the password as well, which may be told alone."""
        parts = (found.value, *(value for name, value in found.more.items() if name not in ("username", "access_key_id", "placeholder")))
        known = self._sought.get(found.grant)
        if known is None or known[0] != parts:
            known = self._sought[found.grant] = parts, needles(*parts, *[part.partition(b":")[2] for part in parts])
        return known[1]
