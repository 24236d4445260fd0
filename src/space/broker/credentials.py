"""What the node may ask of secrets and grants: each question to what is kept, then to who is concerned. No answer holds a value."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import datetime

import msgspec

from space.broker.grants import Grants, Held, read
from space.broker.leases import Lending
from space.broker.minting import Minting
from space.broker.rates import Rates
from space.broker.secrets import Known, Secrets
from space.broker.store import Entry, Store
from space.core.credentials.grant import GrantRefused, encode
from space.core.credentials.secret import fits, stands, unpacked
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound
from space.model.secret import Secret
from space.rpc import broker_api as api
from space.rpc.minter_client import MinterSocket

MOST_SECRETS = 100_000  # of a tenant
MOST_GRANTS = 100_000
_PAGE = 1000

Question = (
    api.PutSecret
    | api.GetSecret
    | api.ListSecrets
    | api.RevokeSecret
    | api.DeleteSecret
    | api.PutGrant
    | api.GetGrant
    | api.ListGrants
    | api.RevokeGrant
    | api.DeleteGrant
    | api.AttachGrants
    | api.DetachGrant
    | api.Attached
    | api.ForgetSandbox
    | api.Placeholders
)


class Credentials:
    """Secrets, grants and lending, over one store."""

    def __init__(
        self,
        store: Store,
        minter: Callable[[], MinterSocket | None],
        now: Callable[[], datetime],
        alarm: Callable[[api.Alarm], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._secrets = Secrets(store)
        self._grants = Grants(store)
        self.minting = Minting(self._secrets, minter, now, clock)
        self._rates = Rates(store, lambda: now().timestamp())
        self.lending = Lending(self._secrets, self._grants, self.minting, self._rates, now, clock, alarm, _seed(store))

    def answer(self, question: Question) -> api.Answer:
        """What it comes to. SpaceError."""
        number = question.id
        match question:
            case api.PutSecret():
                return self._put_secret(question)
            case api.GetSecret():
                return self._told(number, self._secrets.get(question.tenant, question.name))
            case api.ListSecrets():
                found, more = self._secrets.page(question.tenant, question.after, question.limit)
                return api.SecretInfos(number, [self._told(0, one) for one in found], more)
            case api.RevokeSecret():
                known = self._secrets.revoke(question.tenant, question.name, self._now())
                self._changed(question.tenant, question.name)
                return self._told(number, known)
            case api.DeleteSecret():
                self._delete_secret(question)
            case api.PutGrant():
                return self._put_grant(question)
            case api.GetGrant():
                return self._described(number, self._grants.get(question.tenant, question.name))
            case api.ListGrants():
                grants, more = self._grants.page(question.tenant, question.after, question.limit, question.secret)
                return api.GrantInfos(number, [self._described(0, one) for one in grants], more)
            case api.RevokeGrant():
                held = self._grants.revoke(question.tenant, question.name, self._now())
                self.lending.changed(question.tenant)
                return self._described(number, held)
            case _:
                return self._of_sandboxes(question)
        return api.Done(number)

    def _of_sandboxes(
        self,
        question: api.DeleteGrant | api.AttachGrants | api.DetachGrant | api.Attached | api.ForgetSandbox | api.Placeholders,
    ) -> api.Answer:
        number = question.id
        match question:
            case api.DeleteGrant():
                self._grants.delete(question.tenant, question.name)
                self.lending.changed(question.tenant)
            case api.AttachGrants():
                self._grants.attach(question.tenant, question.sandbox, question.names)
                self.lending.changed(question.tenant)
            case api.DetachGrant():
                self._grants.detach(question.tenant, question.sandbox, question.name)
                self.lending.changed(question.tenant)
            case api.Attached():
                return api.Names(number, self._grants.attached(question.tenant, question.sandbox))
            case api.ForgetSandbox():
                self._grants.forget(question.sandbox)
            case api.Placeholders():
                return api.Environment(number, self.lending.placeholders(question.sandbox, question.generation))
        return api.Done(number)

    def _put_secret(self, question: api.PutSecret) -> api.SecretInfo:
        if self._secrets.find(question.tenant, question.name) is None and self._secrets.count(question.tenant) >= MOST_SECRETS:
            raise NoCapacity(f"tenant {question.tenant} has {MOST_SECRETS} secrets", hint="delete some")
        self._check_slots(question)
        known = self._secrets.put(
            question.tenant,
            question.name,
            question.kind,
            Secret(question.value),
            public=question.public,
            labels=question.labels,
            description=question.description,
            expires=question.expires,
            mode=question.mode,
            now=self._now(),
        )
        self._changed(question.tenant, question.name)
        return self._told(question.id, known)

    def _check_slots(self, question: api.PutSecret) -> None:
        """InvalidArgument when a grant puts the secret where its new value cannot stand: requests with it would all fail."""
        try:
            value = unpacked(question.value).get("value") if question.kind == "static" else None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return  # which is refused where it would be kept
        after, more = "", isinstance(value, bytes)
        while more:
            found, more = self._grants.page(question.tenant, after, _PAGE, question.name)
            for held in found:
                after = held.grant.name
                try:
                    stands(held.grant.slot, value or b"")
                except GrantRefused as refused:
                    raise InvalidArgument(f"grant {after}: {refused.message}", hint=refused.hint) from None

    def _delete_secret(self, question: api.DeleteSecret) -> None:
        grants = self._grants.count(question.tenant, question.name)
        if grants:
            raise Conflict(f"{grants} grants name secret {question.name}", hint="delete them first, or revoke the secret")
        self._secrets.delete(question.tenant, question.name)
        self._rates.forget(question.tenant, question.name)
        self._changed(question.tenant, question.name)

    def _put_grant(self, question: api.PutGrant) -> api.GrantInfo:
        grant = read(question.grant)
        known = self._secrets.find(question.tenant, grant.secret)
        if known is None:
            raise NotFound(f"there is no secret {grant.secret}", hint="space secret put")
        try:
            fits(known.facts.kind, grant)
            if known.facts.kind == "static" and not known.facts.revoked:
                stands(grant.slot, self._secrets.parts(known)["value"].reveal())
        except GrantRefused as refused:
            raise InvalidArgument(f"{refused.path}: {refused.message}", hint=refused.hint or None) from None
        if self._grants.find(question.tenant, grant.name) is None and self._grants.count(question.tenant) >= MOST_GRANTS:
            raise NoCapacity(f"tenant {question.tenant} has {MOST_GRANTS} grants", hint="delete some")
        held = self._grants.put(question.tenant, question.grant, replace=question.replace, now=self._now())
        self.lending.changed(question.tenant)
        return self._described(question.id, held)

    def _changed(self, tenant: str, secret: str) -> None:
        self.minting.forget(tenant, secret)
        self.lending.changed(tenant)

    def _told(self, number: int, known: Known) -> api.SecretInfo:
        facts = known.facts
        return api.SecretInfo(
            number, known.tenant, known.name, facts.kind, known.version, facts.public, facts.labels, facts.description, facts.created,
            facts.rotated, facts.expires, facts.revoked, self._grants.count(known.tenant, known.name),
        )  # fmt: skip

    def _described(self, number: int, held: Held) -> api.GrantInfo:
        attached = self._grants.attachments(held.tenant, held.grant.name)
        return api.GrantInfo(number, held.tenant, encode(held.grant), held.created, held.revoked, held.used, attached)


def _seed(store: Store) -> Secret:
    """Of placeholders, made once: they are the same after a restart of the broker."""
    entry = store.get("placeholder", "seed", 1)
    if entry is None:
        entry = Entry(b"", Secret(secrets.token_bytes(32)))
        store.put("placeholder", "seed", 1, entry)
    return entry.secret
