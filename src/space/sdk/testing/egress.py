"""The mock server's policies, layers, and requests that wait for a person. It checks little: a policy is the real server's to judge.

server.egress.ask("sb-...", host="example.com")    # as if a request waited; the id that answers it
server.egress.answered                             # [(sandbox, ask, allow)]
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from space.sdk.testing.egresslog import EgressLogs
from space.sdk.testing.sandbox import MockSandbox, answer, document

_KEYS = frozenset({"version", "mode", "open", "cidr", "presets", "rule"})
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


class Egress:
    """All of it. tell: puts an event into the server's log."""

    def __init__(self, tell: Callable[..., None], sandboxes: Mapping[str, MockSandbox]) -> None:
        self._tell = tell
        self._sandboxes = sandboxes
        self._named: dict[str, dict[str, Any]] = {}
        self._layers: dict[str, dict[str, Any]] = {}  # by tenant; the operator's under ""
        self._number = 0
        self.answered: list[tuple[str, str, bool]] = []
        self.log = EgressLogs()

    def ask(
        self, sandbox: str, *, host: str = "example.com", port: int = 443, method: str = "GET", path: str = "/", rule: str = "rule[0]"
    ) -> str:
        """A request waits."""
        self._number += 1
        name = f"ask-{self._number}"
        found = self._sandboxes[sandbox]
        asked = {"host": host, "port": port, "scheme": "https", "method": method, "path": path, "rule": rule, "asked_at": time.time()}
        found.asks[name] = {"ask": name, "sandbox": sandbox, **asked}
        self._tell("egress_asked", found, ask=found.asks[name])
        return name

    def begin(self, sandbox: MockSandbox, policy: Any) -> None:
        """A sandbox is made with this policy, as the request has it."""
        if policy is None:
            policy = self._layer("mock")["default"]
        sandbox.policy = self._status(sandbox, policy, told=False)

    def of_sandbox(self, method: str, sandbox: MockSandbox, rest: list[str], request: httpx.Request) -> httpx.Response | None:
        """The answer of a route below `/v1/sandboxes/{id}`, if it is one of these."""
        match method, rest:
            case "GET", ["policy"]:
                return answer(self._shown(sandbox))
            case "PUT", ["policy"]:
                wanted = document(request)
                if "policy" not in wanted:
                    raise InvalidArgument("the body is not right: Object missing required field `policy`")
                sandbox.policy = self._status(sandbox, wanted["policy"], told=True)
                return answer(self._shown(sandbox))
            case "POST", ["policy", "explain"]:
                return answer(self._explained(sandbox, document(request)))
            case "GET", ["egress"]:
                names = ("connections", "requests", "denied", "names", "sent_bytes", "received_bytes", "worker_restarts")
                return answer({"drops": {}, "worker": False, **dict.fromkeys(names, 0)})
            case "GET", ["egress", "log"]:
                return self.log.answer(request, sandbox.id)
            case "GET", ["egress", "asks"]:
                return answer({"asks": list(sandbox.asks.values())})
            case "POST", ["egress", "asks", ask]:
                allow = document(request).get("allow")
                if sandbox.asks.pop(ask, None) is None:
                    raise NotFound(f"sandbox {sandbox.id} has no request {ask} that waits")
                self.answered.append((sandbox.id, ask, allow is True))
                return httpx.Response(204)
        return None

    def of_tenant(self, method: str, rest: list[str], request: httpx.Request) -> httpx.Response | None:
        """The answer of another route, if it is one of these."""
        match method, rest:
            case "GET", ["egress", "log"]:
                return self.log.answer(request, None)
            case "GET", ["policies"]:
                return answer({"policies": [self._named_shown(name, whole=False) for name in sorted(self._named)]})
            case "GET", ["policies", name]:
                return answer(self._named_shown(name))
            case "PUT", ["policies", name]:
                return self._store(name, document(request))
            case "DELETE", ["policies", name]:
                if users := [one.id for one in self._sandboxes.values() if one.policy["name"] == name]:
                    raise Conflict(
                        f"policy {name!r} is followed by {len(users)} sandbox{'' if len(users) == 1 else 'es'}",
                        hint="give them another one, or delete them",
                    )
                if self._named.pop(name, None) is None:
                    raise NotFound(f"there is no policy {name!r}")
                return httpx.Response(204)
            case "GET" | "PUT", ["policy"] | ["tenants", _, "policy"]:
                tenant = rest[1] if len(rest) == 3 else ""
                if method == "PUT":
                    self._set_layer(tenant, document(request))
                return answer(self._layer(tenant))
        return None

    def _store(self, name: str, wanted: Mapping[str, Any]) -> httpx.Response:
        if not _NAME.match(name):
            raise InvalidArgument(f"{name!r} is no name for a policy")
        checked(wanted["policy"])
        before = self._named.get(name, {}).get("revision", 0)
        self._named[name] = {"policy": wanted["policy"], "revision": before + 1, "updated_at": time.time()}
        for sandbox in self._sandboxes.values():
            if sandbox.policy["name"] == name:
                sandbox.policy = self._status(sandbox, name, told=True)
        return answer(self._named_shown(name), 200 if before else 201)

    def _named_shown(self, name: str, *, whole: bool = True) -> dict[str, Any]:
        if name not in self._named:
            raise NotFound(f"there is no policy {name!r}")
        found = self._named[name]
        policy = found["policy"]
        shown = {
            "name": name, "revision": found["revision"], "bytes": len(json.dumps(policy)), "rules": len(policy.get("rule", [])),
            "open": policy.get("open") is True, "updated_at": found["updated_at"], "policy": policy if whole else None, "warnings": [],
        }  # fmt: skip
        return {**shown, "sandboxes": sum(one.policy["name"] == name for one in self._sandboxes.values())}

    def _layer(self, tenant: str) -> dict[str, Any]:
        return self._layers.get(tenant, {"revision": 0, "policy": None, "default": None, "permits": [], "warnings": []})

    def _set_layer(self, tenant: str, wanted: Mapping[str, Any]) -> None:
        if wanted.get("policy") is not None:
            checked(wanted["policy"])
        if wanted.get("default") is not None and wanted["default"] not in self._named:
            raise NotFound(f"there is no policy {wanted['default']!r}")
        self._layers[tenant] = {**self._layer(tenant), **wanted, "revision": self._layer(tenant)["revision"] + 1}

    def _status(self, sandbox: MockSandbox, policy: Any, *, told: bool) -> dict[str, Any]:
        name = policy if isinstance(policy, str) else None
        if name is not None and name not in self._named:
            raise NotFound(f"there is no policy {name!r}", hint="GET /v1/policies lists them")
        sandbox.own_policy = table = self._named[name]["policy"] if name is not None else policy
        digest = ""
        if table is not None:
            checked(table)
            for what in ("open", "record"):
                if (table.get("open") is True if what == "open" else table.get("mode") == what) and what not in self._layer("mock")[
                    "permits"
                ]:
                    raise PermissionDenied(
                        f"this tenant may not have {what}", hint="the operator permits it with PUT /v1/tenants/{tenant}/policy"
                    )
            digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:32]
        generation = sandbox.policy["generation"] + 1
        wide = table is not None and (table.get("open") is True or table.get("mode") == "record")
        status = {"name": name, "digest": digest, "generation": generation, "applied_generation": generation, "open": wide}
        status |= {"state": "applied", "reason": None}
        if told:
            sandbox.revision += 1
            self._tell("egress_policy", sandbox, policy=status)
        return status

    def _shown(self, sandbox: MockSandbox) -> dict[str, Any]:
        layers = [level for level, who in (("operator", ""), ("tenant", "mock")) if self._layer(who)["policy"] is not None]
        return {"status": sandbox.policy, "policy": sandbox.own_policy, "layers": layers, "warnings": []}

    def _explained(self, sandbox: MockSandbox, wanted: Mapping[str, Any]) -> dict[str, Any]:
        host = urlsplit(wanted["url"]).hostname
        if host is None:
            raise InvalidArgument(f"{wanted['url']!r} is no URL")
        rules = list(enumerate((sandbox.own_policy or {}).get("rule", [])))
        found = next((row.get("name", f"rule[{at}]") for at, row in rules if row.get("host") == host), None)
        outcome = "name_not_allowed" if found is None else "allow"
        steps = [{"step": "name", "outcome": outcome, "lines": [f"sandbox: {outcome}", f"result: {outcome}"]}]
        status = sandbox.policy
        return {"outcome": outcome, "rule": found, "digest": status["digest"], "generation": status["generation"], "steps": steps}


def checked(policy: Any) -> None:
    """InvalidArgument for what is no policy at first sight."""
    if not isinstance(policy, dict):
        raise InvalidArgument("the body is not right: a policy is an object")
    mistakes = [{"path": key, "message": "unknown", "hint": "known: " + ", ".join(sorted(_KEYS))} for key in policy if key not in _KEYS]
    if policy.get("version") != 1:
        mistakes.append({"path": "version", "message": f"{policy.get('version')!r} is not 1", "hint": "write version = 1"})
    if mistakes:
        fault = InvalidArgument(f"the policy is not right: {mistakes[0]['path']}: {mistakes[0]['message']}", hint=mistakes[0]["hint"])
        fault.details = mistakes
        raise fault
