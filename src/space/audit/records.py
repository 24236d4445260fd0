"""What is written down of a sandbox's traffic: one record for each decision on a name, each connection, each request, each credential.

Query strings are kept as keys only, bodies and fields not at all, so that no record can hold a secret. recorded: no rule allows it, and it
was let through because the policy of a template under construction only records. `sandbox` is what the sender says; who keeps the records
knows it from the socket. `decode_all` is the boundary: whatever it returns has bounded values of these types and nothing else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal["name", "connection", "request", "credential", "dial"]
MOST_PATH = 1024
MOST_MESSAGE = 16_384
_MOST_TEXT = 2048
_MOST_KEYS = 256
# What stands here is what `decode_all` lets pass.
Text = Annotated[str, Meta(max_length=_MOST_TEXT)]
Keys = Annotated[tuple[Text, ...], Meta(max_length=_MOST_KEYS)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class NameDecided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="name"):
    """A DNS query. address: what the guest was told. reason: why it was refused."""

    sandbox: Text
    name: Text
    qtype: Count
    reason: Text = ""
    rule: Text = ""
    recorded: bool = False
    address: Text = ""


class Connected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="connection"):
    """A connection that has ended. reason: why, empty when both sides were done. sent, received: bytes as the guest's side saw them."""

    sandbox: Text
    id: Text
    name: Text
    port: Count
    scheme: Text = ""
    rule: Text = ""
    recorded: bool = False
    reason: Text = ""
    requests: Count = 0
    sent: Count = 0
    received: Count = 0
    seconds: Seconds = 0.0
    upstream: Text = ""


class Requested(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="request"):
    """A request that has ended. query: keys. status: what the guest was answered. sent, received: bytes toward and from the upstream.

    grant, version: the credential that it got, and of its secret; a grant without a version: the one that it was refused for.
    """

    sandbox: Text
    id: Text
    name: Text
    port: Count
    method: Text = ""
    path: Text = ""
    query: Keys = ()
    status: Count = 0
    rule: Text = ""
    recorded: bool = False
    reason: Text = ""
    sent: Count = 0
    received: Count = 0
    seconds: Seconds = 0.0
    upstream: Text = ""
    grant: Text = ""
    version: Count = 0


class Repeated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag="repeated"):
    """Denials that were counted instead of written. of: the kind of record."""

    sandbox: Text
    of: Kind
    reason: Text
    count: Count


class CredentialRead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="credential"):
    """A grant was asked for, before anything was released. reason: why it was refused. version: of the secret; never a part of it.

    uses: of how many requests of that grant the lease is. generation: of the sandbox.
    """

    sandbox: Text
    id: Text
    grant: Text
    name: Text
    port: Count
    method: Text = ""
    path: Text = ""
    version: Count = 0
    reason: Text = ""
    secret: Text = ""
    uses: Count = 0
    generation: Count = 0


class Dialled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, tag="dial"):
    """The dialler's own word on a connection that was asked of it. address: the checked one. reason: why there is none."""

    sandbox: Text
    name: Text
    port: Count
    address: Text = ""
    reason: Text = ""
    seconds: Seconds = 0.0
    generation: Count = 0  # of the sandbox


Record = NameDecided | Connected | Requested | Repeated
Kept = Record | CredentialRead | Dialled


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message to the keeper of the records. id: not 0 asks for an answer once the record is written. Events of credentials come so;
    what a worker has to say without an answer comes as several records together.
    """

    record: Kept
    id: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0


MOST_TOGETHER = 64  # records of one message
_DECODER = msgspec.msgpack.Decoder(Note | list[Record])
_ENCODER = msgspec.msgpack.Encoder()


class RecordRefused(ValueError):
    """Not a record."""


def encode(note: Note) -> bytes:
    """As it goes over the socket. RecordRefused: values that `decode` would refuse."""
    return _encoded(note, note.record, note.id)


def encode_record(record: Record) -> bytes:
    """One of several that go together, without ids (`together`). RecordRefused: too long. Its numbers are the caller's own counts."""
    data = _ENCODER.encode(record)
    return data if len(data) <= _MOST_TEXT else _encoded(record, record, 0)


def together(records: list[bytes]) -> bytes:
    """One message of them: 1 to MOST_TOGETHER, with room for two bytes more in MOST_MESSAGE."""
    return (bytes((0x90 | len(records),)) if len(records) < 16 else b"\xdc" + len(records).to_bytes(2, "big")) + b"".join(records)


def decode(message: bytes) -> Note:
    """A message of one record. RecordRefused for anything else."""
    records, number = decode_all(message)
    if len(records) != 1:
        raise RecordRefused(f"{len(records)} records where one should be")
    return Note(records[0], number)


def decode_all(message: bytes) -> tuple[Sequence[Kept], int]:
    """What a sender says: records, and the id of a note. RecordRefused for anything that is not exactly that with bounded values."""
    if len(message) > MOST_MESSAGE:
        raise RecordRefused(f"a message of {len(message)} bytes, at most {MOST_MESSAGE} are possible")
    try:
        said = _DECODER.decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise RecordRefused(f"no record: {str(error)[:200]}") from None
    records: Sequence[Kept]
    records, number = (said, 0) if isinstance(said, list) else ((said.record,), said.id)
    if not 0 < len(records) <= MOST_TOGETHER:
        raise RecordRefused(f"{len(records)} records together, 1 to {MOST_TOGETHER} are possible")
    return records, number


def _encoded(said: Note | Record, record: Kept, number: int) -> bytes:
    data = _ENCODER.encode(said)
    if len(data) > MOST_MESSAGE:
        raise RecordRefused(f"a record of {len(data)} bytes, at most {MOST_MESSAGE} are possible")
    if not 0 <= number < 1 << 53:
        raise RecordRefused("the id of a note is not within 0 to 2^53")
    for field in record.__struct_fields__:
        _check(field, getattr(record, field))
    return data


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
