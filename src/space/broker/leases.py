"""Who has which grants now, and lending: a credential goes out for one request, or a few within a second, after that was written down.

    asked -> known, its sandbox's, not revoked, not over, in scope -> rate -> (token) -> a use taken -> recorded -> looked at again -> lent

Whatever is refused is recorded with its true reason; who asks hears less. What changes is told to every worker that it concerns at once,
and a lease lasts a second: so a revocation holds then, even for a worker that does not listen.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from space.audit.records import MOST_PATH, CredentialRead, Note, encode
from space.broker.grants import MOST_OF_A_SANDBOX, Grants, Held
from space.broker.minting import Minting
from space.broker.rates import Rates
from space.broker.secrets import Known, Secrets
from space.core.credentials.grant import Basic, Grant, Life, Outline, Placeholder, Reason, Use, expiry, permits, target
from space.core.credentials.placeholders import make as made
from space.model.errors import PermissionDenied, SpaceError, Unavailable
from space.model.secret import Secret
from space.rpc import broker_api as api
from space.rpc.audit_client import RecordSocket

log = logging.getLogger("space.broker")

_MOST_ALARMS = 65_536
_QUIET = 1.0  # seconds between two alarms of one kind and grant
_FOR_MINUTES = 120.0
AlarmKind = Literal["rate", "revoked", "expired"]
# To who asks, a grant that was taken away is one that never was.
_HIDDEN: Mapping[Reason, Reason] = {"grant_revoked": "grant_unknown"}


@dataclass(frozen=True, slots=True)
class Limits:
    """uses, seconds: of a lease whose grant counts nothing. once: seconds of one for a single use. record: seconds for its record."""

    uses: int = 64
    seconds: float = 1.0
    once: float = 5.0
    record: float = 5.0


@dataclass(slots=True, eq=False)
class Bound:
    """One life with its worker. tell: sends what is said unasked. told: what it was told last."""

    life: Life
    generation: int
    tell: Callable[[api.Grants], None]
    revision: int = 0
    told: list[Outline] | None = None
    over: bool = False


class _Denied(Exception):
    """reason: the true one. version: of the secret, if it came so far."""

    def __init__(self, reason: Reason, secret: str = "", version: int = 0) -> None:
        super().__init__(reason)
        self.reason: Reason = reason
        self.secret, self.version = secret, version


class Lending:
    """Every sandbox. now: the time with its zone; clock: seconds that only go forward. alarm: gets what somebody should look at.

    seed: of placeholders, 32 random bytes that the broker keeps.
    """

    def __init__(
        self,
        secrets: Secrets,
        grants: Grants,
        minting: Minting,
        rates: Rates,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        alarm: Callable[[api.Alarm], None],
        seed: Secret,
        limits: Limits = Limits(),
    ) -> None:
        self._secrets, self._grants, self._minting, self._rates = secrets, grants, minting, rates
        self._now, self._clock, self._limits = now, clock, limits
        self._alarm = alarm
        self._seed = seed
        self._bound: dict[str, Bound] = {}
        self._alarms: dict[tuple[AlarmKind, str, str], tuple[float, int]] = {}
        self._audit: RecordSocket | None = None
        self._timer: asyncio.TimerHandle | None = None

    # -- who has what --------------------------------------------------------------------------------------------
    def bind(self, life: Life, generation: int, tell: Callable[[api.Grants], None]) -> Bound:
        """That life's worker hears from now on what it has: at once, and at every change."""
        before = self._bound.get(life.sandbox)
        bound = Bound(life, generation, tell)
        if before is not None:
            before.over = True
            if before.generation == generation:  # another worker, or another socket, of the same life
                bound.revision = before.revision
        self._bound[life.sandbox] = bound
        self._tell(bound)
        return bound

    def end(self, sandbox: str, generation: int) -> None:
        """That life is over."""
        bound = self._bound.get(sandbox)
        if bound is not None and bound.generation <= generation:
            bound.over = True
            del self._bound[sandbox]

    def placeholders(self, sandbox: str, generation: int) -> dict[str, str]:
        """By variable. Nothing for a life that is not bound."""
        bound = self._bound.get(sandbox)
        if bound is None or bound.generation != generation:
            return {}
        found = bound.told or []
        return {one.slot.env: one.placeholder for one in found if isinstance(one.slot, Placeholder)}

    def changed(self, tenant: str) -> None:
        """Something of that tenant's is another: whom it concerns is told."""
        for bound in tuple(self._bound.values()):
            if bound.life.tenant == tenant:
                self._tell(bound)

    def tell_again(self, bound: Bound) -> None:
        """Another worker listens, which knows nothing."""
        bound.tell(api.Grants(bound.revision, bound.told or []))

    def bind_audit(self, audit: RecordSocket) -> None:
        """Where records go."""
        before, self._audit = self._audit, audit
        if before is not None:
            before.close()

    def close(self) -> None:
        """Let go of what waits."""
        if self._timer is not None:
            self._timer.cancel()
        if self._audit is not None:
            self._audit.close()

    def _tell(self, bound: Bound) -> None:
        life = bound.life
        if not life.tenant:
            return
        attached = tuple(self._grants.attached(life.tenant, life.sandbox))
        bound.life = life = Life(life.tenant, life.sandbox, life.template, life.labels, life.forked, attached)
        now = self._now().timestamp()
        found = self._grants.of(life, now)
        secrets = {name: self._secrets.find(life.tenant, name) for name in {one.secret for one in found}}
        good = {name: known for name, known in secrets.items() if known is not None and known.why_not(now) is None}
        grants = [one for one in found if one.secret in good]
        if len(grants) > MOST_OF_A_SANDBOX:
            log.warning("%s has %d grants: only the first %d are told", life.sandbox, len(grants), MOST_OF_A_SANDBOX)
            grants = sorted(grants, key=lambda one: (one.name not in attached, one.name))[:MOST_OF_A_SANDBOX]
        outlines = [self._outline(bound, one) for one in grants]
        if outlines != bound.told:
            bound.told = outlines
            bound.revision += 1
            bound.tell(api.Grants(bound.revision, outlines))
        self._watch([*(one.until for one in grants), *(known.facts.expires for known in good.values())])

    def _outline(self, bound: Bound, grant: Grant) -> Outline:
        where, slot, placeholder = grant.where, grant.slot, ""
        if isinstance(slot, Placeholder):
            placeholder = made(slot, _chooser(self._seed, f"{bound.life.sandbox}\0{bound.generation}\0{bound.life.tenant}\0{grant.name}"))
        return Outline(grant.name, where.host, where.port, where.methods, where.paths, slot, grant.keep, grant.approval, placeholder)

    def _watch(self, times: list[str]) -> None:
        """A grant whose time ends, or its secret's, is taken away then, and not at the next use."""
        now = self._now().timestamp()
        ends = [end for one in times if one and (end := expiry(one)) is not None and end > now]
        if not ends:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(min(ends) - now + 0.01, 3600.0)
        if self._timer is None or self._timer.when() > at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(at, self._ended)

    def _ended(self) -> None:
        self._timer = None
        for tenant in {bound.life.tenant for bound in self._bound.values()}:
            self.changed(tenant)

    # -- lending -------------------------------------------------------------------------------------------------
    async def lend(self, bound: Bound, asked: api.AskCredential) -> api.Credential:
        """A lease, which was recorded. PermissionDenied with a reason as its message; Unavailable: nothing is released now."""
        try:
            return await self._lent(bound, asked)
        except _Denied as denied:
            await self._record(bound, asked, reason=denied.reason, secret=denied.secret, version=denied.version)
            raise PermissionDenied(_HIDDEN.get(denied.reason, denied.reason)) from None
        except PermissionDenied:
            raise
        except SpaceError as error:
            log.warning("%s gets no credential of grant %s: %s", bound.life.sandbox, asked.grant, error)
            await self._record(bound, asked, reason="credential_unavailable")
            raise Unavailable("credential_unavailable") from None

    async def _lent(self, bound: Bound, asked: api.AskCredential) -> api.Credential:
        held, known = self._judged(bound, asked)
        grant = held.grant
        self._spend(bound, held, known, asked)
        value, more, version, seconds = await self._value(grant, known)
        if grant.uses is not None and not self._grants.use(held):
            raise _Denied("grant_used_up", grant.secret, version)
        single = grant.rate is not None or grant.uses is not None or grant.approval
        uses = 1 if single else self._limits.uses
        await self._record(bound, asked, secret=grant.secret, version=version, uses=uses)
        self._judged(bound, asked, counted=True)  # the record, and the token, took their time
        span = self._limits.once if single else self._limits.seconds
        return api.Credential(
            asked.id, grant.name, grant.secret, version, grant.slot, value.reveal(), more, uses, max(min(span, seconds), 0.0)
        )

    def _judged(self, bound: Bound, asked: api.AskCredential, *, counted: bool = False) -> tuple[Held, Known]:
        """counted: its use was taken already."""
        life, now = bound.life, self._now().timestamp()
        held = self._grants.find(life.tenant, asked.grant) if life.tenant and not bound.over else None
        path = target(asked.path)
        if held is None:
            raise _Denied("grant_unknown")
        grant = held.grant
        if held.revoked:
            if permits(grant, held.tenant, life, Use(grant.where.host, grant.where.port, "GET", _ROOT), now) != "grant_unknown":
                self._raise("revoked", bound, grant, asked)
            raise _Denied("grant_revoked", grant.secret)
        reason = "grant_scope" if path is None else permits(grant, held.tenant, life, Use(asked.host, asked.port, asked.method, path), now)
        if reason == "grant_expired":
            self._raise("expired", bound, grant, asked)
        if reason is not None:
            raise _Denied(reason, grant.secret)
        known = self._secrets.find(held.tenant, grant.secret)
        if known is None:
            raise _Denied("grant_revoked", grant.secret)
        why = known.why_not(now)
        if why is not None:
            self._raise("revoked" if why == "grant_revoked" else "expired", bound, grant, asked)
            raise _Denied(why, grant.secret, known.version)
        if grant.approval and not asked.approved:
            raise _Denied("grant_approval", grant.secret, known.version)
        if grant.uses is not None and held.used >= grant.uses and not counted:
            raise _Denied("grant_used_up", grant.secret, known.version)
        return held, known

    def _spend(self, bound: Bound, held: Held, known: Known, asked: api.AskCredential) -> None:
        rate = held.grant.rate
        if rate is None:
            return
        if not self._rates.take(held.tenant, held.grant.secret, rate):
            self._raise("rate", bound, held.grant, asked)
            raise _Denied("grant_rate", held.grant.secret, known.version)

    async def _value(self, grant: Grant, known: Known) -> tuple[Secret, dict[str, bytes], int, float]:
        """What goes into the slot, what else is needed for that, of which version, and for how many seconds it is good."""
        public, kind = known.facts.public, known.facts.kind
        if kind in ("oauth_refresh", "client_credentials"):
            token = await self._minting.token(known)
            return token.value, _more(grant, {}), token.version, token.until - self._clock()
        parts = self._secrets.parts(known)
        if kind == "aws":
            more = {"access_key_id": public["access_key_id"].encode()}
            if "session_token" in parts:
                more["session_token"] = parts["session_token"].reveal()
            return parts["secret_access_key"], more, known.version, _FOR_MINUTES
        return parts["value"], _more(grant, {}), known.version, _FOR_MINUTES

    async def _record(
        self, bound: Bound, asked: api.AskCredential, *, reason: Reason | str = "", secret: str = "", version: int = 0, uses: int = 0
    ) -> None:
        """Written when this returns. Unavailable: it is not, and nothing may happen."""
        audit = self._audit
        if audit is None or not audit.open:
            raise Unavailable("credential_unavailable")
        record = CredentialRead(
            sandbox=bound.life.sandbox, id=asked.request, grant=asked.grant, name=asked.host, port=asked.port, method=asked.method,
            path=asked.path[:MOST_PATH], version=version, reason=reason, secret=secret, uses=uses, generation=bound.generation,
        )  # fmt: skip
        number = audit.number()
        try:
            async with asyncio.timeout(self._limits.record):
                await audit.written(number, encode(Note(record, number)))
        except (SpaceError, TimeoutError) as error:
            log.error("a credential event of %s is not recorded, and nothing was released: %s", bound.life.sandbox, error)  # noqa: TRY400
            raise Unavailable("credential_unavailable") from None

    def _raise(self, kind: AlarmKind, bound: Bound, grant: Grant, asked: api.AskCredential) -> None:
        key, now = (kind, bound.life.tenant, grant.name), self._clock()
        last, count = self._alarms.get(key, (now - _QUIET, 0))
        if now - last < _QUIET:
            self._alarms[key] = (last, count + 1)
            return
        if len(self._alarms) > _MOST_ALARMS:
            self._alarms.clear()
        self._alarms[key] = (now, 0)
        self._alarm(api.Alarm(kind, bound.life.tenant, bound.life.sandbox, grant.name, grant.secret, asked.host, count + 1))


def _chooser(seed: Secret, of: str) -> Callable[[str], str]:
    """Letters that only who has the seed could tell, always the same ones for the same words: a broker that starts again makes what
    processes of that life already have.
    """
    stream = iter(hashlib.shake_256(seed.reveal() + of.encode()).digest(8192))

    def choose(letters: str) -> str:
        while True:
            byte = next(stream)
            if byte < 256 - 256 % len(letters):  # each letter as likely as any
                return letters[byte % len(letters)]

    return choose


def _more(grant: Grant, more: dict[str, bytes]) -> dict[str, bytes]:
    if isinstance(grant.slot, Basic) and grant.slot.username:
        return {**more, "username": grant.slot.username.encode()}
    return more


_FOUND = target("/")
assert _FOUND is not None
_ROOT = _FOUND
