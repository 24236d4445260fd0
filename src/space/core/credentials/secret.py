"""What a secret of each kind is made of: which parts are secret, which may be told. Values in, checked values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from space.core.credentials import slots
from space.core.credentials.grant import KINDS, Grant, GrantRefused, Header, Kind, Placeholder, Sigv4, Slot

MOST_VALUE = 32_768  # bytes of all secret parts of one
MOST_PUBLIC = 4096
_CLIENT = frozenset({"endpoint", "client_id"})
_NONE: frozenset[str] = frozenset()
# Of each kind: secret parts that have to be there, and that may be; parts that may be told, likewise.
_PARTS: dict[Kind, tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]] = {
    "static": (frozenset({"value"}), _NONE, _NONE, _NONE),
    "oauth_refresh": (frozenset({"refresh_token"}), frozenset({"client_secret"}), _CLIENT, frozenset({"scope", "auth"})),
    "client_credentials": (frozenset({"client_secret"}), _NONE, _CLIENT, frozenset({"scope", "audience", "auth"})),
    "aws": (frozenset({"secret_access_key"}), frozenset({"session_token"}), frozenset({"access_key_id"}), _NONE),
}


def secret_parts(kind: Kind) -> frozenset[str]:
    """Names of parts that are never told."""
    return _PARTS[kind][0] | _PARTS[kind][1]


def public_parts(kind: Kind) -> frozenset[str]:
    """Names of parts that may be."""
    return _PARTS[kind][2] | _PARTS[kind][3]


def check(kind: str, public: Mapping[str, Any], secret: Mapping[str, Any]) -> None:
    """GrantRefused for what is no secret of that kind. Nothing of a value is in its words."""
    if kind not in KINDS:
        raise GrantRefused("kind", f"{kind[:40]!r} is not one of {', '.join(KINDS)}")
    needed, more, told, also = _PARTS[kind]
    for given, have, may, what in ((secret, needed, more, "secret"), (public, told, also, "public")):
        for name in sorted(have - given.keys()):
            raise GrantRefused(name, f"a secret of kind {kind} has it")
        for name in sorted(given.keys() - have - may):
            raise GrantRefused(name[:40], f"unknown as a {what} part of kind {kind}", "known: " + (", ".join(sorted(have | may)) or "none"))
    for name, value in secret.items():
        if not isinstance(value, bytes) or not value:
            raise GrantRefused(name, "empty, or no bytes")
    if sum(len(value) for value in secret.values()) > MOST_VALUE:
        raise GrantRefused("value", f"longer than {MOST_VALUE} bytes")
    if public.get("auth", "basic") not in ("basic", "post"):
        raise GrantRefused("auth", "basic (the client's secret in the Authorization field) or post (in the form)")
    for name, value in public.items():
        if not isinstance(value, str) or not value or not value.isprintable() or len(value) > MOST_PUBLIC // 4:
            raise GrantRefused(name, "text of one line")


def fits(kind: Kind, grant: Grant) -> None:
    """GrantRefused where a secret of that kind cannot go into that grant's slot."""
    if (kind == "aws") != isinstance(grant.slot, Sigv4):
        raise GrantRefused(
            "slot.kind", f"a secret of kind {kind} cannot be a {type(grant.slot).__name__.lower()}", "aws goes with sigv4 alone"
        )


def stands(slot: Slot, value: bytes) -> None:
    """GrantRefused where that value can stand in no request in that slot: a field's value has no line breaks. Says nothing of the value."""
    if isinstance(slot, Header) or (isinstance(slot, Placeholder) and slot.inside == "header"):
        try:
            slots.header(slot.template or "Bearer {}" if isinstance(slot, Header) else "Bearer {}", value)
        except slots.Unfit as unfit:
            hint = "a line's end that came with the value, perhaps: rotate it to one without"
            raise GrantRefused("slot", f"the secret's value cannot stand there: {unfit}", hint) from None


def packed(parts: Mapping[str, bytes]) -> bytes:
    """Secret parts as they are sealed."""
    return msgspec.msgpack.encode(dict(parts))


def unpacked(data: bytes) -> dict[str, bytes]:
    """The parts again."""
    return msgspec.msgpack.decode(data, type=dict[str, bytes])
