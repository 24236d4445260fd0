"""Exposed ports of the mock server's sandboxes: told as a server with a domain tells them; nothing listens there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from space.model.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from space.sdk.testing.sandbox import MockSandbox

DOMAIN = "sandboxes.example.com"
INGRESS = "https://127.0.0.1:7071"
CA = "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"
_ENVD = 49983


def answered(method: str, sandbox: MockSandbox, rest: list[str], asked: Callable[[], dict[str, Any]]) -> tuple[int, Any]:
    """Status and value of a route below `.../exposed`. asked: the request's object."""
    match method, rest:
        case "GET", []:
            return 200, {"ports": [_told(sandbox, port) for port in sorted(sandbox.exposed)]}
        case _, [text] if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
            raise InvalidArgument(f"port: {text[:16]!r} is none (1 to 65535)")
        case "PUT", [text]:
            if int(text) == _ENVD:
                raise InvalidArgument(f"port {text} stands for a sandbox's own API and is never one of its servers'")
            sandbox.exposed[int(text)] = bool(asked().get("public", False))
            return 200, _told(sandbox, int(text))
        case "DELETE", [text]:
            sandbox.exposed.pop(int(text), None)
            return 204, None
        case "GET", [text] if int(text) in sandbox.exposed:
            return 200, _told(sandbox, int(text))
    raise NotFound(f"port {'/'.join(rest)} of sandbox {sandbox.id} is not exposed")


def _told(sandbox: MockSandbox, port: int) -> dict[str, Any]:
    name, public = "i" + sandbox.id.removeprefix("sb-"), sandbox.exposed[port]
    token = None if public else f"traffic-{sandbox.id}"
    headers = {"E2b-Sandbox-Id": name, "E2b-Sandbox-Port": str(port)} | ({} if token is None else {"E2b-Traffic-Access-Token": token})
    url = f"https://{port}-{name}.{DOMAIN}:7071"
    return {"sandbox": sandbox.id, "port": port, "public": public, "url": url, "address": INGRESS, "headers": headers, "token": token}
