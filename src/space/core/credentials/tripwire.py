"""A secret looked for in bytes that pass, in every form in which a server may echo it; found, it is overwritten. A tripwire, not a wall.

    wire = Tripwire(needles(secret));  out = wire.receive(data);  out += wire.end()        wire.echoes: how often

Forms: as it is, with any of its bytes escaped for URLs or JSON, base64 (both alphabets, wherever it lies within what was encoded), hex.
What is overwritten keeps its length, for a length may have been told already. Nothing is held back but what may be the beginning of one.

Each form has an *anchor*, a run of bytes that stands in all of its spellings (decimal digits alone, in hex, are the same in both cases),
so that bytes without an echo cost one search a form, which skips most of them. Only around an anchor is a form read byte by byte.
"""

from __future__ import annotations

import base64
import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHORTEST = 6  # bytes of a secret: what is shorter stands in everything
_ANCHOR = 48  # longer ones skip no more
_LEAST = 4
# Nobody escapes these; of the others some escape more than they must.
_NEVER_ESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_JSON = {0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r", 0x22: b'\\"', 0x2F: b"\\/", 0x5C: b"\\\\"}
_FILL = b"*"
_LARGE = 16_384  # from where on the C library's search, three times as quick and half a microsecond to call, is worth calling
_MEMMEM = getattr(ctypes.PyDLL(None), "memmem", None)
if _MEMMEM is not None:
    _MEMMEM.restype, _MEMMEM.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)

Unit = tuple[bytes, ...]  # the spellings of one part of a form


@dataclass(frozen=True, slots=True)
class Form:
    """units: its parts in order, each in all of its spellings. anchors: one of them stands in each spelling of the whole.

    needs: a byte without which there is none, or empty. longest: bytes of a spelling, at most. firsts: each begins with one of these bytes;
    begins: and with what this matches.
    """

    units: tuple[Unit, ...]
    anchors: tuple[bytes, ...]
    needs: bytes
    longest: int
    begins: re.Pattern[bytes]
    firsts: tuple[bytes, ...]

    def length_at(self, data: bytes, at: int) -> int | None:
        """Bytes of one that begins there; None: there is none; -1: what is there may go on as one."""
        first, cut, ends = at, False, [at]
        for unit in self.units:
            after = []
            for at in ends:
                found = [at + len(spelling) for spelling in unit if data.startswith(spelling, at)]
                after += [end for end in found if end not in after]
                if len(data) - at < 6 and not cut:  # the longest spelling of one byte
                    rest = data[at:]
                    cut = any(len(rest) < len(spelling) and spelling.startswith(rest) for spelling in unit)
            if not after:
                return -1 if cut else None
            ends = after
        return max(ends) - first


def needles(secret: bytes) -> tuple[Form, ...]:
    """The forms of one secret. None when it is too short to be told from what is none."""
    if len(secret) < SHORTEST:
        return ()
    return (*_texts(secret), *_hex(secret), *_base64s(secret))


class Tripwire:
    """One stream of bytes: a body, or a head. echoes: how many were overwritten."""

    __slots__ = ("_carry", "echoes", "forms")

    def __init__(self, forms: tuple[Form, ...]) -> None:
        self.forms = forms
        self._carry = b""
        self.echoes = 0

    def receive(self, data: bytes, *, ended: bool = False) -> bytes:
        """What may go on: all but what may be the beginning of an echo. ended: nothing follows."""
        if self._carry:
            data, self._carry = self._carry + data, b""
        data = self._overwritten(data)
        if ended or not data:
            return data
        held = self._beginning(data)
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

    def _overwritten(self, data: bytes) -> bytes:
        changed: bytearray | None = None
        for form in self.forms:
            if form.needs and form.needs not in data:
                continue
            for anchor in form.anchors:
                at = _find(data, anchor)
                while at >= 0:
                    found = _around(form, data, at + len(anchor))
                    if found is not None:
                        changed = bytearray(data) if changed is None else changed
                        changed[found[0] : found[1]] = _FILL * (found[1] - found[0])
                        self.echoes += 1
                    at = data.find(anchor, at + 1 if found is None else max(at + 1, found[1]))
        return data if changed is None else bytes(changed)

    def _beginning(self, data: bytes) -> int:
        """Where the first thing begins that may go on as an echo; the end where there is none."""
        first = len(data)
        for form in self.forms:
            if form.needs:  # another one has the same units
                continue
            start = max(0, len(data) - form.longest + 1)
            for byte in form.firsts:  # a search for a byte costs nothing beside a pattern's
                at = data.find(byte, start, first)
                while at >= 0:
                    if form.begins.match(data, at) is not None and form.length_at(data, at) == -1:
                        first = at
                        break
                    at = data.find(byte, at + 1, first)
        return first


