"""What zygote and worker say to each other: a byte that says what it is, then at most a few thousand more. Pure.

    down  P  generation, 8 bytes      the policy of now on, in the memfd beside it (none: nothing is allowed)
          R  1 byte                   signer, audit or dialer: the socket beside it, from now on
          M  message                  of the node (`core.wire.workertalk`)
    up    A  generation, words        that policy holds; or, with words, cannot be read, and nothing is allowed
          M  message                  for the node
          L  words                    for the log

A worker may be taken: what it sends up is bounded here, and neither believed nor understood by the zygote.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

MOST = 4608
MOST_WORDS = 1000
MOST_MESSAGE = 4096
What = Literal["signer", "audit", "dialer"]
_WHATS: dict[What, bytes] = {"signer": b"S", "audit": b"A", "dialer": b"D"}
_BY_BYTE = {byte: what for what, byte in _WHATS.items()}
_NUMBER = struct.Struct("=Q")


class InnerRefused(ValueError):
    """Not such a message."""


@dataclass(frozen=True, slots=True)
class Policy:
    """generation: its number."""

    generation: int


@dataclass(frozen=True, slots=True)
class Replace:
    """what: the socket that is another one."""

    what: What


@dataclass(frozen=True, slots=True)
class Message:
    """data: as it came."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Applied:
    """generation: of the policy. words: why it cannot be read; empty: it holds."""

    generation: int
    words: str


@dataclass(frozen=True, slots=True)
class Logged:
    """words: one line."""

    words: str


Down = Policy | Replace | Message
Up = Applied | Message | Logged


def encode(message: Down | Up) -> bytes:
    """Its bytes; words are cut, a message that is too long is the caller's fault."""
    match message:
        case Policy(generation=generation):
            return b"P" + _NUMBER.pack(generation)
        case Replace(what=what):
            return b"R" + _WHATS[what]
        case Applied(generation=generation, words=words):
            return b"A" + _NUMBER.pack(generation) + words.encode("utf-8", "replace")[:MOST_WORDS]
        case Logged(words=words):
            return b"L" + words.encode("utf-8", "replace")[:MOST_WORDS]
        case Message(data=data):
            if not 0 < len(data) <= MOST_MESSAGE:
                raise InnerRefused(f"a message of {len(data)} bytes, 1 to {MOST_MESSAGE} are possible")
            return b"M" + data


def from_zygote(data: bytes) -> Down:
    """InnerRefused for what is none."""
    kind, rest = data[:1], data[1:]
    if kind == b"P" and len(rest) == _NUMBER.size:
        return Policy(_NUMBER.unpack(rest)[0])
    if kind == b"R" and rest in _BY_BYTE:
        return Replace(_BY_BYTE[rest])
    if kind == b"M":
        return _message(rest)
    raise InnerRefused(f"{data[:16]!r} is nothing that a zygote says")


def from_worker(data: bytes) -> Up:
    """InnerRefused for what is none. Words come without control characters."""
    kind, rest = data[:1], data[1:]
    if kind == b"A" and _NUMBER.size <= len(rest) <= _NUMBER.size + MOST_WORDS:
        return Applied(_NUMBER.unpack(rest[: _NUMBER.size])[0], _words(rest[_NUMBER.size :]))
    if kind == b"M":
        return _message(rest)
    if kind == b"L" and len(rest) <= MOST_WORDS:
        return Logged(_words(rest))
    raise InnerRefused(f"{data[:16]!r} is nothing that a worker says")


def _message(data: bytes) -> Message:
    if not 0 < len(data) <= MOST_MESSAGE:
        raise InnerRefused(f"a message of {len(data)} bytes, 1 to {MOST_MESSAGE} are possible")
    return Message(data)


def _words(data: bytes) -> str:
    return "".join(one if one.isprintable() else "?" for one in data.decode("utf-8", "replace"))
