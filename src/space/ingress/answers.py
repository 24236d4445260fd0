"""What the ingress itself answers: JSON whose words the SDKs look for, or a page where a browser navigates."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass

from space.core.wire.http1 import Framing, RequestHead, write_response
from space.ingress.routing import ToPort
from space.rpc.ingress_api import Refused

_PHRASES = {400: b"Bad Request", 403: b"Forbidden", 408: b"Request Timeout", 413: b"Content Too Large", 417: b"Expectation Failed",
            429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 501: b"Not Implemented", 502: b"Bad Gateway",
            503: b"Service Unavailable", 504: b"Gateway Timeout", 505: b"HTTP Version Not Supported"}  # fmt: skip
# SDKs read these two from the message: a sandbox that is not there, and one without a server at that port.
NOT_FOUND = "The sandbox was not found"
CLOSED = "The sandbox is running but port is not open"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status with what is said. known: more keys of the JSON."""

    status: int
    message: str
    known: tuple[tuple[str, object], ...] = ()

    def write(self, head: RequestHead | None, *, close: bool) -> bytes:
        """The whole response to that request, or to none that could be read."""
        page = head is not None and _is_navigation(head)
        body = self._page() if page else self._json()
        kind = b"text/html; charset=utf-8" if page else b"application/json"
        fields = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
        if page:
            fields.append((b"content-security-policy", b"default-src 'none'"))
        if self.status in (429, 503):
            fields.append((b"retry-after", b"1"))
        told = write_response(self.status, _PHRASES.get(self.status, b"Error"), fields, Framing("length", len(body)), close=close)
        return told if head is not None and head.method == b"HEAD" else told + body

    def _json(self) -> bytes:
        return json.dumps({**dict(self.known), "message": self.message, "code": self.status}).encode()

    def _page(self) -> bytes:
        words = html.escape(self.message)
        return f"<!doctype html><meta charset=utf-8><title>{self.status}</title><h1>{self.status}</h1><p>{words}</p>\n".encode()


def refused(target: ToPort, said: Refused) -> Answer:
    """What control's refusal is to the client."""
    sandbox = ("sandboxId", target.sandbox)
    match said.reason:
        case "not_found":
            return Answer(502, NOT_FOUND, (sandbox,))
        case "closed":
            return Answer(502, CLOSED, (sandbox, ("port", target.port)))
        case "token":
            return Answer(403, said.message or "the traffic access token is missing or wrong", (sandbox,))
        case "hidden":
            return Answer(403, said.message or "the port is not exposed", (sandbox, ("port", target.port)))
        case "busy":
            return Answer(429, said.message or "too many connections to this sandbox", (sandbox,))
        case _:
            return Answer(502, said.message or "the sandbox could not be reached", (sandbox,))


def broken(target: ToPort | None, message: str, status: int = 502) -> Answer:
    """A server in a sandbox that answers what is no HTTP, or nothing."""
    known = () if target is None else (("sandboxId", target.sandbox), ("port", target.port))
    return Answer(status, message, known)


def _is_navigation(head: RequestHead) -> bool:
    """Whether a browser shows the answer to a person."""
    modes = [value for name, value in head.fields if name == b"sec-fetch-mode"]
    return modes == [b"navigate"] and any(name == b"accept" and b"text/html" in value for name, value in head.fields)
