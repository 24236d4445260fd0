"""Requests and answers of secrets and grants. A value leaves its request as a `Secret`; no answer has one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from space.control import wire
from space.core.credentials import grant as grants
from space.core.credentials import secret as secrets
from space.core.credentials.grant import KINDS, Grant, GrantRefused
from space.model.credentials import GrantInfo, SecretInfo
from space.model.errors import InvalidArgument
from space.model.secret import Secret

T = TypeVar("T")
_NAME = re.compile(grants.NAME)
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]{1,200})`")
_LABELS = Annotated[dict[Annotated[str, Meta(max_length=128)], Annotated[str, Meta(max_length=256)]], Meta(max_length=64)]
_TIME = Annotated[str, Meta(max_length=40, description="RFC 3339 with a zone, or empty for never")]


class SecretRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret. value: its text, or the secret parts of its kind by name: `static` has `value`; `oauth_refresh` `refresh_token` and perhaps
    `client_secret`; `client_credentials` `client_secret`; `aws` `secret_access_key` and perhaps `session_token`. public: parts that may be
    told: `endpoint` (a name of the operator's), `client_id`, `scope`, `audience`, `access_key_id`.
    """

    value: str | dict[str, str]
    kind: Annotated[str, Meta(description="One of " + ", ".join(KINDS))] = "static"
    public: Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=8)] = {}
    labels: _LABELS = {}
    description: Annotated[str, Meta(max_length=256)] = ""
    expires: _TIME = ""

    def __repr__(self) -> str:
        return "SecretRequest()"

    def sealed(self) -> Secret:
        """The secret parts, packed. InvalidArgument, which quotes nothing of them."""
        if self.kind not in KINDS:
            raise InvalidArgument("kind: it is none", hint="one of " + ", ".join(KINDS))
        if self.expires and grants.expiry(self.expires) is None:
            raise InvalidArgument("expires: it is no time with its zone", hint="such as 2027-01-01T00:00:00Z")
        main = sorted(secrets.secret_parts(self.kind))
        if isinstance(self.value, str) and self.kind != "static":
            raise InvalidArgument(f"value: a secret of kind {self.kind} has parts", hint="an object with " + ", ".join(main))
        try:
            parts = {"value": self.value.encode()} if isinstance(self.value, str) else {n: v.encode() for n, v in self.value.items()}
        except UnicodeEncodeError:
            raise InvalidArgument("value: it holds half a surrogate pair", hint="send whole characters") from None
        try:
            secrets.check(self.kind, self.public, parts)
        except GrantRefused as refused:
            raise InvalidArgument(f"value: {refused.path}: {refused.message}", hint=refused.hint or None) from None
        return Secret(secrets.packed(parts))


class SecretList(Struct, frozen=True):
    """A page, by name. next_cursor: ask for the rest with it; null on the last page."""

    secrets: list[SecretInfo]
    next_cursor: str | None


class GrantList(Struct, frozen=True):
    """A page, by name. next_cursor: ask for the rest with it; null on the last page."""

    grants: list[GrantInfo]
    next_cursor: str | None


class AttachedGrants(Struct, frozen=True):
    """Names of grants that were attached to a sandbox, in order. Those that it has by what they select are not among them."""

    grants: list[str]


def name(text: str, what: str) -> str:
    """A name of a secret or a grant. InvalidArgument."""
    if not _NAME.match(text):
        raise InvalidArgument(f"{text[:64]!r} is no name for a {what}", hint="1 to 63 of a-z, 0-9, '.', '_', '-', no sign first")
    return text


def decode(body: bytes, cls: type[T]) -> T:
    """As `wire.decode`; a field that is not known is told with those that are."""
    try:
        return wire.decode(body, cls)
    except InvalidArgument as fault:
        raise InvalidArgument(fault.message, hint=_hint(fault.message, cls) or fault.hint) from None


def grant(body: bytes, named: str) -> Grant:
    """A grant of that name. InvalidArgument with the place of the first mistake."""
    try:
        said: Any = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}", hint=wire.BODY_HINT) from None
    if not isinstance(said, dict):
        raise InvalidArgument("the body is not right: a grant is an object", hint=wire.BODY_HINT)
    if said.setdefault("name", named) != named:
        raise InvalidArgument("name: the path names another one", hint="leave it out")
    try:
        return grants.parse(said)
    except GrantRefused as refused:
        hint = refused.hint or _hint("O" + refused.message[1:], Grant)
        fault = InvalidArgument(f"{refused.path}: {refused.message}", hint=hint)
        fault.details = [{"path": refused.path, "message": refused.message, "hint": hint or ""}]
        raise fault from None


def _hint(message: str, cls: type) -> str | None:
    """Of a field that is not known: the one that was meant, or all."""
    found = _UNKNOWN.search(message)
    if found is None:
        return None
    known = _fields(cls)
    near = difflib.get_close_matches(found[1], known, 1)
    return f"{near[0]}?" if near else "known: " + ", ".join(sorted(known))


def _fields(cls: type, seen: frozenset[type] = frozenset()) -> Collection[str]:
    """Of a struct and of those that it holds."""
    found: dict[str, None] = {}
    for field in msgspec.structs.fields(cls):
        found[field.encode_name] = None
    if cls is Grant:
        for part in (grants.Who, grants.Where, grants.Rate, grants.Header, grants.Basic, grants.Query, grants.Placeholder, grants.Sigv4):
            found |= dict.fromkeys(one.encode_name for one in msgspec.structs.fields(part))
        found["kind"] = None
    return list(found)
