"""The API's requests and answers as types, and the one way from bytes to them. What does not fit is an error with its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from space.core.template.recipe import reference
from space.model.errors import InvalidArgument
from space.model.ids import tenant_id
from space.model.sandbox import (
    DEFAULT_CPUS,
    DEFAULT_DISK_MIB,
    DEFAULT_MEMORY_MIB,
    DEFAULT_TEMPLATE,
    DEFAULT_TTL_SECONDS,
    MAX_ARGUMENTS,
    VARIABLE_BYTES,
    Action,
    IdlePolicy,
    SandboxInfo,
    SandboxSpec,
)

T = TypeVar("T")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_METADATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}\Z")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\Z")
MAX_METADATA = 64
MAX_IDLE_SECONDS = 31_536_000
# The kernel's limit for arguments and environment together is a quarter of the stack's: 2 MiB. One string: 128 KiB.
_MAX_STRING = 128 * 1024 - 1
_DISK = "MiB; not less than the template's own disk, which is 2048 for `base`"
GrantName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
PolicyName = Annotated[str, Meta(max_length=63)]
BODY_HINT = "GET /openapi.json has the schema of this body"


class IdleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """seconds: how long nothing has happened; then it is paused, suspended, stopped or deleted."""

    seconds: int
    action: Action = "pause"


class CreateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to make. memory, disk: MiB. ttl_seconds: from creation on; missing: an hour, or the server's limit if that is less.

    idle: null for no such rule. on_timeout: what becomes of it at the end of its time to live. policy: what may leave it (docs/policy.md),
    or the name of a stored policy; null: the tenant's default, else nothing. wake_on_call: whether a call that needs it running wakes it
    when a rule had put it to rest. grants: names of grants that it has besides those that select it.
    """

    template: Annotated[str, Meta(max_length=127, description="A name, or name:tag")] = DEFAULT_TEMPLATE
    cpus: Annotated[int, Meta(ge=1, le=64)] = DEFAULT_CPUS
    memory_mib: Annotated[int, Meta(ge=128, le=1_048_576)] = DEFAULT_MEMORY_MIB
    disk_mib: Annotated[int, Meta(ge=1, le=1_048_576, description=_DISK)] = DEFAULT_DISK_MIB
    env: dict[str, str] = {}
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] = {}
    ttl_seconds: int | None = None
    idle: IdleRequest | None = None
    on_timeout: Action = "delete"
    wake_on_call: bool = True
    policy: dict[str, Any] | PolicyName | None = None
    grants: Annotated[list[GrantName], Meta(max_length=64)] = []


class KeyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to mint. scope: `tenant` for its tenant's sandboxes, `admin` for keys and metrics besides. e2b: of the form that E2B's clients
    know.
    """

    tenant: str
    scope: Annotated[str, Meta(pattern="^(tenant|admin)$")] = "tenant"
    name: Annotated[str, Meta(max_length=64)] = ""
    e2b: bool = False


class KeyInfo(Struct, frozen=True):
    """A key, without its secret. Times are UNIX seconds."""

    id: str
    tenant: str
    scope: str
    name: str
    created_at: float
    revoked_at: float | None = None


class KeyCreated(Struct, frozen=True):
    """A new key. `key` is shown this once."""

    id: str
    tenant: str
    scope: str
    name: str
    created_at: float
    key: str

    def __repr__(self) -> str:
        return f"KeyCreated(id={self.id!r})"


class KeyList(Struct, frozen=True):
    """Every key of every tenant, oldest first."""

    keys: list[KeyInfo]


class SandboxList(Struct, frozen=True):
    """A page, newest first. next_cursor: ask for the rest with it; null on the last page."""

    sandboxes: list[SandboxInfo]
    next_cursor: str | None


class TreeInfo(Struct, frozen=True):
    """A tree that arrived whole. bytes, crc32: of the tar stream, counted by the guest and equal to what was sent."""

    entries: int
    bytes: int
    crc32: int


class MetricsInfo(Struct, frozen=True):
    """A sandbox's figures: bytes and milliseconds; load1_milli: thousandths; `host_*`: of its VMM on the host."""

    memory_total: int
    memory_available: int
    cpu_user_ms: int
    cpu_system_ms: int
    disk_total: int
    disk_used: int
    processes: int
    uptime_ms: int
    load1_milli: int
    host_memory_bytes: int
    host_cpu_ms: int


class Health(Struct, frozen=True):
    """status: `ok`, or `degraded` while the node is not reachable. isolation: what stands between guests and host."""

    status: str
    isolation: str
    version: str


def decode(body: bytes, cls: type[T]) -> T:
    """`body` as `cls`. InvalidArgument says what is wrong and at which path."""
    try:
        return msgspec.json.decode(body or b"{}", type=cls, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the body is not right: {error}", hint=BODY_HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", hint=BODY_HINT) from None
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply", hint=BODY_HINT) from None


