"""Templates of a `MockServer`: names, tags and builds that do nothing but say so."""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Any

import httpx

from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from space.sdk.testing.sandbox import answer, document, query

_FILE = b"a template of the mock server\n"


class MockTemplates:
    """By (name, tag); `base` is shipped."""

    def __init__(self) -> None:
        self.named: dict[tuple[str, str], dict[str, Any]] = {}
        self.builds: dict[str, dict[str, Any]] = {}
        self._base = _described("base", shipped=True)

    def has(self, reference: str) -> bool:
        """Whether a sandbox can be made of it."""
        name, _, tag = reference.partition(":")
        return name == "base" or (name, tag or "latest") in self.named

    def route(self, request: httpx.Request, parts: list[str]) -> httpx.Response | None:
        """An answer, or None when the request is about something else."""
        method = request.method
        match method, parts:
            case "GET", ["templates"]:
                return answer({"templates": [self._base, *{one["digest"]: one for one in self.named.values()}.values()]})
            case "POST", ["templates", name, "rebake"]:
                return answer(self._put(name, self._tag(request), self._found(name, self._tag(request))["digest"] + "r"), 201)
            case "PUT", ["templates", name, "tags", tag]:
                digest = document(request)["digest"]
                if digest not in [one["digest"] for one in self.named.values()]:
                    raise NotFound(f"there is no template with digest {digest}")
                return answer(self._put(name, tag, digest))
            case "GET", ["templates", name]:
                return answer(self._base if name == "base" else self._found(name, self._tag(request)))
            case "DELETE", ["templates", name]:
                if name == "base":
                    raise Conflict("template base was made by set-up, and is not deleted")
                self._found(name, self._tag(request))
                del self.named[name, self._tag(request)]
                return httpx.Response(204)
            case "GET", ["templates", name, "file"]:
                found = self._base if name == "base" else self._found(name, self._tag(request))
                return httpx.Response(200, content=_FILE + json.dumps(found).encode(), headers={"content-type": "application/zstd"})
            case "POST", ["templates", name, "file"]:
                if not (data := request.content).startswith(_FILE):
                    raise InvalidArgument("this is no template that can be imported")
                return answer(self._put(name, self._tag(request), json.loads(data.removeprefix(_FILE))["digest"] + "i"), 201)
            case "POST", ["prune"]:
                return answer({"steps": [], "freed_bytes": 0})
            case _, ["builds", *rest]:
                return self._build(method, rest, request)
        return None

    def keep(self, sandbox: str, request: httpx.Request) -> httpx.Response:
        """A sandbox's disk as one: the same again where the request has the same key."""
        asked, key = document(request), request.headers.get("idempotency-key", "")
        digest = hashlib.sha256(f"{sandbox} {key or len(self.named)}".encode()).hexdigest()[:32]
        if asked["name"] == "base":
            raise PermissionDenied("base is the name of a shipped template", hint="take another name")
        return answer(self._put(asked["name"], asked.get("tag", "latest"), digest), 201)

    def _build(self, method: str, rest: list[str], request: httpx.Request) -> httpx.Response | None:
        match method, rest:
            case "POST", ["plan"]:
                recipe = _recipe(document(request)["recipe"])
                steps = list(recipe.get("step", []))
                inputs = [step["copy"] for step in steps if "copy" in step]
                return answer({"name": recipe.get("name", ""), "inputs": inputs, "downloads": [], "steps": [str(step) for step in steps]})
            case "POST", []:
                asked = document(request)
                build = {"id": f"bd-{len(self.builds) + 1:016x}", **asked}
                self.builds[build["id"]] = build
                return answer(build, 201)
            case "PUT", [name, "files"] if name in self.builds:
                asked = self.builds[name]
                made = hashlib.sha256(json.dumps([asked["recipe"], asked["inputs"]]).encode()).hexdigest()[:32]
                self._put(asked["name"] or _recipe(asked["recipe"])["name"], asked["tag"], made)
                asked["digest"] = made
                return answer(asked)
            case "GET", [name, "log"] if name in self.builds:
                line = {"n": 1, "kind": "end", "state": "done", "digest": self.builds[name].get("digest")}
                return httpx.Response(200, content=json.dumps(line).encode() + b"\n", headers={"content-type": "application/x-ndjson"})
            case "DELETE", [name] if name in self.builds:
                del self.builds[name]
                return httpx.Response(204)
        return None

    @staticmethod
    def _tag(request: httpx.Request) -> str:
        return query(request).get("tag", "latest")

    def _found(self, name: str, tag: str) -> dict[str, Any]:
        if (name, tag) not in self.named:
            raise NotFound(f"there is no template {name}:{tag}")
        return self.named[name, tag]

    def _put(self, name: str, tag: str, digest: str) -> dict[str, Any]:
        made = self.named[name, tag] = _described(name, shipped=False) | {"digest": digest}
        tags = sorted(other for (named, other), one in self.named.items() if named == name and one["digest"] == digest)
        for other in tags:
            self.named[name, other]["tags"] = tags
        return made


def _described(name: str, *, shipped: bool) -> dict[str, Any]:
    words = ("source", "parent", "user", "cwd", "kernel_release", "problem")
    lists = ("tags", "start", "ready", "hooks")
    sizes: dict[str, Any] = {"disk_mib": 2048, "used_mib": 300, "created_at": None, "env": {}}
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return {"name": name, "digest": digest, "shipped": shipped, **dict.fromkeys(words, ""), **{each: [] for each in lists}, **sizes}


def _recipe(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"recipe: no TOML: {error}") from None
