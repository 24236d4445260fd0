r"""An in-memory server for the tests of programs that use the SDK: no VM, the same requests and answers.

    server = MockServer()

    @server.program("python3")
    def python(process: Process) -> Reply:
        return Reply(stdout=b"42\n")

    with Sandbox.create(client=server.client()) as sandbox:
        assert sandbox.run(["python3", "-c", "print(6*7)"]).text == "42\n"

It knows `true`, `false`, `exit N`, `echo`, `cat`, `sh -c` of one of these, and a shell that runs them line by line; other programs are
functions of yours, or generators that read `process.incoming` and yield output as they go. Processes in the background run on threads.
Files and trees go in and come out (`sandbox.files`). `service` plays what listens on a port. `fail_next` makes the next request fail,
`cut_next` breaks its answer's connection. `listen()` serves it on a loopback port, for programs that are processes of their own.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import httpx

from space.model.errors import InvalidArgument, NotFound, SpaceError, Unauthenticated
from space.model.ids import new_request_id, new_sandbox_id
from space.model.sandbox import MIB, Phase, SandboxSpec
from space.sdk._async.client import AsyncClient
from space.sdk._sync.client import Client
from space.sdk.testing.body import Cut
from space.sdk.testing.credentials import Credentials
from space.sdk.testing.egress import Egress
from space.sdk.testing.exposed import CA, DOMAIN, INGRESS
from space.sdk.testing.life import Parcels
from space.sdk.testing.listener import listener
from space.sdk.testing.operations import Events, Operations
from space.sdk.testing.processes import BUILTIN, Program, Programs
from space.sdk.testing.sandbox import PAGE, MockSandbox, Routes, answer, document, query
from space.sdk.testing.sockets import Service, dialled
from space.sdk.testing.templates import MockTemplates

HOME = "/home/user"


class MockTransport(httpx.MockTransport):
    """Requests go to the server's function, WebSockets over a loopback connection to its threads."""

    def __init__(self, server: MockServer) -> None:
        super().__init__(server.handle)
        self._server = server

    def dial(self) -> socket.socket:
        """The client's end of a new connection."""
        return dialled(self._server)


