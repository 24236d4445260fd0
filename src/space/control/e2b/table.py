"""Every operation of E2B's with its state here: what docs/e2b.md shows, and what answers for those that are not.

`full`: as E2B's SDKs expect. `partly`: the reason says what differs. `no`: it answers 501 with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["full", "partly", "no"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a client asks for. routes: of the control API, as method and path; others are said in `where`."""

    area: str
    what: str
    state: State
    reason: str = ""
    routes: tuple[str, ...] = ()


def _one(area: str, what: str, *routes: str, partly: str = "", no: str = "") -> Operation:
    return Operation(area, what, "no" if no else "partly" if partly else "full", partly or no, routes)


_BOX = "/sandboxes/{id}"
_S, _T, _N = "Sandboxes", "Templates", "Network"
OPERATIONS: tuple[Operation, ...] = (
    _one(_S, "create", "POST /v2/sandboxes", "POST /sandboxes", partly="`mcp`, `iam` and `volumeMounts` are refused with 501"),
    _one(_S, "connect, also to a paused one; resume", f"POST /v2{_BOX}/connect", f"POST {_BOX}/connect", f"POST {_BOX}/resume"),
    _one(_S, "list with filters, order and pages", "GET /v2/sandboxes", "GET /sandboxes"),
    _one(_S, "get", f"GET {_BOX}"),
    _one(_S, "kill", f"DELETE {_BOX}"),
    _one(_S, "timeout, refresh", f"POST {_BOX}/timeout", f"POST {_BOX}/refreshes"),
    _one(
        _S, "pause, with memory or the disk alone; auto-pause; auto-resume", f"POST {_BOX}/pause",
        partly="`requireHealthyGuest` is not looked at: a guest that does not answer is suspended as it is",
    ),
    _one(_S, "fork", f"POST {_BOX}/fork", partly="at most 16 copies at once; all of them run, or none is made"),
    _one(_S, "metrics", f"GET {_BOX}/metrics", "GET /sandboxes/metrics", partly="`memCache` is 0: it is counted as free"),
    _one(
        _S, "logs", f"GET /v2{_BOX}/logs", f"GET {_BOX}/logs",
        partly="what happened to the sandbox; processes' output is theirs who started them",
    ),
    _one(
        _S, "snapshots: create, list, spawn, delete", f"POST {_BOX}/snapshots", "GET /snapshots",
        partly="one with memory is a suspended copy, counts towards the quota, and spawns one sandbox at a time; its size is the source's",
    ),
    _one(
        _N, "internet access on and off", partly="on is `open` where the operator permits it, else the tenant's policy holds; "
        "`egressPolicy` in the answer says which",
    ),
    _one(
        _N, "allowOut and denyOut, also live", f"PUT {_BOX}/network",
        partly="denyOut takes `0.0.0.0/0` alone; `*.name` is one label; names are reached on 443 and 80, addresses by TCP; no IPv6",
    ),
    _one(_N, "header transforms", partly="one header for a host, one secret in it, no wildcard hosts, no identity tokens"),
    _one(_N, "dnsServers, egressProxy", no="the gateway is the only way out, and resolves names itself"),
    _one(_N, "allowPublicTraffic, maskRequestHost, httpsPorts"),
    _one(
        _T, "build: image or template, steps, files, commands, log, status", "POST /v3/templates", "POST /v2/templates",
        "POST /v2/templates/{id}/builds/{build}", "GET /templates/{id}/builds/{build}/status", "GET /templates/{id}/builds/{build}/logs",
        "GET /templates/{id}/files/{hash}", "PUT /templates/{id}/files/{hash}",
        partly="images are those that the setting `e2b_images` maps to templates (Debian 12 and Python 3.11 are the base template); "
        "nothing leaves a builder, so what a step installs comes by COPY; archives of 512 MiB at most; a sandbox of a size that is not kept"
        " warm boots: who connects to a port of it waits until its start command is ready",
    ),
    _one(_T, "private registries", no="no image registry is asked"),
    _one(
        _T, "list, get, delete", "GET /templates", "GET /v2/templates", "GET /default-templates", "GET /templates/{id}",
        "DELETE /templates/{id}",
        partly="`spawnCount` counts what is there now, `lastSpawnedAt` is null; one with sandboxes is not deleted (409)",
    ),
    _one(_T, "publish", "PATCH /templates/{id}", "PATCH /v2/templates/{id}", no="a template is its tenant's own"),
    _one(_T, "exists by name", "GET /templates/aliases/{alias}"),
    _one(_T, "tags: list, assign, remove", "GET /templates/{id}/tags", "POST /templates/tags", "DELETE /templates/tags",
         partly="a tag's `createdAt` is its build's; with the last tag of a build its disk goes"),
    _one("Secrets", "create, list, get, update, destroy", "POST /secrets", "GET /secrets", "GET /secrets/{id}", "POST /secrets/{id}",
         "DELETE /secrets/{id}", partly="names differ in more than case; one that a running sandbox uses is not destroyed (409)"),
    _one("Volumes", "all of them", "POST /volumes", "GET /volumes", "GET /volumes/{volume}", "DELETE /volumes/{volume}",
         no="sandboxes share no disks here"),
    _one("Commands", "run, background, connect, list, kill, stdin, environment, user, directory, timeouts; PTY",
         partly="a kill takes all that the command started; after a restart of the server, tags and environments are not told any more"),
    _one("Files", "read, write, list, stat, make, move, remove, exists, metadata, watch; signed URLs; gzip, multipart",
         partly="no `/files/compose`; a list has at most 50,000 entries or 8 MiB; what is moved out of a watched directory is REMOVE"),
    _one("Ports", "public URL of a port, traffic token, host masking, waking on a request",
         partly="by header at the API's address or the ingress's, and by host name where the setting `domain` is set (over TLS)"),
    _one("Code interpreter", "run code, contexts, results, charts", partly="Python, JavaScript, Bash; template `code-interpreter-v1`"),
    _one("Others", "workload identity, MCP gateway", no="there is no issuer of identities, and no template `mcp-gateway`"),
    _one("Others", "teams, access tokens, events, webhooks", "GET /teams", "GET /api-keys", "POST /api-keys", "POST /access-tokens",
         "GET /events/sandboxes", "GET /events/webhooks", no="our own API and command line have tenants, keys, events and webhooks"),
)  # fmt: skip


def refused() -> dict[str, str]:
    """Routes that are there to say why they are not: the reason by method and path."""
    return {route: one.reason for one in OPERATIONS if one.state == "no" for route in one.routes if not route.startswith("PATCH")}


_WORDS: dict[State, str] = {"full": "works", "partly": "works, but", "no": "501"}


def markdown() -> str:
    """The table of docs/e2b.md."""
    rows = [
        "| | operation | state | |",
        "|---|---|---|---|",
        *(f"| {one.area} | {one.what} | {_WORDS[one.state]} | {one.reason} |" for one in OPERATIONS),
    ]
    return "\n".join(rows) + "\n"
