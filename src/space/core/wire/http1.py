"""HTTP/1.1 heads, strictly: one reading or none (RFC 9110, 9112). Bytes in, values out; heads are written anew and never passed on.

Two parsers that read one head differently are how requests are smuggled past a gateway, so nothing here is repaired: what RFC 9112
lets a recipient accept for the sake of old senders (bare LF, folding, spaces before the colon, two lengths that agree) is refused.

    HeadReader(RequestHead.parse).receive(data) -> head | None          BadHead: answer its status and close
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

MOST_HEAD = 65_536
MOST_FIELDS = 128
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/(\d\.\d)\Z")
_STATUS = re.compile(rb"HTTP/(1\.[01]) ([1-5]\d\d)(?: ([\t\x20-\x7e\x80-\xff]*))?\Z")
# Both are linear: no class can match what the next one begins with.
_FIELD = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)\r\n")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*\Z")
_DIGITS = re.compile(rb"\d{1,18}\Z")
_TOKENS = re.compile(rb"[ \t]*(?:" + _TOKEN + rb"[ \t]*(?:,[ \t]*" + _TOKEN + rb"[ \t]*)*)?\Z")

# Of one connection only (RFC 9110, 7.6.1), and what no origin has any use for.
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
    | {b"proxy-authenticate", b"proxy-authorization", b"proxy-authentication-info", b"http2-settings"}
)
# Naming one of these in Connection would take it away from who judges by it.
_NOT_HOP = frozenset({b"host", b"content-length", b"authorization", b"cookie", b"content-type", b"expect", b"date", b"cache-control"})
_WRITTEN_ANEW, _LENGTH = frozenset({b"host", b"content-length", b"expect"}), frozenset({b"content-length"})

Field = tuple[bytes, bytes]


class BadHead(ValueError):
    """Not a head that has one reading. reason: a stable word; status: what to answer a client with."""

    def __init__(self, reason: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body is delimited. length: bytes, None for chunked or until the connection ends."""

    kind: Literal["none", "length", "chunked", "close"]
    length: int | None = None


NO_BODY = Framing("none", 0)
CHUNKED = Framing("chunked")
UNTIL_CLOSE = Framing("close")


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """A request's head. fields: names in lower case, values trimmed, in order, Host among them. options: what Connection lists."""

    method: bytes
    target: bytes
    host: bytes
    fields: tuple[Field, ...]
    framing: Framing
    options: frozenset[bytes]
    expects_continue: bool
    upgrade: bytes | None

    @classmethod
    def parse(cls, head: bytes) -> RequestHead:
        """From a whole head, its empty line included. BadHead."""
        line, _, rest = head.partition(b"\r\n")
        block = rest[:-2]
        found = _REQUEST.match(line)
        if found is None:
            raise BadHead("request_line", "the request line is not `METHOD target HTTP/1.1`")
        method, target, version = found.groups()
        if version != b"1.1":
            raise BadHead("version", f"HTTP/{version.decode()} is not spoken here", 505)
        if len(method) > 32:
            raise BadHead("method", "a method of more than 32 characters", 501)
        said = _known_request_block(block) if len(block) <= _MOST_KNOWN else _request_block(block)
        host, fields, framing, options, expects, upgrade = said
        return cls(method, target, host, fields, framing, options, expects, upgrade)

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow."""
        return b"close" not in self.options

    def end_to_end(self) -> tuple[Field, ...]:
        """The fields that are for the origin, without Host and length: those are written anew."""
        return request_end_to_end(self.fields, self.options)


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """A response's head. interim: a 1xx, another head follows."""

    status: int
    reason: bytes
    fields: tuple[Field, ...]
    framing: Framing
    options: frozenset[bytes]
    keep_alive: bool

    @classmethod
    @lru_cache(16)
    def parse_for(cls, method: bytes) -> Callable[[bytes], ResponseHead]:
        """A parser of the response to a request with that method."""

        def parse(head: bytes) -> ResponseHead:
            line, _, rest = head.partition(b"\r\n")
            block = rest[:-2]
            found = _STATUS.match(line)
            if found is None:
                raise BadHead("status_line", "the status line is not `HTTP/1.1 status reason`", 502)
            version, status = found[1], int(found[2])
            fields, options, length, chunked = _known_response_block(block) if len(block) <= _MOST_KNOWN else _response_block(block)
            framing = _response_framing(length, status, method, chunked=chunked, old=version == b"1.0")
            lasting = b"keep-alive" in options if version == b"1.0" else b"close" not in options
            return cls(status, found[3] or b"", fields, framing, options, lasting and framing.kind != "close")

        return parse

    @property
    def interim(self) -> bool:
        return self.status < 200

    def end_to_end(self) -> tuple[Field, ...]:
        """The fields that are for the client, without length."""
        return response_end_to_end(self.fields, self.options)


