"""Where a request is for: a port of a sandbox, or control. Pure; anything that can be read in two ways is refused.

| Host | names |
|---|---|
| `<port>-<id>.<domain>` | that port; headers that name another one are refused |
| `sandbox.<domain>`, `localhost`, an address | what `E2b-Sandbox-Id` and `E2b-Sandbox-Port` say |
| `api.<domain>` | control |

Without a domain it is `localhost`, whose names never lead to another machine. Which sandbox exists and who may reach it is not decided
here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from space.core.wire.http1 import RequestHead

ENVD = 49983  # control's face of the sandbox's own API; never a port of the guest's
INTERPRETER = 49999
LOCAL = "localhost"
ID_FIELD, PORT_FIELD, TOKEN_FIELD = b"e2b-sandbox-id", b"e2b-sandbox-port", b"e2b-traffic-access-token"
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?\Z")
_LABEL = re.compile(r"([0-9]{1,5})-([a-z0-9]{1,40})\Z")
_ID = re.compile(r"[a-z0-9]{1,40}\Z")
_OURS = re.compile(r"sb-([a-z2-7]{20})\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")


class BadRoute(ValueError):
    """There is no one reading. status: to answer with."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ToPort:
    """A port of a sandbox. sandbox: in E2B's spelling, or what the client took for it. by_host: its name was the Host's."""

    sandbox: str
    port: int
    token: str = ""
    by_host: bool = False


@dataclass(frozen=True, slots=True)
class ToControl:
    """Control. envd: the face of a sandbox's own API. by_host: so named by the Host, in `sandbox`."""

    envd: bool = False
    sandbox: str = ""
    by_host: bool = False


Target = ToPort | ToControl


def route(head: RequestHead, domain: str, *, relayed: bool = False) -> Target:
    """Where it is for. BadRoute. domain: of the settings, in lower case, or empty. relayed: it came to control's own address, and control
    has looked at the host.
    """
    if not head.target.startswith(b"/"):
        raise BadRoute("the request's target is not a path")
    name, is_address = _host(head.host)
    named = _named(head)
    under = domain or LOCAL
    label = name[: -len(under) - 1] if name.endswith("." + under) else None
    if label is None or label == "sandbox" or (relayed and label == "api"):
        if not (is_address or name == LOCAL or label is not None or relayed):
            raise BadRoute("this server does not answer for that host")
        return _by_headers(head, named)
    if label == "api" and domain:
        return ToControl()
    return _by_label(head, label, named)


def _by_headers(head: RequestHead, named: tuple[str, int] | None) -> Target:
    if named is None:
        raise BadRoute("no sandbox is named: E2b-Sandbox-Id and E2b-Sandbox-Port say which, or the host name does")
    sandbox, port = named
    return ToControl(envd=True, sandbox=sandbox) if port == ENVD else ToPort(sandbox, port, _token(head))


def _by_label(head: RequestHead, label: str, named: tuple[str, int] | None) -> Target:
    found = _LABEL.match(label)
    if found is None or not 1 <= int(found[1]) <= 65_535:
        raise BadRoute("the host name is not <port>-<sandbox>")
    port, sandbox = int(found[1]), found[2]
    if named is not None and named != (sandbox, port):
        raise BadRoute("the host name and the headers name two different ports")
    if port == ENVD:
        return ToControl(envd=True, sandbox=sandbox, by_host=True)
    return ToPort(sandbox, port, _token(head), by_host=True)


def _host(host: bytes) -> tuple[str, bool]:
    """The name in lower case, and whether it is an address."""
    found = _HOST.match(host.decode("latin-1"))
    if found is None or int(found["port"] or 0) > 65_535:
        raise BadRoute("the Host header is no host")
    text = (found["six"] or found["name"]).lower()
    try:
        address = ip_address(text)
    except ValueError:
        if found["six"]:
            raise BadRoute("the Host header is no host") from None
        return text, False
    if (address.version == 6) is not bool(found["six"]):
        raise BadRoute("the Host header is no host")
    return text, True


def _named(head: RequestHead) -> tuple[str, int] | None:
    """Sandbox and port as the headers say, if they do: each once, both or none."""
    ids, ports = _all(head, ID_FIELD), _all(head, PORT_FIELD)
    if not ids and not ports:
        return None
    if len(ids) != 1 or len(ports) != 1:
        raise BadRoute("E2b-Sandbox-Id and E2b-Sandbox-Port are each given once, or neither")
    if not _PORT.match(ports[0]) or not 1 <= int(ports[0]) <= 65_535:
        raise BadRoute("E2b-Sandbox-Port is no port")
    ours = _OURS.match(ids[0])
    sandbox = "i" + ours[1] if ours else ids[0].partition("-")[0]  # older clients send `<id>-<client>`
    if not _ID.match(sandbox):
        raise BadRoute("E2b-Sandbox-Id is no sandbox's id")
    return sandbox, int(ports[0])


def _token(head: RequestHead) -> str:
    tokens = _all(head, TOKEN_FIELD)
    if len(tokens) > 1:
        raise BadRoute("a traffic token is given once")
    if tokens and len(tokens[0]) > 256:
        raise BadRoute("the traffic token is none")
    return tokens[0] if tokens else ""


def _all(head: RequestHead, name: bytes) -> list[str]:
    return [value.decode("latin-1") for found, value in head.fields if found == name]
