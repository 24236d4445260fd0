"""What is written down of a sandbox's traffic: one record for each decision on a name, each connection, each request, each credential.

Query strings are kept as keys only, bodies and fields not at all, so that no record can hold a secret. recorded: no rule allows it, and it
was let through because the policy of a template under construction only records. `sandbox` is what the sender says; who keeps the records
knows it from the socket. `decode` is the boundary: whatever it returns has bounded values of these types and nothing else.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Kind = Literal["name", "connection", "request", "credential", "dial"]
MOST_PATH = 1024
MOST_MESSAGE = 16_384
_MOST_TEXT = 2048
_MOST_KEYS = 256


class NameDecided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="name"):
    """A DNS query. address: what the guest was told. reason: why it was refused."""

    sandbox: str
    name: str
    qtype: int
    reason: str = ""
    rule: str = ""
    recorded: bool = False
    address: str = ""


class Connected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="connection"):
    """A connection that has ended. reason: why, empty when both sides were done. sent, received: bytes as the guest's side saw them."""

    sandbox: str
    id: str
    name: str
    port: int
    scheme: str = ""
    rule: str = ""
    recorded: bool = False
    reason: str = ""
    requests: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    upstream: str = ""


class Requested(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="request"):
    """A request that has ended. query: keys. status: what the guest was answered. sent, received: bytes toward and from the upstream."""

    sandbox: str
    id: str
    name: str
    port: int
    method: str = ""
    path: str = ""
    query: tuple[str, ...] = ()
    status: int = 0
    rule: str = ""
    recorded: bool = False
    reason: str = ""
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    upstream: str = ""


class Repeated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="repeated"):
    """Denials that were counted instead of written. of: the kind of record."""

    sandbox: str
    of: Kind
    reason: str
    count: int


class CredentialRead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="credential"):
    """A grant was asked for, before anything was released. reason: why it was refused. version: of the secret; never a part of it."""

    sandbox: str
    id: str
    grant: str
    name: str
    port: int
    method: str = ""
    path: str = ""
    version: int = 0
    reason: str = ""


class Dialled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="dial"):
    """The dialler's own word on a connection that was asked of it. address: the checked one. reason: why there is none."""

    sandbox: str
    name: str
    port: int
    address: str = ""
    reason: str = ""
    seconds: float = 0.0


Record = NameDecided | Connected | Requested | Repeated
Kept = Record | CredentialRead | Dialled


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message to the keeper of the records. id: not 0 asks for an answer once the record is written."""

    record: Kept
    id: int = 0


_DECODER = msgspec.msgpack.Decoder(Note)
_ENCODER = msgspec.msgpack.Encoder()


class RecordRefused(ValueError):
    """Not a record."""


def encode(note: Note) -> bytes:
    """As it goes over the socket. RecordRefused: values that `decode` would refuse."""
    data = _ENCODER.encode(note)
    if len(data) > MOST_MESSAGE:
        raise RecordRefused(f"a record of {len(data)} bytes, at most {MOST_MESSAGE} are possible")
    _bounded(note)
    return data


def decode(message: bytes) -> Note:
    """What a sender says. RecordRefused for anything that is not exactly a record with bounded values."""
    if len(message) > MOST_MESSAGE:
        raise RecordRefused(f"a record of {len(message)} bytes, at most {MOST_MESSAGE} are possible")
    try:
        note = _DECODER.decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise RecordRefused(f"no record: {str(error)[:200]}") from None
    _bounded(note)
    return note


def _bounded(note: Note) -> None:
    if not 0 <= note.id < 1 << 53:
        raise RecordRefused("the id of a note is not within 0 to 2^53")
    for field in note.record.__struct_fields__:
        value = getattr(note.record, field)
        if type(value) is not str or len(value) > _MOST_TEXT:  # most are short words
            _check(field, value)


def _check(field: str, value: object) -> None:
    if isinstance(value, str):
        if len(value) > _MOST_TEXT:
            raise RecordRefused(f"{field} has {len(value)} characters, at most {_MOST_TEXT} are possible")
    elif isinstance(value, tuple):
        if len(value) > _MOST_KEYS:
            raise RecordRefused(f"{field} has {len(value)} entries, at most {_MOST_KEYS} are possible")
        for one in value:
            _check(field, one)
    elif isinstance(value, float):
        if not math.isfinite(value) or value < 0:
            raise RecordRefused(f"{field} is {value}, which is no duration")
    elif isinstance(value, int) and not 0 <= value < 1 << 63:
        raise RecordRefused(f"{field} is not within 0 to 2^63")
