"""A secret looked for in bytes that pass, in every form in which a server may echo it; found, it is overwritten. A tripwire, not a wall.

    wire = Tripwire(needles(secret));  out = wire.receive(data);  out += wire.end()        wire.echoes: how often

Forms: as it is, with any of its bytes escaped for URLs or JSON, base64 (both alphabets, wherever it lies within what was encoded), hex.
What is overwritten keeps its length, for a length may have been told already. Nothing is held back but what may be the beginning of one.

Each form has *anchors*, one of which stands in every spelling of it. Bytes without an echo cost one search for all anchors of all forms
at once (ADR 13). Only around an anchor is a form read byte by byte, in both directions.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ahocorasick_rs import BytesAhoCorasick, MatchKind

SHORTEST = 6  # bytes of a secret: what is shorter stands in everything
_LEAST, _MOST = 4, 16  # bytes of an anchor: shorter ones stand in everything, and what of a longer one is escaped hides more
_SPELLINGS = 16  # of one anchor
_TOGETHER = 24  # anchors of one search: with more it finds more that is none, and beyond 64 it is another one, of a tenth of the speed
# Nobody escapes these; of the others some escape more than they must.
_NEVER_ESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_JSON = {0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r", 0x22: b'\\"', 0x2F: b"\\/", 0x5C: b"\\\\"}
_FILL = b"*"

Unit = tuple[bytes, ...]  # the spellings of one part of a form


@dataclass(frozen=True, slots=True)
class Anchor:
    """text: what stands in the data. first, last: the units of which it is; its first `skipped` bytes are left out of `text`."""

    text: bytes
    first: int
    last: int
    skipped: bytes = b""


@dataclass(frozen=True, slots=True)
class Form:
    """units: its parts in order, each in all of its spellings. anchors: one of them stands in each spelling of the whole.

    longest: bytes of a spelling, at most.
    """

    units: tuple[Unit, ...]
    anchors: tuple[Anchor, ...]
    longest: int

    def may_go_on(self, data: bytes, at: int) -> bool:
        """Whether what is there from `at` to the end is the beginning of one."""
        ends = {at}
        for unit in self.units:
            for end in ends:
                rest = data[end : end + 6]  # the longest spelling of one byte
                if end + len(rest) == len(data) and any(len(rest) < len(one) and one.startswith(rest) for one in unit):
                    return True
            ends = {end + len(one) for end in ends for one in unit if data.startswith(one, end)}
            if not ends:
                return False
        return False

    def around(self, data: bytes, anchor: Anchor, at: int) -> tuple[int, int] | None:
        """One whose anchor is there."""
        first = at - len(anchor.skipped)
        if first < 0 or not data.startswith(anchor.skipped, first):
            return None
        starts, ends = {first}, {at + len(anchor.text)}
        for unit in reversed(self.units[: anchor.first]):
            starts = {at - len(one) for at in starts for one in unit if at >= len(one) and data.startswith(one, at - len(one))}
            if not starts:
                return None
        for unit in self.units[anchor.last :]:
            ends = {at + len(one) for at in ends for one in unit if data.startswith(one, at)}
            if not ends:
                return None
        return min(starts), max(ends)


class Needles:
    """All that one stream is searched for. Made once, which takes some time, used for many streams."""

    __slots__ = ("_begins", "_pairs", "_quick", "_short", "forms", "longest")

    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = tuple(forms)
        self.longest = max([form.longest for form in forms], default=0)
        # An anchor of a few bytes is found in everything: those are looked for one by one.
        self._short = tuple(form for form in forms if min(len(anchor.text) for anchor in form.anchors) < _LEAST)
        texts = [anchor.text for form in forms if form not in self._short for anchor in form.anchors]
        texts = list(dict.fromkeys(texts))
        # Leftmost matches are what the vector instructions of the library can find; which of them it finds does not matter here.
        self._quick = tuple(
            BytesAhoCorasick(texts[at : at + _TOGETHER], matchkind=MatchKind.LeftmostFirst) for at in range(0, len(texts), _TOGETHER)
        )
        self._pairs = frozenset(pair for form in forms for pair in _pairs(form.units))
        starts = dict.fromkeys(start for form in forms for start in _begins(form.units))
        self._begins = re.compile(b"|".join(starts), re.DOTALL)

    def __bool__(self) -> bool:
        return bool(self.forms)

    def found(self, data: bytes) -> list[tuple[int, int]]:
        """Where there are echoes."""
        found = []
        for form in self.forms if any(one.find_matches_as_indexes(data) for one in self._quick) else self._short:
            for anchor in form.anchors:
                at = data.find(anchor.text)
                while at >= 0:
                    span = form.around(data, anchor, at)
                    if span is not None:
                        found.append(span)
                    at = data.find(anchor.text, at + 1 if span is None else max(at + 1, span[1]))
        return found

    def beginning(self, data: bytes) -> int:
        """Where the first thing begins that may go on as an echo; the end where there is none."""
        if data[-1:] in self._pairs or data[-2:] in self._pairs:
            for found in self._begins.finditer(data, max(0, len(data) - self.longest + 1)):
                at = found.start()
                if any(form.may_go_on(data, at) for form in self.forms):
                    return at
        return len(data)


NOTHING = Needles(())


def needles(*secrets: bytes) -> Needles:
    """The forms of these secrets. None of one that is too short to be told from what is none."""
    return Needles([form for secret in secrets if len(secret) >= SHORTEST for form in (_text(secret), _hex(secret), *_base64s(secret))])


class Tripwire:
    """One stream of bytes: a body, or a head. echoes: how many were overwritten."""

    __slots__ = ("_carry", "echoes", "needles")

    def __init__(self, needles: Needles) -> None:
        self.needles = needles
        self._carry = b""
        self.echoes = 0

    def receive(self, data: bytes, *, ended: bool = False) -> bytes:
        """What may go on: all but what may be the beginning of an echo. ended: nothing follows."""
        if self._carry:
            data, self._carry = self._carry + data, b""
        if found := self.needles.found(data):
            data = self._overwritten(data, found)
        if ended or not data:
            return data
        held = self.needles.beginning(data)
        if held == len(data):
            return data
        self._carry = data[held:]
        return data[:held]

    def end(self) -> bytes:
        """What is still held: it was none."""
        rest, self._carry = self._carry, b""
        return rest

    @property
    def held(self) -> int:
        """Bytes that wait for what follows."""
        return len(self._carry)

    def _overwritten(self, data: bytes, found: list[tuple[int, int]]) -> bytes:
        changed, over = bytearray(data), 0
        for start, end in sorted(found):
            if start >= over:  # the same one may be found by several anchors
                self.echoes += 1
            changed[start:end] = _FILL * (end - start)
            over = max(over, end)
        return bytes(changed)


def overwritten(needles: Needles, data: bytes) -> tuple[bytes, int]:
    """A whole piece without its echoes, and how many there were."""
    wire = Tripwire(needles)
    return wire.receive(data, ended=True), wire.echoes


# -- forms ---------------------------------------------------------------------------------------------------------------


def _text(secret: bytes) -> Form:
    """Itself with any of its bytes escaped: it has an anchor of bytes that nobody escapes, or of escapes alone.

    Where it has no such run, as no key of a service has, all spellings of its first byte are the anchors, which takes its time.
    """
    units = [_spellings(byte) for byte in secret]
    plain = [(bytes((byte,)),) if byte in _NEVER_ESCAPED else () for byte in secret]
    anchors = _anchors(plain)
    if not anchors or len(anchors[0].text) < 2:
        return _form(units, [Anchor(one, 0, 1) for one in units[0]])
    for mark in (b"%", b"\\u00"):
        # What stands in front of each byte is no part of what is looked for: it stands in front of all.
        anchors += _anchors([tuple(mark + case for case in _cases(byte)) for byte in secret], mark)
    return _form(units, anchors)


def _hex(secret: bytes) -> Form:
    units = [_cases(byte) for byte in secret]
    return _form(units, _anchors(units))


def _base64s(secret: bytes) -> list[Form]:
    """Behind none, one and two bytes of something else; what is mixed with its neighbours at either end is left out."""
    found = []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret)[-(-8 * before // 6) : 8 * (before + len(secret)) // 6]
        units = [(b"+", b"-") if one in b"+" else (b"/", b"_") if one in b"/" else (bytes((one,)),) for one in text]
        found.append(_form(units, _anchors(units)))
    return found


def _spellings(byte: int) -> Unit:
    """A byte, or what stands for it in a URL or in JSON."""
    cases = _cases(byte)
    more = [_JSON[byte]] if byte in _JSON else []
    if byte == 0x20:
        more.append(b"+")
    return (*[b"%" + case for case in cases], *[b"\\u00" + case for case in cases], *more, bytes((byte,)))


def _cases(byte: int) -> Unit:
    """Its two hexadecimal digits, each in both cases."""
    low = b"%02x" % byte
    return tuple(sorted({low, low.upper(), low[:1] + low[1:].upper(), low[:1].upper() + low[1:]}))


def _form(units: Sequence[Unit], anchors: Sequence[Anchor]) -> Form:
    return Form(tuple(units), tuple(anchors), sum(max(map(len, unit)) for unit in units))


def _anchors(units: Sequence[Unit], skipped: bytes = b"") -> list[Anchor]:
    """All spellings of one run of units, none of which is empty: of few spellings, of enough bytes, and the last such.

    What begins as all keys of a service do is public, and may stand in replies without end; how one ends is not.
    """
    best, its = (0, 0), (0, 0)
    sizes = [(len(unit), min(map(len, unit), default=0)) for unit in units]
    for first in reversed(range(len(units))):
        count, size = 1, -len(skipped)
        for last in range(first, len(units)):
            count, size = count * sizes[last][0], size + sizes[last][1]
            if not 0 < count <= _SPELLINGS:
                break
            worth = (-count, min(size, _MOST)) if size >= _LEAST else (-_SPELLINGS - 1, size)
            if not its[1] or worth > best:
                best, its = worth, (first, last + 1)
            if size >= _MOST:
                break
        if best == (-1, _MOST):
            break
    first, last = its
    return [Anchor(b"".join(one)[len(skipped) :], first, last, skipped) for one in product(*units[first:last])] if last else []


def _begins(units: Sequence[Unit]) -> list[bytes]:
    """What three units match, or where too little is left to tell: patterns that say their first byte, so that `re` skips others."""
    more = b"".join([b"(?:%s)" % b"|".join(map(re.escape, unit)) for unit in units[1:3]])
    few = {re.escape(spelling[:1]) + rb"(?=.{0,17}\Z)" for spelling in units[0]}
    return [*[re.escape(spelling) + more for spelling in units[0]], *sorted(few)]


def _pairs(units: Sequence[Unit]) -> set[bytes]:
    """All that two bytes within one can be, and what its first byte can: nothing else is at the end of a beginning."""
    found, ends = {spelling[:1] for spelling in units[0]}, set[bytes]()
    for unit in units:
        found |= {end + spelling[:1] for end in ends for spelling in unit}
        found |= {spelling[at : at + 2] for spelling in unit for at in range(len(spelling) - 1)}
        ends = {spelling[-1:] for spelling in unit}
    return found
