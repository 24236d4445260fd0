"""The mock server's events, webhooks, quotas and audit."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from space.model.errors import NotFound
from space.model.tenants import Quota
from space.sdk.testing.body import Waiting
from space.sdk.testing.sandbox import MockSandbox, answer, document, query, streamed

HEARTBEAT_SECONDS = 5.0
_FIELDS = tuple(Quota.__dataclass_fields__)


class Events:
    """The log. `forget` drops the oldest, as a server does in time."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.kept: list[dict[str, Any]] = []
        self._next = 1

    def tell(self, kind: str, sandbox: MockSandbox, **more: Any) -> None:
        """Something happened."""
        with self.changed:
            event = {"id": self._next, "at": time.time(), "kind": kind, "sandbox": sandbox.id, "revision": sandbox.revision}
            self.kept.append({**event, "phase": str(sandbox.phase), **more})
            self._next += 1
            self.changed.notify_all()

    def forget(self, up_to: int) -> None:
        """Keep only what came after this one."""
        with self.changed:
            self.kept = [event for event in self.kept if event["id"] > up_to]

    def answer(self, request: httpx.Request) -> httpx.Response:
        """GET /v1/events."""
        params = query(request)
        return streamed(Waiting(lambda closed: self._lines(params, closed), self.changed), "application/x-ndjson")

    def _happened(self, last: int, closed: Callable[[], bool]) -> bool:
        return bool(self.changed.wait_for(lambda: closed() or self._next - 1 > last, HEARTBEAT_SECONDS))

    def _lines(self, params: Mapping[str, str], closed: Callable[[], bool]) -> Iterator[bytes]:
        follow, limit = params.get("follow") == "1", int(params.get("limit", 1000))
        with self.changed:
            after = int(params["after"]) if "after" in params else self._next - 1 if follow else 0
            oldest = self.kept[0]["id"] if self.kept else None
            lost = "after" in params and after + 1 < (self._next if oldest is None else oldest)
        if lost:
            yield _line({"kind": "gap", "oldest": oldest})
            after = self._next - 1 if oldest is None else oldest - 1
        if follow:
            yield _line({"kind": "heartbeat", "id": after})
        while not closed():
            with self.changed:
                new = [event for event in self.kept if event["id"] > after]
                if not new and follow:
                    last = self._next - 1
                    new = [] if self._happened(last, closed) else [{"kind": "heartbeat", "id": last}]
            told = [event for event in new if event["kind"] == "heartbeat" or _asked(event, params)]
            after = new[-1]["id"] if new else after
            yield from map(_line, told if follow else told[:limit])
            if not follow:
                return


class Operations:
    """Webhooks, quotas, and the audit of what was asked."""

    def __init__(self) -> None:
        self._webhooks: dict[str, dict[str, Any]] = {}
        self._quotas: dict[str, dict[str, Any]] = {}
        self.audited: list[dict[str, Any]] = []

    def answer(self, method: str, rest: list[str], request: httpx.Request, used: Mapping[str, int]) -> httpx.Response | None:
        """The answer, if it is one of these routes."""
        match method, rest:
            case "GET", ["webhooks"]:
                return answer({"webhooks": list(self._webhooks.values())})
            case "POST", ["webhooks"]:
                return self._created(document(request))
            case "DELETE", ["webhooks", name]:
                if self._webhooks.pop(name, None) is None:
                    raise NotFound(f"there is no webhook {name}")
                return httpx.Response(204)
            case "GET" | "PUT", ["tenants", tenant, "quota"]:
                if method == "PUT":
                    self._quotas[tenant] = document(request)
                quota = {name: self._quotas.get(tenant, {}).get(name) for name in _FIELDS}
                return answer({"tenant": tenant, "quota": quota, "effective": quota, "used": used})
            case "GET", ["audit"]:
                return self._audit(query(request))
        return None

    def audit(self, request: httpx.Request, response: httpx.Response) -> None:
        """Note what was asked, and how it was answered."""
        parts = request.url.path.split("/")
        self.audited.append({
            "id": len(self.audited) + 1, "at": time.time(), "request_id": response.headers.get("x-request-id", "req-mock"),
            "key_id": "key-mock",
            "tenant": "mock", "peer": "127.0.0.1", "route": f"{request.method} {request.url.path}",
            "sandbox": parts[3] if parts[1:3] == ["v1", "sandboxes"] and len(parts) > 3 else None, "status": response.status_code,
        })  # fmt: skip

    def _created(self, wanted: Mapping[str, Any]) -> httpx.Response:
        made = {
            "id": f"wh-{len(self._webhooks) + 1}", "tenant": "mock", "url": wanted["url"], "kinds": wanted.get("kinds"),
            "created_at": time.time(), "cursor": 0, "delivered": 0, "failing_since": None, "last_error": None,
        }  # fmt: skip
        self._webhooks[str(made["id"])] = made
        return answer({"webhook": made, "secret": wanted.get("secret") or secrets.token_hex(16)}, 201)

    def _audit(self, params: Mapping[str, str]) -> httpx.Response:
        after, limit = int(params.get("after", 0)), int(params.get("limit", 100))
        found = [one for one in self.audited if one["id"] > after and params.get("tenant") in (None, one["tenant"])]
        more = found[limit:]
        return answer({"records": found[:limit], "next_after": found[limit - 1]["id"] if more else None})


def _asked(event: Mapping[str, Any], params: Mapping[str, str]) -> bool:
    kinds = params["kind"].split(",") if "kind" in params else None
    return params.get("sandbox") in (None, event["sandbox"]) and (kinds is None or event["kind"] in kinds)


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
