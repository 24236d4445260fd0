"""The place in a request where a credential stands: emptied in every spelling that a server may read as it, then filled. HTTP/1.1 and 2.

Many servers make `-` and `_` of a field's name the same and take any case; escapes in a query's keys are undone, `;` parts parameters for
some, and what follows a `[` is an index. What is emptied is emptied for all of them; what is put in stands once, in one spelling.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote_from_bytes

Field = tuple[bytes, bytes]

_VALUE = re.compile(rb"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?\Z")
_APART = re.compile(r"([&;])")


class Unfit(ValueError):
    """That value cannot stand in that slot. Says nothing of the value."""


def usual(name: bytes) -> bytes:
    """A field's name (in lower case) in the one spelling in which it is looked up."""
    return name.replace(b"_", b"-")


def bare(name: bytes) -> bytes:
    """A name without anything between its words: as a slot's is told in whichever spelling."""
    return name.replace(b"_", b"").replace(b"-", b"")


def without(fields: Iterable[Field], drops: Callable[[bytes], bool]) -> tuple[Field, ...]:
    """Fields without those whose name, in its usual spelling, is to be dropped."""
    return tuple([field for field in fields if not drops(usual(field[0]))])


def keys(part: str) -> set[str]:
    """All keys that a server may read in one part of a query, in lower case with `-`."""
    text = unescaped(part) if "%" in part else part
    return {_key(one) for one in text.replace(";", "&").split("&")}


def without_keys(query: str, drops: Callable[[str], bool]) -> str | None:
    """A query without the parameters in which a key is to be dropped; None when nothing of it is left."""
    kept: list[str] = []
    between = ""
    for at, part in enumerate(_APART.split(query)):
        if at % 2:
            between = part
        elif part and not any(map(drops, keys(part))):
            kept += [between if kept else "", part]
    return "".join(kept) or None


def header(template: str, value: bytes) -> bytes:
    """A field's value. Unfit: it would be none, or two."""
    before, _, after = (template or "{}").partition("{}")
    made = before.encode("ascii") + value + after.encode("ascii")
    if not _VALUE.match(made):
        raise Unfit("the value of a field holds no control characters, and no spaces at its ends")
    return made


def basic(username: bytes, password: bytes) -> bytes:
    """The value of an Authorization field (RFC 7617)."""
    if b":" in username:
        raise Unfit("a user's name holds no colon")
    return b"Basic " + base64.b64encode(username + b":" + password)


def parameter(query: str | None, name: str, value: bytes) -> str:
    """A query with one more parameter, the last."""
    said = f"{name}={quote_from_bytes(value, safe='')}"
    return f"{query}&{said}" if query else said


def unescaped(text: str) -> str:
    """A query's text with its escapes undone, once; what is no escape stays."""
    head, *parts = text.split("%")
    for part in parts:
        try:
            head += bytes.fromhex(part[:2]).decode("latin-1") + part[2:]
        except ValueError:
            head += "%" + part
    return head


def _key(part: str) -> str:
    return part.partition("=")[0].partition("[")[0].strip(" +").lower().replace("_", "-")
