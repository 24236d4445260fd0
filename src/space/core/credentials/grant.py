"""A grant: which secret, for whom, toward where, in which slot of a request, until when, how often. Frozen values and their verdicts.

{"name": "code-host", "secret": "code-host-token",
 "who": {"labels": {"team": "a"}},
 "where": {"host": "api.example.com", "methods": ["GET"], "paths": ["/repos/**"]},
 "slot": {"kind": "header", "name": "authorization", "template": "Bearer {}"},
 "until": "2027-01-01T00:00:00Z", "rate": {"count": 100, "seconds": 60}}

`parse` is strict where somebody writes one; `decode` reads what was checked before, and is quick. Every verdict is the broker's own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from space.core.policy.names import NameRefused, canon
from space.core.policy.paths import Path, PathPattern, PathRefused, normalise
from space.core.policy.suffixes import is_public_suffix

MOST_GRANT = 16_384  # bytes of one as JSON
MOST_LIST = 64
NAME = r"\A[a-z0-9][a-z0-9._-]{0,62}\Z"
Name = Annotated[str, Meta(pattern=NAME)]
Kind = Literal["static", "oauth_refresh", "client_credentials", "aws"]
KINDS: tuple[Kind, ...] = ("static", "oauth_refresh", "client_credentials", "aws")
# What records and answers say. To a guest `grant_revoked` is `grant_unknown`: it learns nothing of grants that it does not have.
Reason = Literal[
    "grant_unknown",
    "grant_expired",
    "grant_scope",
    "grant_rate",
    "grant_used_up",
    "grant_revoked",
    "grant_approval",
    "credential_unavailable",
]

_FIELD = r"\A[!#$%&'*+.^_`|~0-9a-z-]{1,64}\Z"
Field = Annotated[str, Meta(pattern=_FIELD)]
_METHOD = r"\A[A-Z][A-Z-]{0,31}\Z"
_LABEL = r"\A[\x21-\x7e]{1,128}\Z"
_NEVER = frozenset({"TRACE", "TRACK", "CONNECT"})
# Fields that frame a message, route it, or are written anew: none of them is a slot.
_NO_SLOT = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive", "proxy-connection"}
    | {"http2-settings", "content-encoding", "content-type", "accept-encoding", "range", "via", "forwarded", "set-cookie"}
)
_TEMPLATE = re.compile(r"[\x20-\x7e]*\Z")


class GrantRefused(ValueError):
    """What somebody wrote is no grant. path: where, such as `where.host`. hint: what to do, or empty."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        super().__init__(f"{path}: {message}" + (f" ({hint})" if hint else ""))
        self.path, self.message, self.hint = path, message, hint


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    pass


class Who(_Part, frozen=True):
    """Sandboxes of the grant's tenant: any of these. To whom it was attached it is granted as well. all: every one."""

    sandboxes: Annotated[tuple[Annotated[str, Meta(pattern=r"\Asb-[a-z2-7]{20}\Z")], ...], Meta(max_length=MOST_LIST)] = ()
    templates: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(max_length=MOST_LIST)] = ()
    labels: Annotated[dict[Annotated[str, Meta(pattern=_LABEL)], Annotated[str, Meta(max_length=256)]], Meta(max_length=MOST_LIST)] = {}
    all: bool = False


class Where(_Part, frozen=True):
    """https to exactly that host and port. methods, paths: None for all."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)] = 443
    methods: Annotated[tuple[Annotated[str, Meta(pattern=_METHOD)], ...], Meta(min_length=1, max_length=MOST_LIST)] | None = None
    paths: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=1024)], ...], Meta(min_length=1, max_length=MOST_LIST)] | None = (
        None
    )


class Rate(_Part, frozen=True):
    """So many uses in so many seconds, of the secret over all sandboxes; so many at once (None: all of them)."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    seconds: Annotated[float, Meta(gt=0, le=86_400 * 366)]
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class Header(_Part, frozen=True, tag_field="kind", tag="header"):
    """A field. template: its value, with `{}` where the secret goes."""

    name: Field = "authorization"
    template: Annotated[str, Meta(max_length=256)] = ""


class Basic(_Part, frozen=True, tag_field="kind", tag="basic"):
    """Basic authentication. username: empty where the secret is `user:password`."""

    username: Annotated[str, Meta(max_length=256)] = ""


