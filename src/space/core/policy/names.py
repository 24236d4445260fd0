"""One canonical form of a host's name, for everything that compares names: DNS, SNI, authority, policy, minting, dialling, logs.

A name that has no canonical form is refused with a reason; nothing is repaired. Two implementations of this would be a bypass,
so there is this one. Names from a wire are ASCII (RFC 5890 A-labels); only a policy, which a person writes, may hold U-labels.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import idna

MOST_LABEL = 63
MOST_NAME = 253

Fault = Literal["empty", "too_long", "empty_label", "label_too_long", "character", "hyphen", "address", "idna"]

# LDH and the underscore of service names, which no host should have and some do.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\Z")
# What the WHATWG URL standard calls a number: a name that ends in one is an IPv4 address to a browser and to inet_aton.
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")

# Format and control characters: UTS 46 drops some of them, and two names that look alike would be one.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


class NameRefused(ValueError):
    """Not a name. fault: a stable word; the message is a sentence for a person."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


def canon(text: str) -> str:
    """The canonical form of a name as it comes over a wire: lower case, without one trailing dot. NameRefused.

    ASCII only; letters, digits, hyphens and underscores in labels of 1 to 63 characters, 253 in all; never what some resolver
    would take for an address (a last label that is a number, in decimal or hexadecimal, makes it one); A-labels must be those that
    their own decoding gives.
    """
    return _canon(text)


def canon_written(text: str) -> str:
    """The canonical form of a name that a person wrote: as `canon`, after U-labels have become A-labels (UTS 46). NameRefused."""
    if text.isascii():
        return _canon(text)
    if any(unicodedata.category(letter) in _UNSEEN for letter in text):
        raise NameRefused("character", f"{text[:80]!a} holds a character that nobody sees")
    try:
        mapped = idna.encode(text, uts46=True, std3_rules=False, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise NameRefused("idna", f"{text[:80]!r} is no international domain name: {error}") from None
    return _canon(mapped)


@lru_cache(maxsize=4096)
def _canon(text: str) -> str:
    if not text.isascii():
        raise NameRefused("character", f"{text[:80]!r} holds a character that is not ASCII")
    name = text.removesuffix(".")
    if not name:
        raise NameRefused("empty", "the name is empty")
    if len(name) > MOST_NAME:
        raise NameRefused("too_long", f"the name has {len(name)} characters, at most {MOST_NAME} are possible")
    name = name.lower()
    labels = name.split(".")
    for label in labels:
        _check(label, text)
    if _NUMBER.match(labels[-1]):
        raise NameRefused("address", f"{text[:80]!r} ends in a number, so it is an address and not a name")
    return name


def _check(label: str, text: str) -> None:
    if not label:
        raise NameRefused("empty_label", f"{text[:80]!r} has an empty label")
    if len(label) > MOST_LABEL:
        raise NameRefused("label_too_long", f"a label of {text[:80]!r} has {len(label)} characters, at most {MOST_LABEL} are possible")
    if not _LABEL.match(label):
        if label.startswith("-") or label.endswith("-"):
            raise NameRefused("hyphen", f"a label of {text[:80]!r} begins or ends with a hyphen")
        raise NameRefused("character", f"{text[:80]!r} holds a character that no host's name has")
    if label.startswith("xn--"):
        try:
            again = idna.alabel(idna.ulabel(label)).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            again = ""
        if again != label:
            raise NameRefused("idna", f"{label[:63]!r} is not the A-label of any word")


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a rule says of names: one name, or (wildcard) every name with exactly one more label before it."""

    suffix: str
    wildcard: bool = False

    def __str__(self) -> str:
        return f"*.{self.suffix}" if self.wildcard else self.suffix

    def matches(self, name: str) -> bool:
        """Whether it says so of that canonical name."""
        if not self.wildcard:
            return name == self.suffix
        head, dot, rest = name.partition(".")
        return bool(dot and head) and rest == self.suffix


def pattern(text: str) -> Pattern:
    """A pattern as a person wrote it: a name, or `*.` and a name. NameRefused for anything else (a `*` elsewhere, a bare `*`)."""
    if text.startswith("*."):
        return Pattern(canon_written(text[2:]), wildcard=True)
    if "*" in text:
        raise NameRefused("character", f"{text[:80]!r}: a wildcard is `*.` at the front, and stands for exactly one label")
    return Pattern(canon_written(text))