def overwritten(forms: tuple[Form, ...], data: bytes) -> tuple[bytes, int]:
    """A whole piece without its echoes, and how many there were."""
    wire = Tripwire(forms)
    return wire.receive(data, ended=True), wire.echoes


def _around(form: Form, data: bytes, end: int) -> tuple[int, int] | None:
    """One whose anchor ends there."""
    for at in range(max(0, end - form.longest), end):
        length = form.length_at(data, at)
        if length is not None and length >= 0 and at + length >= end:
            return at, at + length
    return None


# -- forms ---------------------------------------------------------------------------------------------------------------


def _texts(secret: bytes) -> list[Form]:
    """Itself with any of its bytes escaped: three forms by what is looked for, an anchor of bytes that nobody escapes, or of escapes.

    Where it has no such run, as no key of a service has, all spellings of its first byte are the anchor, which takes its time.
    """
    units = [_spellings(byte) for byte in secret]
    plain = _longest([bytes((byte,)) if byte in _NEVER_ESCAPED else b"" for byte in secret])
    if len(plain) < 2:
        return [_form(units, units[0], b"")]
    found = [_form(units, [plain], b"")]
    for mark, width in ((b"%", 2), (b"\\u", 4)):
        each = [mark + b"%0*x" % (width, byte) for byte in secret]
        digits = _longest([b"" if re.search(rb"[a-f]", one[len(mark) :]) else one for one in each])
        anchors = [digits] if digits else [spelling for spelling in units[0] if spelling.startswith(mark)]
        found.append(_form(units, anchors, mark[:1]))
    return found


def _hex(secret: bytes) -> list[Form]:
    units = [tuple({b"%02x" % byte, b"%02X" % byte, (b"%02x" % byte)[:1] + (b"%02X" % byte)[1:]}) for byte in secret]
    digits = _longest([b"" if re.search(rb"[a-f]", b"%02x" % byte) else b"%02x" % byte for byte in secret])
    return [_form(units, [digits] if len(digits) >= 2 * _LEAST else units[0], b"")]


def _base64s(secret: bytes) -> list[Form]:
    """Behind none, one and two bytes of something else; what is mixed with its neighbours at either end is left out."""
    found = []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret)[-(-8 * before // 6) : 8 * (before + len(secret)) // 6]
        units = [(b"+", b"-") if one in b"+" else (b"/", b"_") if one in b"/" else (bytes((one,)),) for one in text]
        run = _longest([b"" if len(unit) > 1 else unit[0] for unit in units])
        found.append(_form(units, [run] if len(run) >= _LEAST else units[0], b""))
    return found


def _spellings(byte: int) -> Unit:
    """A byte, or what stands for it in a URL or in JSON."""
    plain, low = bytes((byte,)), b"%02x" % byte
    cases = {low, low.upper(), low[:1] + low[1:].upper(), low[:1].upper() + low[1:]}
    more = [_JSON[byte]] if byte in _JSON else []
    if byte == 0x20:
        more.append(b"+")
    return (*[b"%" + case for case in cases], *[b"\\u00" + case for case in cases], *more, plain)


def _form(units: Sequence[Unit], anchors: Iterable[bytes], needs: bytes) -> Form:
    longest = sum(max(map(len, unit)) for unit in units)
    firsts = tuple(sorted({spelling[:1] for spelling in units[0]}))
    return Form(tuple(units), tuple(anchor[:_ANCHOR] for anchor in dict.fromkeys(anchors)), needs, longest, _begins(units), firsts)


def _begins(units: Sequence[Unit]) -> re.Pattern[bytes]:
    """What three units match, or where too little is left to tell."""
    first, *more = [b"(?:%s)" % b"|".join(map(re.escape, unit)) for unit in units[:3]]
    starts = b"[%s]" % b"".join({re.escape(spelling[:1]) for spelling in units[0]})
    return re.compile(b"%s%s|%s(?=.{0,17}\\Z)" % (first, b"".join(more), starts), re.DOTALL)


def _longest(parts: Sequence[bytes]) -> bytes:
    """The longest run of parts without an empty one."""
    best = run = b""
    for part in parts:
        run = run + part if part else b""
        if len(run) > len(best):
            best = run
    return best


def _find(data: bytes, needle: bytes) -> int:
    if _MEMMEM is not None and len(data) >= _LARGE and _MEMMEM(data, len(data), needle, len(needle)) is None:
        return -1
    return data.find(needle)