class _Head(Protocol):
    pass


H = TypeVar("H", bound=_Head)


class HeadReader(Generic[H]):
    """Collects bytes until a head is whole. Afterwards `rest` is what came behind it."""

    def __init__(self, parse: Callable[[bytes], H], most: int = MOST_HEAD) -> None:
        self._parse = parse
        self._most = most
        self._buffer = bytearray()
        self._seen = 0
        self.rest = b""

    @property
    def begun(self) -> bool:
        """Whether a part of a head is there."""
        return bool(self._buffer)

    def receive(self, data: bytes) -> H | None:
        """The head once it is whole. BadHead: it has none or two readings, or is too long."""
        buffer = self._buffer
        if not buffer and (end := data.find(b"\r\n\r\n")) >= 0 and end + 4 <= self._most:  # whole in one piece, as most are
            self.rest = data[end + 4 :]
            return self._parse(data[: end + 4])
        buffer += data
        end = buffer.find(b"\r\n\r\n", max(0, self._seen - 3))
        if end < 0:
            self._seen = len(buffer)
            if len(buffer) > self._most:
                raise BadHead("too_large", f"a head of more than {self._most} bytes", 431)
            # A line feed of its own never comes right: who waits for more waits for nothing.
            if b"\n" in data and re.search(rb"(?<!\r)\n", buffer):
                raise BadHead("line_end", "a line feed without carriage return")
            return None
        if end + 4 > self._most:
            raise BadHead("too_large", f"a head of more than {self._most} bytes", 431)
        self.rest = bytes(buffer[end + 4 :])
        head = bytes(buffer[: end + 4])
        buffer.clear()
        self._seen = 0
        return self._parse(head)


def write_request(method: bytes, target: bytes, host: bytes, fields: Iterable[Field] | bytes, framing: Framing) -> bytes:
    """A request's head, with the length or coding that `framing` says. fields: or what they are `written` as."""
    told = fields if isinstance(fields, bytes) else written(fields)
    return b"%s %s HTTP/1.1\r\nhost: %s\r\n%s%s\r\n" % (method, target, host, told, _framed(framing))


def write_response(status: int, reason: bytes, fields: Iterable[Field] | bytes, framing: Framing, *, close: bool = False) -> bytes:
    """A response's head, likewise."""
    told = fields if isinstance(fields, bytes) else written(fields)
    return b"HTTP/1.1 %d %s\r\n%s%s%s\r\n" % (status, reason, told, _framed(framing), b"connection: close\r\n" if close else b"")


def written(fields: Iterable[Field]) -> bytes:
    """Fields as they stand in a head."""
    return b"".join([b"%s: %s\r\n" % field for field in fields])


def _framed(framing: Framing) -> bytes:
    if framing.kind == "length":
        return b"content-length: %d\r\n" % (framing.length or 0)
    return b"transfer-encoding: chunked\r\n" if framing.kind == "chunked" else b""


def _fields(block: bytes, status: int) -> tuple[Field, ...]:
    if not _FIELDS.match(block):
        raise BadHead("field", _why(block), status)
    found = _FIELD.findall(block)
    if len(found) > MOST_FIELDS:
        raise BadHead("too_many", f"more than {MOST_FIELDS} fields", 431 if status == 400 else status)
    return tuple([(name.lower(), value.strip(b" \t")) for name, value in found])


def _why(block: bytes) -> str:
    for line in block.split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            return "a field that goes on over two lines"
        if b"\n" in line or b"\r" in line:
            return "a line end that is not CR LF"
        if re.match(_TOKEN + rb"[ \t]+:", line):
            return "a space before a colon"
    return "a line that is no field"


def _all(fields: tuple[Field, ...], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name == wanted]