class Query(_Part, frozen=True, tag_field="kind", tag="query"):
    """A parameter of the query."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._~-]{1,64}\Z")]


class Placeholder(_Part, frozen=True, tag_field="kind", tag="placeholder", rename={"inside": "in"}):
    """A random value in the environment variable `env` stands for the secret, in one place of a request and nowhere else.

    inside: a field of the name `name`, the password of Basic authentication, or the parameter `name` of the query. prefix, length,
    alphabet: what it looks like, for clients that check; length counts the prefix.
    """

    env: Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z")]
    inside: Literal["header", "basic", "query"] = "header"
    name: Annotated[str, Meta(max_length=64)] = ""
    prefix: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._~-]{0,64}\Z")] = ""
    length: Annotated[int, Meta(ge=20, le=512)] = 40
    alphabet: Literal["hex", "base62", "base64url", "upper", "lower"] = "base62"


class Sigv4(_Part, frozen=True, tag_field="kind", tag="sigv4"):
    """The request is signed anew (AWS Signature Version 4), for that service and region alone."""

    service: Annotated[str, Meta(pattern=r"\A[a-z0-9-]{1,64}\Z")]
    region: Annotated[str, Meta(pattern=r"\A[a-z0-9-]{1,64}\Z")]


Slot = Header | Basic | Query | Placeholder | Sigv4


class Grant(_Part, frozen=True):
    """until: RFC 3339, or empty. uses: over all sandboxes and all time. keep: fields of a guest that are let through beside the slot
    although they may hold a credential. forks: whether a fork of a sandbox may have it by template, labels or `all`.
    """

    name: Name
    secret: Name
    where: Where
    slot: Slot
    who: Who = Who()
    until: Annotated[str, Meta(max_length=40)] = ""
    rate: Rate | None = None
    uses: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    approval: bool = False
    forks: bool = False
    keep: Annotated[tuple[Field, ...], Meta(max_length=MOST_LIST)] = ()
    description: Annotated[str, Meta(max_length=256)] = ""


class Outline(msgspec.Struct, frozen=True, gc=False):
    """What a worker is told of a grant. placeholder: what stands for the secret in that sandbox, or empty."""

    name: str
    host: str
    port: int
    methods: tuple[str, ...] | None
    paths: tuple[str, ...] | None
    slot: Slot
    keep: tuple[str, ...] = ()
    approval: bool = False
    placeholder: str = ""

    def covers(self, host: str, port: int, method: str, path: Path) -> bool:
        """Whether that request is one of its."""
        return in_scope(self.host, self.port, self.methods, self.paths, host, port, method, path)


class Life(msgspec.Struct, frozen=True, gc=False):
    """One life of a sandbox, as far as grants look at it. attached: names of grants. forked: it began as a copy of another's memory."""

    tenant: str
    sandbox: str
    template: str = ""
    labels: Mapping[str, str] = {}
    forked: bool = False
    attached: Collection[str] = ()


class Use(msgspec.Struct, frozen=True, gc=False):
    """What a credential is asked for: one https request."""

    host: str
    port: int
    method: str
    path: Path


_JSON = msgspec.json.Decoder(Grant)


def decode(data: bytes) -> Grant:
    """One that `parse` has made, from `encode`. GrantRefused for what is no grant at all."""
    try:
        return _JSON.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise GrantRefused(*_said(error)) from None


encode = msgspec.json.Encoder().encode


def parse(data: bytes | Mapping[str, Any]) -> Grant:
    """What somebody wrote, as JSON or decoded. GrantRefused with the first mistake."""
    if isinstance(data, bytes):
        if len(data) > MOST_GRANT:
            raise GrantRefused("grant", f"{len(data)} bytes, at most {MOST_GRANT} are possible")
        found = decode(data)
    else:
        try:
            found = msgspec.convert(data, Grant)
        except (msgspec.ValidationError, RecursionError) as error:
            raise GrantRefused(*_said(error)) from None
    _check_where(found.where)
    _check_slot(found.slot)
    if found.until and expiry(found.until) is None:
        raise GrantRefused("until", f"{found.until!r} is no time with its zone", "such as 2027-01-01T00:00:00Z")
    for at, name in enumerate(found.keep):
        if name in _NO_SLOT:
            raise GrantRefused(f"keep[{at}]", f"{name} is never a guest's to say")
    if len(encode(found)) > MOST_GRANT:
        raise GrantRefused("grant", f"it is longer than {MOST_GRANT} bytes")
    return found


def expiry(until: str) -> float | None:
    """Seconds since 1970; None for what is no time with a zone."""
    try:
        found = msgspec.convert(until, datetime)
    except msgspec.ValidationError:
        return None
    return None if found.tzinfo is None else found.timestamp()


# -- verdicts --------------------------------------------------------------------------------------------------------


def is_for(grant: Grant, tenant: str, life: Life) -> bool:
    """Whether that sandbox may have it. tenant: the grant's."""
    if tenant != life.tenant:
        return False
    who = grant.who
    if grant.name in life.attached or life.sandbox in who.sandboxes:
        return True
    if life.forked and not grant.forks:
        return False
    return who.all or life.template in who.templates or (bool(who.labels) and who.labels.items() <= life.labels.items())


def permits(grant: Grant, tenant: str, life: Life, use: Use, now: float) -> Reason | None:
    """Why that use of it is refused; None when it is not. now: seconds since 1970."""
    if not is_for(grant, tenant, life):
        return "grant_unknown"
    if is_over(grant, now):
        return "grant_expired"
    where = grant.where
    if not in_scope(where.host, where.port, where.methods, where.paths, use.host, use.port, use.method, use.path):
        return "grant_scope"
    return None


def is_over(grant: Grant, now: float) -> bool:
    """Whether its time is."""
    if not grant.until:
        return False
    end = _end(grant.until)
    return end is None or now >= end


