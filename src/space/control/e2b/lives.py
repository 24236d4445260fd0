"""What E2B's clients do with sandboxes: make, connect, put to rest, wake, end, fork. Translations, over the services of our own API."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from space.control import wire
from space.control.credentials import Credentials
from space.control.e2b import forms, views
from space.control.e2b.faults import NotHere
from space.control.e2b.network import Loan, Outgoing, outgoing
from space.control.e2b.store import Extras
from space.control.e2b.wake import RESTS, waking
from space.control.lives import Wish
from space.control.records import Record
from space.control.services import Services
from space.control.wire_credentials import SecretRequest
from space.control.wire_lives import ForkRequest
from space.control.wire_tenants import ChangeRequest
from space.core.credentials.grant import Grant, Header, Where
from space.core.lifecycle.table import Request
from space.model.egress import SandboxPolicy
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.model.sandbox import SandboxSpec

TIMEOUT = 300
_FIRST_TIMEOUT = 15  # of the first version of the route, where none is said
_NAMES = wire.MAX_METADATA


async def create(services: Services, tenant: str, asked: forms.NewSandbox, *, version: int, key: str | None) -> Record:
    """A sandbox that runs. key: of idempotency. InvalidArgument, NotHere, and what our own create refuses."""
    for what, there in (("mcp", asked.mcp), ("iam", asked.iam), ("volumeMounts", asked.volume_mounts)):
        if there:
            raise NotHere(f"{what} is not supported by this server", hint="docs/e2b.md lists what is")
    repeat = None if key is None else (_key(key), hashlib.sha256(msgspec.json.encode([version, asked], order="deterministic")).digest())
    said = outgoing(asked.network, asked.allow_internet_access, services.sandboxes.policies.layer_row(tenant).permits)
    spec, extras = _spec(asked, services.settings.max_ttl_seconds, version), _extras(asked, said, version)
    if (holder := services.e2b.snapshots.holder(services, tenant, asked.template_id)) is not None:
        return await _from_snapshot(services, holder, spec, extras, said, repeat)
    template = await services.e2b.sizes.of(services, tenant, asked.template_id)
    spec = replace(spec, template=template.name, cpus=template.cpus, memory_mib=template.memory_mib, disk_mib=template.disk_mib)
    extras = extras.changed(user=template.user or None, workdir=template.cwd or None)
    grants = await lend(services.credentials, tenant, said.loans)
    extras = extras.changed(grants=sorted(grants.values()))
    try:
        info = await services.sandboxes.create(
            tenant, spec, wait=True, repeat=repeat, policy=said.lent(grants), grants=extras.grants,
            beside=lambda sandbox: services.e2b.extras.adding(sandbox, extras),
        )  # fmt: skip
    except BaseException:
        await give_back(services.credentials, tenant, extras.grants)
        raise
    if services.e2b.extras.of(info.id).grants != extras.grants:  # it was made by an earlier request with this key
        await give_back(services.credentials, tenant, extras.grants)
    return await services.sandboxes.record(tenant, info.id)


async def _from_snapshot(
    services: Services, holder: Record, spec: SandboxSpec, extras: Extras, said: Outgoing, repeat: tuple[str, bytes] | None
) -> Record:
    """A copy of what a snapshot holds, with what was asked for of it."""
    tenant, held = holder.tenant, services.e2b.extras.of(holder.id)
    wanted = ForkRequest(count=1, ttl_seconds=spec.ttl_seconds, metadata=dict(spec.metadata))
    async with services.e2b.snapshots.awake(services, holder):
        [child] = await services.sandboxes.fork(tenant, holder.id, wanted, repeat)
    if services.e2b.extras.of(child.id).made:  # by an earlier request with this key
        return await services.sandboxes.record(tenant, child.id)
    grants = await lend(services.credentials, tenant, said.loans)
    names = sorted(grants.values())
    try:
        extras = extras.changed(env=(held.env or {}) | dict(spec.env), user=held.user, workdir=held.workdir, grants=names)
        await services.e2b.extras.put(child.id, extras)
        await services.sandboxes.change(tenant, child.id, ChangeRequest(on_timeout=spec.on_timeout, wake_on_call=spec.wake_on_call))
        if names:
            await services.credentials.attach(tenant, child.id, names)
        await _set_policy(services, tenant, child.id, said, grants)
    except BaseException:
        await services.sandboxes.delete(tenant, child.id)
        await give_back(services.credentials, tenant, names)
        raise
    return await services.sandboxes.record(tenant, child.id)


async def _set_policy(services: Services, tenant: str, sandbox: str, said: Outgoing, grants: Mapping[str, str]) -> SandboxPolicy:
    policy: Mapping[str, Any] | str | None = said.lent(grants)
    if policy is None:
        policy = services.sandboxes.policies.layer_row(tenant).default
    return await services.sandboxes.policies.set(await services.sandboxes.wanted(tenant, sandbox), policy)


async def connect(services: Services, tenant: str, sandbox: str, timeout: int | None, *, cold: bool) -> tuple[Record, bool]:
    """It runs, for at least so long; whether it had to be woken."""
    record = views.mine(services, tenant, sandbox)
    most = services.settings.max_ttl_seconds
    seconds = wire.check_ttl(TIMEOUT if timeout is None else timeout, most)
    rested = record.phase in RESTS
    if rested:
        await services.sandboxes.live(tenant, record.id, waking(record.phase, cold=cold))
    await services.sandboxes.usable(tenant, record.id)
    record = views.mine(services, tenant, sandbox)
    left = ((record.expires_us or 0) - time.time_ns() // 1000) / 1e6
    if rested or left < seconds:
        await services.sandboxes.change(tenant, record.id, ChangeRequest(ttl_seconds=seconds))
    return views.mine(services, tenant, sandbox), rested


async def pause(services: Services, tenant: str, sandbox: str, *, memory: bool) -> None:
    """Put it to rest. Conflict when it rests."""
    record = views.mine(services, tenant, sandbox)
    if record.phase in RESTS:
        raise Conflict(f'sandbox "{sandbox[:64]}" is already paused')
    await services.sandboxes.live(tenant, record.id, Wish(Request.SUSPEND if memory else Request.STOP))


async def end_in(services: Services, tenant: str, sandbox: str, seconds: int) -> None:
    """Its time is over in so many seconds from now on; 0: now, by its own rule."""
    record = views.mine(services, tenant, sandbox)
    if record.phase in RESTS:
        raise Conflict(f'sandbox "{sandbox[:64]}" is paused', hint="connect to it first")
    if seconds:
        await services.sandboxes.change(tenant, record.id, ChangeRequest(ttl_seconds=seconds))
    elif record.spec.on_timeout == "delete":
        await services.sandboxes.delete(tenant, record.id)
    else:
        await services.sandboxes.live(tenant, record.id, Wish(Request.STOP if record.spec.on_timeout == "stop" else Request.SUSPEND))


async def refresh(services: Services, tenant: str, sandbox: str, seconds: int) -> None:
    """It has at least so long from now on."""
    record = views.mine(services, tenant, sandbox)
    if record.expires_us is not None and record.expires_us / 1e6 < time.time() + seconds:
        await services.sandboxes.change(tenant, record.id, ChangeRequest(ttl_seconds=max(1, seconds)))


async def fork(services: Services, tenant: str, sandbox: str, asked: forms.Fork) -> list[Record]:
    """Copies of its present instant, each running."""
    record = views.mine(services, tenant, sandbox)
    if record.phase in RESTS:
        raise Conflict(f'sandbox "{sandbox[:64]}" is paused', hint="connect to it first")
    seconds = TIMEOUT if asked.timeout is None else asked.timeout
    wanted = msgspec.convert({"count": 1 if asked.count is None else asked.count, "ttl_seconds": seconds}, ForkRequest)
    return await copies(services, record, wanted)


async def copies(services: Services, parent: Record, wanted: ForkRequest, **changed: Any) -> list[Record]:
    """Children with what is known of their parent besides. changed: of that."""
    made = await services.sandboxes.fork(parent.tenant, parent.id, wanted)
    extras = services.e2b.extras.of(parent.id).changed(**{"grants": [], "exposed": {}, **changed})
    for child in made:
        await services.e2b.extras.put(child.id, extras)
    if lent := services.e2b.extras.of(parent.id).grants:
        for child in made:
            await services.credentials.attach(parent.tenant, child.id, lent)
    return [await services.sandboxes.record(parent.tenant, child.id) for child in made]


async def change_network(services: Services, tenant: str, sandbox: str, asked: forms.Network) -> None:
    """What may leave it from now on, whole: it holds when this returns. Conflict unless it runs."""
    record = views.mine(services, tenant, sandbox)
    if record.phase in RESTS:
        raise Conflict(f'sandbox "{sandbox[:64]}" is paused', hint="connect to it first")
    said = outgoing(asked, asked.allow_internet_access, services.sandboxes.policies.layer_row(tenant).permits)
    extras = services.e2b.extras.of(record.id)
    grants = await lend(services.credentials, tenant, said.loans)
    names = sorted(grants.values())
    try:
        if names:
            await services.credentials.attach(tenant, record.id, names)
        found = await _set_policy(services, tenant, record.id, said, grants)
    except BaseException:
        await give_back(services.credentials, tenant, names)
        raise
    kept = {
        name: value for name, value in (extras.network or {}).items() if name in ("allowPublicTraffic", "maskRequestHost", "httpsPorts")
    }
    network = forms.plain(asked) | kept
    await services.e2b.extras.put(record.id, extras.changed(network=network, internet=said.internet, policy=said.words, grants=names))
    await give_back(services.credentials, tenant, extras.grants)
    if found.status.state != "applied":
        raise Conflict(f"the change is kept, and not applied yet: {found.status.state}", hint="repeat it")


# -- credentials ------------------------------------------------------------------------------------------------------------


async def lend(credentials: Credentials, tenant: str, loans: tuple[Loan, ...]) -> dict[str, str]:
    """A grant of its own for each, by host. A value that is written in the rule is kept as a secret of the same name. NotFound."""
    made: dict[str, str] = {}
    try:
        for loan in loans:
            name = f"e2b.{secrets.token_hex(8)}"
            made[loan.host] = name
            if loan.secret is None:
                kept = SecretRequest(value=loan.value)
                await credentials.put_secret(tenant, name, kept, kept.sealed(), "new")
            await credentials.put_grant(
                tenant, Grant(name, loan.secret or name, Where(loan.host), Header(loan.header, loan.template)), replace=False
            )
    except BaseException:
        await give_back(credentials, tenant, list(made.values()))
        raise
    return made


async def give_back(credentials: Credentials, tenant: str, names: list[str]) -> bool:
    """Forget grants that were made for one sandbox, and secrets that were made for them; whether all of them are gone."""
    gone = True
    for name in names:
        for forget in (credentials.delete_grant, credentials.delete_secret):
            try:
                await forget(tenant, name)
            except NotFound:
                continue  # most have no secret of their own
            except SpaceError:
                gone = False
    return gone


# -- what was asked for -----------------------------------------------------------------------------------------------------


def _spec(asked: forms.NewSandbox, most: int, version: int) -> SandboxSpec:
    timeout = asked.timeout if asked.timeout is not None else TIMEOUT if version > 1 else _FIRST_TIMEOUT
    if timeout > most:
        raise InvalidArgument(f"timeout: {timeout} s is more than this server's limit of {most} s")
    resumes = asked.auto_resume is not None and asked.auto_resume.enabled
    keeps_memory = asked.auto_pause_memory is not False
    if not keeps_memory and not asked.auto_pause:
        raise InvalidArgument("autoPauseMemory: false goes with autoPause: true")
    if not keeps_memory and resumes:
        raise InvalidArgument("autoPauseMemory: false cannot stand with autoResume: traffic wakes a full snapshot alone")
    return SandboxSpec(
        env=wire.environment(asked.env_vars or {}),
        metadata=_ours(asked.metadata or {}),
        ttl_seconds=timeout,
        on_timeout="delete" if not asked.auto_pause else "suspend" if keeps_memory else "stop",
        wake_on_call=resumes,
    )


def _extras(asked: forms.NewSandbox, said: Outgoing, version: int) -> Extras:
    network = asked.network or forms.Network()
    if network.https_ports and 49983 in network.https_ports:
        raise InvalidArgument("network.httpsPorts: 49983 is the in-sandbox API's")
    ours = _ours(asked.metadata or {})
    return Extras(
        made=True,
        template=asked.template_id,
        metadata={name: value for name, value in (asked.metadata or {}).items() if name not in ours},
        secure=version > 1 or asked.secure is not False,
        public=network.allow_public_traffic is not False,
        mask_host=network.mask_request_host,
        https_ports=network.https_ports or [],
        auto_resume=asked.auto_resume is not None and asked.auto_resume.enabled,
        pause_memory=asked.auto_pause_memory is not False,
        timeout=asked.timeout or TIMEOUT,
        network=None if asked.network is None else forms.plain(asked.network),
        internet=said.internet,
        policy=said.words,
    )


def _ours(metadata: Mapping[str, str]) -> dict[str, str]:
    """What our own metadata has a form for."""
    found: dict[str, str] = {}
    for name, value in metadata.items():
        try:
            found |= wire.check_metadata({name: value})
        except InvalidArgument:
            continue
        if len(found) == _NAMES:
            break
    return found


def _key(key: str) -> str:
    """Theirs may be longer than ours, and one is not the other."""
    if not 1 <= len(key) <= 255:
        raise InvalidArgument("Idempotency-Key: 1 to 255 characters")
    return "e2b:" + hashlib.sha256(key.encode()).hexdigest()
