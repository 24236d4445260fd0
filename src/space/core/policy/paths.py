"""A request's path in the one form in which it is judged and sent on, and what a rule says of paths.

Servers disagree on what some spellings mean. A spelling that somebody reads as another path is either refused, or judged in every
reading: a verdict that allows it must allow them all, so a disagreement can only narrow.

    normalise(b"/a/%7Eb/../c%2Fd?x=1") -> Path("/a/c%2Fd", query="x=1", readings=("/a/c%2Fd", "/a/c/d"))
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import msgspec

MOST_TARGET = 16_384
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# RFC 3986 pchar and the slash, and what browsers and tools send unencoded besides; no backslash, no quotes, no control characters.
_PATH = re.compile(rb"/[A-Za-z0-9\-._~!$&'()*+,;=:@/%|\[\]^{}]*\Z")
_QUERY = re.compile(rb"[\x21-\x7e]*\Z")
_ESCAPE = re.compile(rb"%(..?)?", re.DOTALL)
_HEX = re.compile(rb"[0-9A-Fa-f]{2}\Z")
# Twice encoded, they become something else for who decodes twice.
_TWICE = re.compile(r"%25(?:2[ef]|5c|[01][0-9a-f]|7f|25)", re.IGNORECASE)
# ASCII in more bytes than it takes: no UTF-8, and a slash or a dot for decoders that do not mind.
_OVERLONG = re.compile(r"%C[01]%[89AB][0-9A-F]|%E0%[89][0-9A-F]|%F0%8[0-9A-F]")
# What some servers take for a parameter of a segment, before or after they decode, and drop.
_PARAMETER = re.compile(r";|%3B")

Fault = Literal["form", "too_long", "character", "escape", "control", "backslash", "twice", "overlong", "dots"]


class PathRefused(ValueError):
    """A target with no one meaning. fault: a stable word."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


class Path(msgspec.Struct, frozen=True, gc=False):
    """text: the normal form, to be sent. query: None when there is no question mark. readings: every path that a server may take it for."""

    text: str
    query: str | None
    readings: tuple[str, ...]

    @property
    def target(self) -> str:
        """As it stands in a request line."""
        return self.text if self.query is None else f"{self.text}?{self.query}"


def normalise(target: bytes) -> Path:
    """The path of a target in origin-form. PathRefused."""
    if len(target) > MOST_TARGET:
        raise PathRefused("too_long", f"a target of {len(target)} bytes, at most {MOST_TARGET} are possible")
    raw, mark, query = target.partition(b"?")
    if not raw.startswith(b"/"):
        raise PathRefused("form", "the target does not begin with a slash")
    if not _PATH.match(raw):
        raise PathRefused("backslash" if b"\\" in raw else "character", "the path holds a character that must be encoded")
    if not _QUERY.match(query):
        raise PathRefused("character", "the query holds a character that must be encoded")
    plain = raw if b"%" not in raw else _ESCAPE.sub(_escape, raw)
    text = plain.decode("ascii")
    if b"%" in plain and _TWICE.search(text):
        raise PathRefused("twice", "the path holds something that is encoded twice")
    if b"%" in plain and _OVERLONG.search(text):
        raise PathRefused("overlong", "the path holds a character in more bytes than it takes")
    if "/." in text:
        text = _without_dots(text)
    return Path(text, query.decode("ascii") if mark else None, _readings(text))


def _escape(found: re.Match[bytes]) -> bytes:
    digits = found[1] or b""
    if not _HEX.match(digits):
        raise PathRefused("escape", "the path holds a percent sign without two hexadecimal digits")
    value = int(digits, 16)
    if value < 0x20 or value == 0x7F:
        raise PathRefused("control", "the path holds an encoded control character")
    if value == 0x5C:
        raise PathRefused("backslash", "the path holds an encoded backslash")
    return bytes([value]) if value in _UNRESERVED else b"%" + digits.upper()


def _without_dots(text: str) -> str:
    """RFC 3986, 5.2.4. Above the root, or with a parameter behind the dots (some servers drop it and go up): refused."""
    kept: list[str] = []
    segments = text.split("/")[1:]
    for at, segment in enumerate(segments):
        last = at == len(segments) - 1
        bare = _PARAMETER.split(segment, 1)[0]
        if bare in (".", "..") and bare != segment:
            raise PathRefused("dots", "the path holds dots with a parameter")
        if segment == ".":
            if last:
                kept.append("")
        elif segment == "..":
            if not kept:
                raise PathRefused("dots", "the path leads above its root")
            kept.pop()
            if last:
                kept.append("")
        else:
            kept.append(segment)
    return "/" + "/".join(kept)


def _readings(text: str) -> tuple[str, ...]:
    found = [text]
    if "%2F" in text:
        decoded = text.replace("%2F", "/")
        if any(_PARAMETER.split(segment, 1)[0] in (".", "..") for segment in decoded.split("/")):
            raise PathRefused("dots", "the path holds dots beside an encoded slash")
        found.append(decoded)
    found += [single for one in list(found) if "//" in one and (single := re.sub("/{2,}", "/", one)) not in found]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PathPattern:
    """What a rule says of paths: segments, each literal or with one `*` in it, and perhaps everything below.

    `/simple/*/` is every path of two segments that begins so; `/simple/**` is `/simple/` and everything below it, and `/**` everything.
    Matching takes time linear in the path: there is nothing to go back to.
    """

    segments: tuple[str, ...]
    below: bool
    _literal: str | None = field(init=False, repr=False, compare=False)  # without a `*`: the path, or what every path begins with

    def __post_init__(self) -> None:
        literal = "".join([f"/{segment}" for segment in self.segments])
        object.__setattr__(self, "_literal", None if "*" in literal else literal + ("/" if self.below else ""))

    @classmethod
    def parse(cls, text: str) -> PathPattern:
        """From a policy. ValueError with the reason."""
        if not text.startswith("/"):
            raise ValueError("a path pattern begins with a slash")
        below = text.endswith("/**")
        rest = text[: -len("/**")] if below else text
        if "**" in rest:
            raise ValueError("`**` stands only at the end, behind a slash, and means everything below")
        if "?" in text:
            raise ValueError("a path pattern says nothing of the query")
        segments = tuple(rest.split("/")[1:])
        if any(segment.count("*") > 1 for segment in segments):
            raise ValueError("a segment has at most one `*`")
        literal = "/" + "/".join(segments)
        try:
            normal = normalise(literal.replace("*", "-").encode("ascii", "strict"))
        except UnicodeEncodeError:
            raise ValueError("a path pattern is ASCII: write other characters percent-encoded") from None
        if normal.text != literal.replace("*", "-"):
            raise ValueError(f"write the path in its normal form, {normal.text}")
        return cls(segments, below)

    def __str__(self) -> str:
        return "/" + "/".join((*self.segments, "**") if self.below else self.segments)

    def matches(self, path: str) -> bool:
        """Whether it says so of a path (one reading, without query)."""
        if self._literal is not None:
            return path.startswith(self._literal) if self.below else path == self._literal
        segments = path.split("/")[1:]
        if len(segments) < len(self.segments) + self.below or (not self.below and len(segments) > len(self.segments)):
            return False
        return all(_segment(pattern, segment) for pattern, segment in zip(self.segments, segments, strict=False))


def _segment(pattern: str, segment: str) -> bool:
    head, star, tail = pattern.partition("*")
    if not star:
        return pattern == segment
    return len(segment) >= len(head) + len(tail) and segment.startswith(head) and segment.endswith(tail)
