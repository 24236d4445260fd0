"""The mock server's secrets and grants. It checks little: a grant is the real server's to judge. A value is kept for the test to compare.

server.credentials.values["token"]                # what was put: text, or parts by name
server.credentials.log.add("sb-...", kind="credential", grant="g", secret="token", name="api.example.com")
"""

from __future__ import annotations

import re
import time
from typing import Any

import httpx

from space.model.credentials import SECRET_KINDS
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.sdk.testing.egresslog import EgressLogs
from space.sdk.testing.sandbox import MockSandbox, answer, document, query

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_SECRET = frozenset({"value", "kind", "public", "labels", "description", "expires"})
_GRANT = frozenset(
    {"name", "secret", "where", "slot", "who", "until", "rate", "uses", "approval", "forks", "keep", "description"}
)  # fmt: skip


class Credentials:
    """All of it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.log = EgressLogs(chain="broker")
        self._secrets: dict[str, dict[str, Any]] = {}
        self._grants: dict[str, dict[str, Any]] = {}
        self._attached: dict[str, set[str]] = {}

    def check(self, names: list[str]) -> None:
        """They are there."""
        for name in names:
            self._one(self._grants, name, "grant")

    def attach(self, sandbox: str, names: list[str]) -> None:
        """All or none."""
        self.check(names)
        self._attached.setdefault(sandbox, set()).update(names)

    def of_sandbox(self, method: str, sandbox: MockSandbox, rest: list[str]) -> httpx.Response | None:
        """The answer of a route below `/v1/sandboxes/{id}`, if it is one of these."""
        match method, rest:
            case "GET", ["grants"]:
                return answer({"grants": sorted(self._attached.get(sandbox.id, ()))})
            case "PUT", ["grants", name]:
                self.attach(sandbox.id, [name])
                return httpx.Response(204)
            case "DELETE", ["grants", name]:
                self._attached.get(sandbox.id, set()).discard(name)
                return httpx.Response(204)
        return None

    def of_tenant(self, method: str, rest: list[str], request: httpx.Request) -> httpx.Response | None:
        """The answer of another route, if it is one of these."""
        match method, rest:
            case "GET", ["credentials", "log"]:
                return self.log.answer(request, query(request).get("sandbox"))
            case "GET", ["secrets"]:
                return answer({"secrets": [self._secret(name) for name in sorted(self._secrets)], "next_cursor": None})
            case "GET", ["secrets", name]:
                return answer(self._secret(name))
            case "POST" | "PUT", ["secrets", name]:
                return self._put_secret(name, document(request), new=method == "POST")
            case "POST", ["secrets", name, "rotate"]:
                self._secret(name)
                return self._put_secret(name, document(request), new=False)
            case "POST", ["secrets", name, "revoke"]:
                self._secret(name)
                self._secrets[name]["revoked_at"] = self._secrets[name]["revoked_at"] or time.time()
                self.values.pop(name, None)
                return answer(self._secret(name))
            case "DELETE", ["secrets", name]:
                if self._users(name):
                    raise Conflict(f"{self._users(name)} grants name secret {name!r}", hint="delete them first")
                self._secrets.pop(name, None)
                self.values.pop(name, None)
                return httpx.Response(204)
            case "GET", ["grants"]:
                secret = query(request).get("secret")
                found = [name for name, one in sorted(self._grants.items()) if secret in (None, one["secret"])]
                return answer({"grants": [self._grant(name) for name in found], "next_cursor": None})
            case "GET", ["grants", name]:
                return answer(self._grant(name))
            case "POST" | "PUT", ["grants", name]:
                return self._put_grant(name, document(request), new=method == "POST")
            case "POST", ["grants", name, "revoke"]:
                one = self._one(self._grants, name, "grant")
                one["revoked_at"] = one["revoked_at"] or time.time()
                return answer(self._grant(name))
            case "DELETE", ["grants", name]:
                self._grants.pop(name, None)
                for names in self._attached.values():
                    names.discard(name)
                return httpx.Response(204)
        return None

    def _put_secret(self, name: str, wanted: dict[str, Any], *, new: bool) -> httpx.Response:
        _named(name, "secret")
        _known(wanted, _SECRET)
        if wanted.get("kind", "static") not in SECRET_KINDS:
            raise InvalidArgument("kind: it is none", hint="one of " + ", ".join(SECRET_KINDS))
        if "value" not in wanted:
            raise InvalidArgument("the body is not right: Object missing required field `value`")
        before = self._secrets.get(name)
        if new and before is not None:
            raise Conflict(f"there is a secret {name!r} already", hint="rotate it, or take another name")
        self.values[name] = wanted["value"]
        now = time.time()
        self._secrets[name] = {
            "name": name, "kind": wanted.get("kind", "static"), "version": 1 if before is None else before["version"] + 1,
            "public": wanted.get("public", {}), "labels": wanted.get("labels", {}), "description": wanted.get("description", ""),
            "created_at": now if before is None else before["created_at"], "rotated_at": None if before is None else now,
            "expires_at": None, "revoked_at": None,
        }  # fmt: skip
        return answer(self._secret(name), 201 if new else 200)

    def _put_grant(self, name: str, wanted: dict[str, Any], *, new: bool) -> httpx.Response:
        _named(name, "grant")
        _known(wanted, _GRANT)
        for field in ("secret", "where", "slot"):
            if field not in wanted:
                raise InvalidArgument(f"grant: object missing required field `{field}`")
        self._secret(wanted["secret"])
        before = self._grants.get(name)
        if new and before is not None:
            raise Conflict(f"there is a grant {name!r} already", hint="replace it, or take another name")
        made = time.time() if before is None else before["created_at"]
        self._grants[name] = {
            "name": name, "secret": wanted["secret"], "grant": {**wanted, "name": name}, "created_at": made, "revoked_at": None, "used": 0,
        }  # fmt: skip
        return answer(self._grant(name), 201 if new else 200)

    def _secret(self, name: str) -> dict[str, Any]:
        return {**self._one(self._secrets, name, "secret"), "grants": self._users(name)}

    def _grant(self, name: str) -> dict[str, Any]:
        return {**self._one(self._grants, name, "grant"), "attached": sum(name in names for names in self._attached.values())}

    def _users(self, secret: str) -> int:
        return sum(one["secret"] == secret for one in self._grants.values())

    @staticmethod
    def _one(held: dict[str, dict[str, Any]], name: str, what: str) -> dict[str, Any]:
        if name not in held:
            raise NotFound(f"there is no {what} {name!r}")
        return held[name]


def _named(name: str, what: str) -> None:
    if not _NAME.match(name):
        raise InvalidArgument(f"{name!r} is no name for a {what}")


def _known(wanted: dict[str, Any], known: frozenset[str]) -> None:
    if unknown := set(wanted) - known:
        raise InvalidArgument(f"unknown field `{min(unknown)}`", hint="known: " + ", ".join(sorted(known)))