def in_scope(
    host: str,
    port: int,
    methods: tuple[str, ...] | None,
    paths: tuple[str, ...] | None,
    asked_host: str,
    asked_port: int,
    method: str,
    path: Path,
) -> bool:
    """Whether a request is within these bounds: a path in every reading that a server may have of it."""
    if host != asked_host or port != asked_port or method in _NEVER:
        return False
    if methods is not None and method not in methods:
        return False
    if paths is None:
        return True
    patterns = _patterns(paths)
    return all(any(pattern.matches(reading) for pattern in patterns) for reading in path.readings)


def target(text: str) -> Path | None:
    """A path in its normal form and without a query, as a worker says it; None for what is not in that form."""
    try:
        found = normalise(text.encode("ascii"))
    except (PathRefused, UnicodeEncodeError):
        return None
    return found if found.text == text and found.query is None else None


@lru_cache(4096)
def _patterns(paths: tuple[str, ...]) -> tuple[PathPattern, ...]:
    return tuple(map(PathPattern.parse, paths))


@lru_cache(4096)
def _end(until: str) -> float | None:
    return expiry(until)


# -- what somebody wrote ---------------------------------------------------------------------------------------------


def _check_where(where: Where) -> None:
    try:
        name = canon(where.host)
    except NameRefused as refused:
        raise GrantRefused("where.host", str(refused), "a credential is for one host: name it") from None
    if name != where.host:
        raise GrantRefused("where.host", f"{where.host!r} is not its canonical form", f"write {name}")
    if is_public_suffix(name):
        raise GrantRefused("where.host", f"{name!r} is a public suffix: nobody's name", "name the host itself")
    for at, method in enumerate(where.methods or ()):
        if method in _NEVER:
            raise GrantRefused(f"where.methods[{at}]", f"{method} is never let out")
    for at, text in enumerate(where.paths or ()):
        try:
            PathPattern.parse(text)
        except ValueError as error:
            raise GrantRefused(f"where.paths[{at}]", f"{text!r}: {error}") from None


def _check_slot(slot: Slot) -> None:
    match slot:
        case Header():
            _check_field(slot.name, "slot.name")
            if slot.template.count("{}") > 1 or (slot.template and "{}" not in slot.template) or not _TEMPLATE.match(slot.template):
                raise GrantRefused(
                    "slot.template", "a template is printable ASCII with `{}` once, where the secret goes", "such as 'Bearer {}'"
                )
        case Basic():
            if ":" in slot.username or any(ord(letter) < 0x20 for letter in slot.username):
                raise GrantRefused("slot.username", "a user's name has no colon and no control character")
        case Placeholder():
            _check_placeholder(slot)
        case _:
            return


def _check_placeholder(slot: Placeholder) -> None:
    if slot.inside == "header":
        if not re.match(_FIELD, slot.name):
            raise GrantRefused("slot.name", f"{slot.name!r} is no field's name in lower case", "such as authorization")
        _check_field(slot.name, "slot.name")
    elif slot.inside == "query":
        if not re.match(r"[A-Za-z0-9._~-]{1,64}\Z", slot.name):
            raise GrantRefused("slot.name", f"{slot.name!r} is no parameter's name", "letters, digits and ._~-")
    elif slot.name:
        raise GrantRefused("slot.name", "Basic authentication has one place: its password", "leave the name out")
    if slot.length - len(slot.prefix) < 20:
        raise GrantRefused("slot.length", f"{slot.length} leaves fewer than 20 characters behind the prefix: it could be guessed")


def _check_field(name: str, path: str) -> None:
    if name in _NO_SLOT or name.startswith(("x-forwarded-", "sec-", "proxy-")):
        raise GrantRefused(path, f"{name} is written anew, or says how a message is read: it is no place for a credential")


_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?\Z", re.DOTALL)


_FORMS = {
    "name": "a name is 1 to 63 of a-z, 0-9, '.', '_' and '-'",
    "slot.name": "a name of 1 to 64 characters without spaces; a field's is in lower case",
    "methods": "a method is in capitals, such as GET",
    "sandboxes": "a sandbox is named by its id, such as sb-... with 20 characters behind it",
    "labels": "a label's name is 1 to 128 printable characters without spaces",
    "env": "a variable's name is letters, digits and '_', and begins with no digit",
    "prefix": "a prefix is at most 64 letters, digits, '.', '_', '~' and '-'",
    "service": "a service is 1 to 64 of a-z, 0-9 and '-', such as s3",
    "region": "a region is 1 to 64 of a-z, 0-9 and '-', such as eu-central-1",
}


def _said(error: Exception) -> tuple[str, str]:
    """Where and what, without the values: msgspec's words quote none of them."""
    found = _AT.match(str(error))
    assert found is not None
    message, path = found[1], found[2] or "grant"
    if " matching regex " in message:  # which tells a person nothing
        last = re.sub(r"\[[^]]*]", "", path).rpartition(".")[2]
        return path, _FORMS.get(last, _FORMS["name"]) if path != "slot.name" else _FORMS["slot.name"]
    return path, message[:1].lower() + message[1:300]
