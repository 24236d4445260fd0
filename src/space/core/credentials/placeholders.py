"""What stands for a secret in a guest: it looks like one, and is worth nothing but in its slot toward its host.

make(slot, choose) -> "sk_live_..."        swapped_header, swapped_query: the request with the secret in its stead
Places(placeholders).found(fields, target): which of them a head holds, and where, in any spelling of the tripwire's
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

from space.core.credentials.grant import Placeholder
from space.core.credentials.slots import Field, Unfit, keys, usual
from space.core.credentials.tripwire import Needles, Tripwire, needles

_DIGITS, _LOWER = "0123456789", "abcdefghijklmnopqrstuvwxyz"
_UPPER = _LOWER.upper()
ALPHABETS: Mapping[str, str] = {
    "hex": _DIGITS + "abcdef",
    "base62": _DIGITS + _UPPER + _LOWER,
    "base64url": _DIGITS + _UPPER + _LOWER + "-_",
    "upper": _DIGITS + _UPPER,
    "lower": _DIGITS + _LOWER,
}


def make(slot: Placeholder, choose: Callable[[str], str]) -> str:
    """A new one. choose: one character of a string, by chance that nobody can foretell."""
    alphabet = ALPHABETS[slot.alphabet]
    return slot.prefix + "".join([choose(alphabet) for _ in range(slot.length - len(slot.prefix))])


def shaped(slot: Placeholder, text: str) -> bool:
    """Whether one of that slot looks so."""
    rest = text[len(slot.prefix) :]
    return text.startswith(slot.prefix) and len(text) == slot.length and set(rest) <= set(ALPHABETS[slot.alphabet])


def swapped_header(value: bytes, placeholder: bytes, secret: bytes) -> bytes | None:
    """A field's value with the secret in its stead, also within Basic authentication; None where it does not stand there.

    Unfit: what comes of it is no value of a field.
    """
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() == b"basic":
        inside = _basic(rest)
        if inside is None or placeholder not in inside:
            return None
        return scheme + b" " + base64.b64encode(inside.replace(placeholder, secret))
    if placeholder not in value:
        return None
    made = value.replace(placeholder, secret)
    if any(byte < 0x20 or byte == 0x7F for byte in secret) or made.strip(b" \t") != made:
        raise Unfit("the value of a field holds no control characters, and no spaces at its ends")
    return made


def swapped_basic(value: bytes, placeholder: bytes, secret: bytes) -> bytes | None:
    """Likewise where it must be the whole password."""
    scheme, _, rest = value.partition(b" ")
    inside = _basic(rest) if scheme.lower() == b"basic" else None
    user, colon, password = (inside or b"").partition(b":")
    if not colon or password != placeholder:
        return None
    return b"Basic " + base64.b64encode(user + b":" + secret)


def swapped_query(query: str, name: str, placeholder: bytes, secret: bytes) -> str | None:
    """A query with the secret in its stead, escaped, in the values of that parameter; None where it does not stand there."""
    wanted = name.lower().replace("_", "-")
    parts, found = query.split("&"), False
    for at, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if not equals or keys(part) != {wanted}:
            continue
        plain = unquote_to_bytes(value.replace("+", " "))
        if placeholder in plain:
            parts[at], found = key + "=" + quote_from_bytes(plain.replace(placeholder, secret), safe=""), True
    return "&".join(parts) if found else None


@dataclass(frozen=True, slots=True)
class Sighting:
    """One in a head. field: its name in its usual spelling; None: in the target."""

    name: str
    field: bytes | None


class Places:
    """The placeholders of one sandbox, by the grant that each is for."""

    def __init__(self, placeholders: Mapping[str, str]) -> None:
        self._each = {name: needles(text.encode("ascii")) for name, text in placeholders.items()}
        self._all = needles(*[text.encode("ascii") for text in placeholders.values()])

    def __bool__(self) -> bool:
        return bool(self._each)

    def found(self, fields: Iterable[Field], target: bytes) -> list[Sighting]:
        """All of them that a head holds."""
        fields = tuple(fields)
        if not self._all or not self._within(self._all, b"\n".join([target, *[part for field in fields for part in field]])):
            return []
        sightings = []
        for name, one in self._each.items():
            if self._within(one, target):
                sightings.append(Sighting(name, None))
            sightings += [Sighting(name, usual(field[0])) for field in fields if self._within(one, b"\n".join(field))]
        return sightings

    def watch(self) -> Tripwire:
        """For one body that goes on as it is: `echoes` tells whether one was in it."""
        return Tripwire(self._all)

    @staticmethod
    def _within(sought: Needles, data: bytes) -> bool:
        return bool(sought.found(data))


def _basic(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text.strip(b" ") + b"=" * (-len(text.strip(b" ")) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