def sandbox_spec(request: CreateRequest, *, max_ttl_seconds: int) -> SandboxSpec:
    """The checked specification; InvalidArgument names the field."""
    try:
        reference(template := request.template)
    except ValueError as error:
        raise InvalidArgument(f"template: {error}", hint="GET /v1/templates lists them") from None
    ttl = min(DEFAULT_TTL_SECONDS, max_ttl_seconds) if request.ttl_seconds is None else request.ttl_seconds
    return SandboxSpec(
        template=template,
        cpus=request.cpus,
        memory_mib=request.memory_mib,
        disk_mib=request.disk_mib,
        env=environment(request.env),
        metadata=check_metadata(request.metadata),
        ttl_seconds=check_ttl(ttl, max_ttl_seconds),
        idle=idle_policy(request.idle),
        on_timeout=request.on_timeout,
        wake_on_call=request.wake_on_call,
    )


_SAY_NOTHING = (("idle", None), ("on_timeout", "delete"), ("wake_on_call", True))


def asked_for(spec: SandboxSpec) -> dict[str, Any]:
    """A specification without the fields that came later and say nothing: an older server's digest of the same body is the same."""
    fields: dict[str, Any] = msgspec.to_builtins(spec, order="deterministic")
    return {name: value for name, value in fields.items() if (name, value) not in _SAY_NOTHING}


def check_ttl(seconds: int, most: int) -> int:
    """A time to live; InvalidArgument otherwise."""
    if not 1 <= seconds <= most:
        raise InvalidArgument(f"ttl_seconds is 1 to {most}, not {seconds}", hint="the limit is the setting max_ttl_seconds")
    return seconds


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Names and values, when a list may filter by them; InvalidArgument names the first that is wrong."""
    if len(metadata) > MAX_METADATA:
        raise InvalidArgument(f"metadata: {len(metadata)} names are more than {MAX_METADATA}", hint="remove some, with null as their value")
    for name, value in metadata.items():
        if not _METADATA_NAME.match(name):
            raise InvalidArgument(f"metadata: {name[:64]!r} is no name", hint="1 to 63 of A-Z, a-z, 0-9, '.', '_', '/', '-'")
        if len(value) > 512:
            raise InvalidArgument(f"metadata.{name}: {len(value)} characters are more than 512", hint="keep what is large elsewhere")
    return dict(metadata)


def idle_policy(asked: IdleRequest | None) -> IdlePolicy | None:
    """The rule; InvalidArgument when its time is none."""
    if asked is None:
        return None
    if not 1 <= asked.seconds <= MAX_IDLE_SECONDS:
        raise InvalidArgument(f"idle.seconds is 1 to {MAX_IDLE_SECONDS}, not {asked.seconds}", hint="leave idle out for no such rule")
    return IdlePolicy(asked.seconds, asked.action)


def check_user(user: str | None) -> str | None:
    """A guest user's name, or None; InvalidArgument otherwise."""
    if user is not None and not _USER.match(user):
        raise InvalidArgument(f"user: {user[:64]!r} is no user name", hint="as the guest's /etc/passwd has it: root, user")
    return user


def check_path(path: str | None) -> str:
    """A path in the guest; InvalidArgument when it is missing or no path."""
    if not path:
        raise InvalidArgument("path is missing", hint="?path=/home/user/project, or a path below the user's home")
    check_text("path", path, limit=4095)
    return path


def check_tenant(tenant: str) -> str:
    """A tenant's name; InvalidArgument otherwise."""
    try:
        return tenant_id(tenant)
    except ValueError as error:
        raise InvalidArgument(f"tenant: {error}", hint="such as team-a") from None


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that fit a request to a guest; InvalidArgument names the one that does not."""
    total = 0
    for name, value in env.items():
        if not _ENV_NAME.match(name):
            raise InvalidArgument(f"env: {name[:64]!r} is no name of a variable", hint="letters, digits and _, and no digit first")
        check_text(f"env.{name[:64]}", value)
        total += len(name) + len(value.encode()) + VARIABLE_BYTES
    if total > MAX_ARGUMENTS:
        raise InvalidArgument(
            f"env: {total} bytes ({VARIABLE_BYTES} of them for each variable) are more than {MAX_ARGUMENTS}", hint="upload it as a file"
        )
    return dict(env)


def check_text(field: str, text: str, limit: int = _MAX_STRING) -> None:
    """InvalidArgument when a kernel could not take it as one string."""
    if "\0" in text:
        raise InvalidArgument(f"{field}: holds a NUL character", hint="no string of a kernel's may have one")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{field}: holds half a surrogate pair", hint="send whole characters") from None
    if size > limit:
        raise InvalidArgument(f"{field}: {size} bytes are more than {limit}", hint="send what is large as a file or as stdin")


def encode(value: Any) -> bytes:
    """An answer's body."""
    return msgspec.json.encode(value)