class MockServer:
    """The server. `requests` records (method, path) of everything that came; `sandboxes` is by id; `events` is the log."""

    def __init__(self, *, key: str = "mock-key") -> None:
        self.key = key
        self.url = "http://space.test"
        self.sandboxes: dict[str, MockSandbox] = {}
        self.requests: list[tuple[str, str]] = []
        self.events = Events()
        self.services: dict[int, Service] = {}
        self.transport = MockTransport(self)
        self._programs = Programs(dict(BUILTIN))
        self._routes = Routes(self._programs, self.events.tell, self._child)
        self._operations = Operations()
        self.egress = Egress(self.events.tell, self.sandboxes)
        self.credentials = Credentials()
        self.templates = MockTemplates()
        self._parcels = Parcels(self._child)
        self._faults: list[tuple[str, BaseException]] = []
        self._cuts: list[tuple[str, int]] = []
        self._created: dict[str, str] = {}
        self._forked: dict[str, list[str]] = {}
        self._keys: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def client(self) -> Client:
        """A client of this server."""
        return Client(api_url=self.url, api_key=self.key, transport=self.transport)

    def async_client(self) -> AsyncClient:
        """A client of this server, for asyncio."""
        return AsyncClient(api_url=self.url, api_key=self.key, transport=self.transport)

    def program(self, name: str) -> Callable[[Program], Program]:
        """Decorates the function that plays the program `name`."""

        def register(function: Program) -> Program:
            self._programs.known[name] = function
            return function

        return register

    def service(self, port: int) -> Callable[[Service], Service]:
        """Decorates the function that plays what listens on this port of every sandbox: it is given a connected socket, on a thread."""

        def register(function: Service) -> Service:
            self.services[port] = function
            return function

        return register

    def fail_next(self, fault: BaseException, *, path: str = "", after: bool = False) -> None:
        """The next request whose path contains `path` ends in `fault`: a SpaceError as a problem, another one raised as it is.

        after: the request is done first, so that only its answer is lost.
        """
        self._faults.append((("after " if after else "before ") + path, fault))

    def cut_next(self, after: int, *, path: str = "") -> None:
        """The next answer of a path that contains `path` breaks off after so many bytes of it (of a WebSocket: of its messages)."""
        self._cuts.append((path, after))

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One request, whole; its answer."""
        path = request.url.path
        try:
            self.admit(request.method, path, request.headers.get("authorization"))
            response = self._route(request, [part for part in path.split("/") if part])
            self.raise_fault("after ", path)
        except SpaceError as error:
            response = problem(error)
        self._operations.audit(request, response)
        if (left := self.cut_of(path)) is not None:
            response.stream = Cut(response.stream, left)
        return response

    def admit(self, method: str, path: str, authorization: str | None) -> None:
        """Note a request, and let it fail if it is to."""
        with self._lock:
            self.requests.append((method, path))
        self.raise_fault("before ", path)
        if path != "/healthz" and authorization != f"Bearer {self.key}":
            raise Unauthenticated("the key is not known", hint="is it the right server?")

    @contextmanager
    def hung(self) -> Iterator[None]:
        """WebSockets that are opened meanwhile stand still: nothing is read of them or sent, not even a sign of life."""
        self.goes_on.clear()
        try:
            yield
        finally:
            self.goes_on.set()

    def cut_of(self, path: str) -> int | None:
        """Bytes after which this answer breaks off."""
        with self._lock:
            for index, (where, left) in enumerate(self._cuts):
                if where in path:
                    del self._cuts[index]
                    return left
        return None

    @contextmanager
    def listen(self) -> Iterator[str]:
        """Serve on a free port of 127.0.0.1 from a thread; the value is the URL."""
        server = listener(self)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    # -- routes --------------------------------------------------------------------------------------------------------
    def raise_fault(self, when: str, path: str) -> None:
        """The fault that this request is to end in."""
        for index, (where, fault) in enumerate(self._faults):
            if where.startswith(when) and where.removeprefix(when) in path:
                del self._faults[index]
                raise fault

    def sandbox(self, sandbox_id: str) -> MockSandbox:
        """A sandbox by its id. NotFound."""
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFound(f"there is no sandbox {sandbox_id}")
        return sandbox

    def _route(self, request: httpx.Request, parts: list[str]) -> httpx.Response:
        match request.method, parts:
            case "GET", ["healthz"]:
                return answer({"status": "ok", "version": "mock", "isolation": "none (mock)"})
            case "POST", ["v1", "sandboxes"]:
                return self._create(request)
            case "GET", ["v1", "sandboxes"]:
                return self._list(request)
            case "GET", ["v1", "ingress"]:
                return answer({"url": INGRESS, "domain": DOMAIN, "ca": CA})
            case "GET", ["v1", "events"]:
                return self.events.answer(request)
            case method, ["v1", "keys", *rest]:
                return self._key(method, rest, request)
            case "POST", ["v1", "sandboxes", sandbox_id, "template"]:
                return self.templates.keep(self.sandbox(sandbox_id).id, request)
            case "POST", ["v1", "sandboxes", "file"]:
                return answer(self._parcels.taken(request.content).document(), 201)
            case "GET", ["v1", "sandboxes", sandbox_id, "file"]:
                return self._parcels.sent(self.sandbox(sandbox_id))
            case "POST", ["v1", "sandboxes", sandbox_id, "fork"]:
                return self._fork(self.sandbox(sandbox_id), request)
            case "DELETE", ["v1", "sandboxes", sandbox_id]:
                return self._delete(self.sandbox(sandbox_id))
            case method, ["v1", "sandboxes", sandbox_id, *rest]:
                of_egress = self.credentials.of_sandbox(method, self.sandbox(sandbox_id), rest)
                of_egress = of_egress or self.egress.of_sandbox(method, self.sandbox(sandbox_id), rest, request)
                if of_egress is not None:
                    return of_egress
                return self._routes.answer(method, self.sandbox(sandbox_id), rest, request)
            case method, ["v1", *rest]:
                found = self.templates.route(request, rest)
                found = found or self.egress.of_tenant(method, rest, request) or self.credentials.of_tenant(method, rest, request)
                found = found or self._operations.answer(method, rest, request, self._used())
                if found is not None:
                    return found
        raise NotFound(f"there is no {request.method} {request.url.path}")

    def _used(self) -> dict[str, int]:
        there = list(self.sandboxes.values())
        computing = [sandbox.spec for sandbox in there if sandbox.phase not in (Phase.SUSPENDED, Phase.STOPPED)]
        used = {"sandboxes": len(there), **{name: sum(spec[name] for spec in computing) for name in ("cpus", "memory_mib")}}
        lives = [sandbox.life.shown() for sandbox in there]
        used["disk_mib"] = sum(sandbox.spec["disk_mib"] for sandbox in there)
        used["snapshot_mib"] = sum(life["snapshot_bytes"] for life in lives) // MIB
        return used | {"checkpoints": sum(life["checkpoints"] for life in lives)}

    def _create(self, request: httpx.Request) -> httpx.Response:
        wanted = document(request)
        policy, grants = wanted.pop("policy", None), wanted.pop("grants", [])
        spec = asdict(SandboxSpec())
        if unknown := set(wanted) - set(spec):
            raise InvalidArgument(f"unknown field {min(unknown)!r}")
        if not self.templates.has(wanted.get("template", "base")):
            raise NotFound(f"there is no template {wanted['template']!r}")
        spec |= wanted
        repeat = request.headers.get("idempotency-key", "")
        with self._lock:
            if repeat in self._created:
                return answer(self.sandboxes[self._created[repeat]].document())
            sandbox = MockSandbox(new_sandbox_id(), spec, time.time())
            self.egress.begin(sandbox, policy)
            self.credentials.attach(sandbox.id, grants)
            self.sandboxes[sandbox.id] = sandbox
            if repeat:
                self._created[repeat] = sandbox.id
        self.events.tell("created", sandbox)
        return answer(sandbox.document(), 201)

    def _fork(self, parent: MockSandbox, request: httpx.Request) -> httpx.Response:
        repeat = request.headers.get("idempotency-key", "")
        if repeat in self._forked:
            return answer({"sandboxes": [self.sandbox(name).document() for name in self._forked[repeat]]}, 201)
        grants = json.loads(request.content or b"{}").get("grants", [])
        self.credentials.check(grants)
        made = self._routes.answer("POST", parent, ["fork"], request)
        for child in made.json()["sandboxes"] if made.status_code == 201 else ():
            self.credentials.attach(child["id"], grants)
        if repeat and made.status_code == 201:
            self._forked[repeat] = [one["id"] for one in made.json()["sandboxes"]]
        return made

    def _child(self, parent: MockSandbox, spec: dict[str, Any]) -> MockSandbox:
        child = MockSandbox(new_sandbox_id(), spec, time.time(), policy=dict(parent.policy), own_policy=parent.own_policy)
        with self._lock:
            self.sandboxes[child.id] = child
        self.events.tell("created", child)
        return child

    def rest(self, sandbox_id: str, phase: Phase = Phase.SUSPENDED) -> None:
        """A rule puts a sandbox to rest, as its idle rule or its time to live would."""
        sandbox = self.sandbox(sandbox_id)
        sandbox.life.by_rule = True
        self._routes.move(sandbox, phase)

    def _delete(self, sandbox: MockSandbox) -> httpx.Response:
        del self.sandboxes[sandbox.id]
        sandbox.phase = Phase.GONE
        for process in sandbox.processes.values():
            process.lose("the sandbox was deleted")
        self.events.tell("deleted", sandbox)
        return httpx.Response(204)

    def _list(self, request: httpx.Request) -> httpx.Response:
        params = query(request)
        found = [s for s in sorted(self.sandboxes.values(), key=lambda s: s.id) if s.id > params.get("cursor", "")]
        if "phase" in params:
            found = [sandbox for sandbox in found if sandbox.phase == params["phase"]]
        page, more = found[:PAGE], found[PAGE:]
        cursor = page[-1].id if more else None
        return answer({"sandboxes": [sandbox.document() for sandbox in page], "next_cursor": cursor})

    def _key(self, method: str, rest: list[str], request: httpx.Request) -> httpx.Response:
        match method, rest:
            case "GET", []:
                return answer({"keys": list(self._keys.values())})
            case "POST", []:
                wanted = document(request)
                made = {"id": f"key-{len(self._keys) + 1}", "created_at": time.time(), "revoked_at": None, **wanted}
                self._keys[made["id"]] = made
                return answer({**made, "key": f"secret-{made['id']}"}, 201)
            case "DELETE", [key_id] if key_id in self._keys:
                self._keys[key_id]["revoked_at"] = time.time()
                return httpx.Response(204)
        raise NotFound("there is no such key")


def problem(error: SpaceError) -> httpx.Response:
    """An error as the API tells it."""
    request_id = new_request_id()
    told = {"type": f"urn:space:problem:{error.code}", "code": error.code, "title": error.title, "status": error.status}
    told |= {"detail": error.message, "request_id": request_id} | ({"hint": error.hint} if error.hint else {})
    told |= {"details": list(error.details)} if error.details else {}
    headers = {"content-type": "application/problem+json", "x-request-id": request_id}
    return httpx.Response(error.status, headers=headers, content=json.dumps(told).encode())