def _options(fields: tuple[Field, ...], status: int) -> frozenset[bytes]:
    options: set[bytes] = set()
    for value in _all(fields, b"connection"):
        if not _TOKENS.match(value):
            raise BadHead("connection", "a Connection field that is no list of tokens", status)
        options.update(part.strip(b" \t").lower() for part in value.split(b",") if part.strip(b" \t"))
    if options & _NOT_HOP:
        raise BadHead("connection", "Connection names a field that is not its own", status)
    return frozenset(options)


def _length(fields: tuple[Field, ...], status: int) -> int | None:
    lengths = _all(fields, b"content-length")
    if not lengths:
        return None
    if len(lengths) > 1:
        raise BadHead("content_length", "two Content-Length fields", status)
    if not _DIGITS.match(lengths[0]):
        raise BadHead("content_length", "a Content-Length that is no number", status)
    return int(lengths[0])


def _chunked(fields: tuple[Field, ...], status: int) -> bool:
    codings = _all(fields, b"transfer-encoding")
    if not codings:
        return False
    if [coding.lower() for coding in codings] != [b"chunked"]:
        raise BadHead("transfer_encoding", "a transfer coding that is not `chunked`", 501 if status == 400 else status)
    return True


def _request_framing(fields: tuple[Field, ...]) -> Framing:
    length, chunked = _length(fields, 400), _chunked(fields, 400)
    if chunked and length is not None:
        raise BadHead("both", "a length and a transfer coding")
    if chunked:
        return CHUNKED
    return NO_BODY if not length else Framing("length", length)


def _request_block(block: bytes) -> tuple[bytes, tuple[Field, ...], Framing, frozenset[bytes], bool, bytes | None]:
    """What the fields of a request say: host, fields, framing, options, whether it waits for 100, what it would upgrade to."""
    fields = _fields(block, 400)
    hosts = _all(fields, b"host")
    if len(hosts) != 1:
        raise BadHead("host", f"{len(hosts)} Host fields where one must be")
    expects = _all(fields, b"expect")
    if expects and [value.lower() for value in expects] != [b"100-continue"]:
        raise BadHead("expect", "an expectation that nobody can meet", 417)
    upgrades = _all(fields, b"upgrade")
    if len(upgrades) > 1:
        raise BadHead("upgrade", "two Upgrade fields")
    options = _options(fields, 400)
    upgrade = upgrades[0].lower() if upgrades and b"upgrade" in options else None
    return hosts[0], fields, _request_framing(fields), options, bool(expects), upgrade


def _response_block(block: bytes) -> tuple[tuple[Field, ...], frozenset[bytes], int | None, bool]:
    """What the fields of a response say: fields, options, length, whether it is chunked."""
    fields = _fields(block, 502)
    return fields, _options(fields, 502), _length(fields, 502), _chunked(fields, 502)


# A client says the same fields with every request of a connection, and a server many a time. What they say is a function of their bytes
# alone, so those that were read lately need not be read again; what is refused is read each time. Long ones are not kept.
_MOST_KNOWN = 2048
_known_request_block = lru_cache(64)(_request_block)
_known_response_block = lru_cache(64)(_response_block)


def _response_framing(length: int | None, status: int, method: bytes, *, chunked: bool, old: bool) -> Framing:
    if chunked and (length is not None or old):
        raise BadHead("both", "a transfer coding beside a length, or in HTTP/1.0", 502)
    if method == b"HEAD" or status < 200 or status in (204, 304):
        return NO_BODY
    if chunked:
        return CHUNKED
    return UNTIL_CLOSE if length is None else Framing("length", length)


def request_end_to_end(fields: tuple[Field, ...], options: frozenset[bytes]) -> tuple[Field, ...]:
    """`RequestHead.end_to_end`, of its fields and options."""
    return _end_to_end(fields, options, _WRITTEN_ANEW)


def response_end_to_end(fields: tuple[Field, ...], options: frozenset[bytes]) -> tuple[Field, ...]:
    """`ResponseHead.end_to_end`, likewise."""
    return _end_to_end(fields, options, _LENGTH)


@lru_cache(16)
def _end_to_end(fields: tuple[Field, ...], options: frozenset[bytes], besides: frozenset[bytes]) -> tuple[Field, ...]:
    gone = HOP_BY_HOP | options | besides
    return tuple([field for field in fields if field[0] not in gone])
