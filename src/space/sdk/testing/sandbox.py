"""A sandbox of the mock server, and the routes below it."""

from __future__ import annotations

import json
import struct
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import httpx

from space.model.egress import PolicyStatus
from space.model.errors import Conflict, InvalidArgument, NotFound, Unsupported
from space.model.frames import MEDIA_TYPE, PROCESS_MEDIA_TYPE
from space.model.ids import new_request_id
from space.model.process import PtySize
from space.model.sandbox import Phase
from space.sdk.testing.body import Pieces, Waiting
from space.sdk.testing.exposed import answered
from space.sdk.testing.files import HOME, MockFiles, absolute
from space.sdk.testing.life import Lives, MockLife
from space.sdk.testing.processes import MockProcess, Process, Programs, frames_of
from space.sdk.testing.trees import get_tree, put_tree

_NEED_A_GUEST = ("processes", "files", "tree", "noop")
PAGE = 2  # small, so that every list of three is read in pages
_NAMES = [
    *("memory_total", "memory_available", "cpu_user_ms", "cpu_system_ms", "disk_total", "disk_used"),
    *("processes", "uptime_ms", "load1_milli", "host_memory_bytes", "host_cpu_ms"),
]


@dataclass(slots=True)
class MockSandbox:
    """A sandbox of the server. `files` by absolute path; `closed` counts command streams that the client left early."""

    id: str
    spec: dict[str, Any]
    created_at: float
    phase: Phase = Phase.RUNNING
    revision: int = 1
    files: dict[str, bytes] = field(default_factory=dict)
    members: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    processes: dict[str, MockProcess] = field(default_factory=dict)
    deleted_processes: set[str] = field(default_factory=set)
    closed: int = 0
    expires_at: float | None = None
    life: MockLife = field(default_factory=MockLife)
    policy: dict[str, Any] = field(default_factory=lambda: asdict(PolicyStatus()))
    own_policy: dict[str, Any] | None = None
    exposed: dict[int, bool] = field(default_factory=dict)
    asks: dict[str, dict[str, Any]] = field(default_factory=dict)
    tree: MockFiles = field(init=False)

    def __post_init__(self) -> None:
        self.tree = MockFiles(self.files, self.members)
        self.expires_at = self.created_at + self.spec["ttl_seconds"]

    def document(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.id,
            "phase": str(self.phase),
            "spec": self.spec,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "revision": self.revision,
            "isolation": "none (mock)",
            "reason": None,
            "policy": self.policy,
            **self.life.shown(),
        }


def query(request: httpx.Request) -> dict[str, str]:
    """The parameters of a request; names that are no UTF-8 keep their bytes."""
    return dict(parse_qsl(request.url.query.decode(), keep_blank_values=True, errors="surrogateescape"))


def document(request: httpx.Request) -> dict[str, Any]:
    """The JSON object that a request holds."""
    found = json.loads(request.content or b"{}")
    if not isinstance(found, dict):
        raise InvalidArgument("the body is no object")
    return found


def answer(value: Any, status: int = 200) -> httpx.Response:
    """A value as an answer; surrogates of names as their escapes."""
    return httpx.Response(status, headers={"content-type": "application/json"}, content=json.dumps(value).encode())


def streamed(body: httpx.SyncByteStream, media_type: str, status: int = 200, **headers: str) -> httpx.Response:
    """A body that is made while it is read."""
    return httpx.Response(status, headers={"content-type": media_type, "x-request-id": new_request_id(), **headers}, stream=body)


class Routes:
    """What is asked of one sandbox. tell: puts an event into the server's log."""

    def __init__(self, programs: Programs, tell: Callable[..., None], made: Callable[[MockSandbox, dict[str, Any]], MockSandbox]) -> None:
        """made: keeps the child of a sandbox, of this specification."""
        self._programs = programs
        self._tell = tell
        self._lives = Lives(tell, self.move, made)

    def answer(self, method: str, sandbox: MockSandbox, rest: list[str], request: httpx.Request) -> httpx.Response:
        """The answer of a route below `/v1/sandboxes/{id}`."""
        if method != "GET" and rest and rest[0] in _NEED_A_GUEST:
            self._running(sandbox)
        if (lived := self._lives.answer(method, sandbox, rest, lambda: document(request))) is not None:
            status, value = lived
            return httpx.Response(204) if status == 204 else answer(value, status)
        match method, rest:
            case "GET", []:
                return answer(sandbox.document())
            case "PATCH", []:
                return self._change(sandbox, request)
            case "POST", ["noop"]:
                return answer({})
            case "GET", ["metrics"]:
                return answer(dict.fromkeys(_NAMES, 1))
            case "GET", ["metrics", "history"]:
                since, now = float(query(request).get("since", "0")), time.time()
                samples = [{"at": now - age, **dict.fromkeys(_NAMES, 1)} for age in (20.0, 10.0, 0.0)]
                return answer({"interval_seconds": 10.0, "samples": [one for one in samples if one["at"] >= since]})
            case "PUT", ["tree"]:
                return answer(put_tree(sandbox.files, sandbox.members, absolute(query(request)["path"]), request.content))
            case "GET", ["tree"]:
                tree = get_tree(sandbox.files, sandbox.members, absolute(query(request)["path"]))
                return streamed(Pieces(iter([tree])), "application/x-tar")
            case method, ["processes", *below]:
                return self._process(method, sandbox, below, request)
            case method, ["files", *below]:
                return _file(method, sandbox.tree, below, request)
            case method, ["exposed", *below]:
                status, value = answered(method, sandbox, below, lambda: document(request))
                return httpx.Response(204) if status == 204 else answer(value, status)
            case "GET", ["ports", _]:
                raise Unsupported("this is a WebSocket", hint="send an upgrade")
        raise NotFound(f"there is no {request.method} {request.url.path}")

    def _running(self, sandbox: MockSandbox) -> None:
        """As the server: what a rule put to rest is woken by a call, what somebody put to rest stays so."""
        if sandbox.phase is Phase.RUNNING:
            return
        if not (sandbox.life.by_rule and sandbox.spec["wake_on_call"]):
            raise Conflict(f"sandbox {sandbox.id} is {sandbox.phase}", hint="wake it first")
        self.move(sandbox, Phase.RUNNING)

    def move(self, sandbox: MockSandbox, phase: Phase) -> None:
        """Into a phase, with its event."""
        if sandbox.phase is phase:
            return
        before, sandbox.phase = sandbox.phase, phase
        sandbox.revision += 1
        sandbox.life.moved(before, phase)
        if phase in (Phase.SUSPENDED, Phase.STOPPED) and not sandbox.life.by_rule:
            sandbox.expires_at = None
        elif phase is Phase.RUNNING and sandbox.expires_at is None:
            sandbox.expires_at = time.time() + sandbox.spec["ttl_seconds"]
        if phase is Phase.STOPPED:
            for process in sandbox.processes.values():
                process.lose("the sandbox was stopped")
        self._tell("phase", sandbox, from_phase=str(before))

    def _change(self, sandbox: MockSandbox, request: httpx.Request) -> httpx.Response:
        wanted = document(request)
        if unknown := set(wanted) - {"ttl_seconds", "metadata", "idle", "on_timeout", "wake_on_call"}:
            raise InvalidArgument(f"unknown field {min(unknown)!r}")
        if not wanted:
            raise InvalidArgument("nothing is to be changed")
        given = request.headers.get("if-match", "").strip('"')
        if given and given != str(sandbox.revision):
            raise Conflict(f"sandbox {sandbox.id} is at revision {sandbox.revision}, and If-Match says {given}")
        fields = sorted(wanted)
        if "metadata" in wanted:
            merged = {**sandbox.spec["metadata"], **wanted.pop("metadata")}
            sandbox.spec["metadata"] = {name: value for name, value in merged.items() if value is not None}
        sandbox.spec |= wanted
        if "ttl_seconds" in wanted:
            sandbox.expires_at = time.time() + wanted["ttl_seconds"]
        sandbox.revision += 1
        self._tell("changed", sandbox, fields=fields)
        return answer(sandbox.document())

    # -- processes -----------------------------------------------------------------------------------------------------
    def _process(self, method: str, sandbox: MockSandbox, rest: list[str], request: httpx.Request) -> httpx.Response:
        params = query(request)
        match method, rest:
            case "POST", []:
                return self._run(sandbox, request) if params.get("stream") == "1" else self._start(sandbox, request)
            case "GET", []:
                found = [process.document() for process in sandbox.processes.values()]
                return answer({"processes": [one for one in found if params.get("state") in (None, one["state"])]})
            case "DELETE", [process_id]:
                sandbox.deleted_processes.add(process_id)
                deleted = sandbox.processes.pop(process_id, None)
                if deleted is not None:
                    deleted.lose("deleted by request")
                return httpx.Response(204)
            case method, [process_id, *below]:
                return _of_process(method, known_process(sandbox, process_id), below, request, params)
        raise NotFound(f"there is no {request.method} {request.url.path}")

    def _start(self, sandbox: MockSandbox, request: httpx.Request) -> httpx.Response:
        wanted = document(request)
        for field_name in ("stdin", "stdin_base64"):
            if field_name in wanted:
                raise InvalidArgument(f"{field_name}: a process in the background takes none with its request", hint="give stdin_open")
        first = sandbox.processes.get(wanted.get("id", ""))
        if first is not None and first.wanted == wanted:
            return answer(first.document(), 201)
        _unknown(sandbox, wanted)
        program, process = self._programs.find(_process_of(sandbox, wanted, b""))
        stdin_open = bool(wanted.get("stdin_open")) or process.pty is not None
        spool = wanted.get("spool_bytes") if wanted.get("overflow") != "block" else None
        record = MockProcess(sandbox.id, process, stdin_open=stdin_open, spool_bytes=spool, wanted=wanted)
        sandbox.processes[record.id] = record
        record.start(program)
        return answer(record.document(), 201)

    def _run(self, sandbox: MockSandbox, request: httpx.Request) -> httpx.Response:
        body, stdin = request.content, b""
        kind = request.headers["content-type"]
        if kind == PROCESS_MEDIA_TYPE:
            (length,) = struct.unpack_from("<I", body)
            body, stdin = body[4 : 4 + length], body[4 + length :]
        elif kind != "application/json":
            raise Unsupported(f"a process is {PROCESS_MEDIA_TYPE} or application/json, not {kind}")
        wanted = json.loads(body)
        _unknown(sandbox, wanted)
        program, process = self._programs.find(_process_of(sandbox, wanted, stdin))
        record = MockProcess(sandbox.id, process, stdin_open=False, wanted={"id": wanted.get("id"), "stream": True})
        sandbox.processes[record.id] = record

        def left() -> None:
            sandbox.closed += 1
            record.lose("its client left")

        return streamed(Pieces(frames_of(program, process, record), left), MEDIA_TYPE)


def known_process(sandbox: MockSandbox, process_id: str) -> MockProcess:
    """A process by its id. NotFound."""
    process = sandbox.processes.get(process_id)
    if process is None:
        raise NotFound(f"there is no process {process_id} in sandbox {sandbox.id}")
    return process


def _unknown(sandbox: MockSandbox, wanted: Mapping[str, Any]) -> None:
    """Conflict when the id that the client chose is taken, or was deleted."""
    if wanted.get("id") in {*sandbox.processes, *sandbox.deleted_processes}:
        raise Conflict(f"sandbox {sandbox.id} has, or had, a process {wanted['id']}", hint="take another id")


def _process_of(sandbox: MockSandbox, wanted: Mapping[str, Any], stdin: bytes) -> Process:
    pty = wanted.get("pty")
    return Process(
        argv=tuple(wanted["argv"]),
        cwd=wanted.get("cwd") or HOME,
        env=sandbox.spec["env"] | wanted.get("env", {}),
        user=wanted.get("user") or "user",
        timeout_ms=wanted.get("timeout_ms"),
        stdin=stdin,
        files=sandbox.files,
        incoming=(stdin,) if stdin else (),
        pty=None if pty is None else PtySize(**pty),
    )


def offsets(params: Mapping[str, str]) -> dict[str, int | None]:
    """The offsets that a request asks for."""
    return {name: int(params[name]) if name in params else None for name in ("stdout", "stderr")}


def _of_process(method: str, process: MockProcess, rest: list[str], request: httpx.Request, params: Mapping[str, str]) -> httpx.Response:
    match method, rest:
        case "GET", []:
            return answer(process.document())
        case "GET", ["output"]:
            asked, follow = offsets(params), params.get("follow") == "1"
            process.check(asked)
            return streamed(Waiting(lambda closed: process.frames(asked, closed, follow=follow), process.changed), MEDIA_TYPE)
        case "POST", ["stdin"]:
            return answer({"stdin_bytes": process.feed(request.content, close=params.get("close") == "1")})
        case "POST", ["signal"]:
            process.signal(document(request)["signal"])
            return httpx.Response(204)
        case "POST", ["resize"]:
            process.resize(**document(request))
            return httpx.Response(204)
        case "GET", ["connect"]:
            raise Unsupported("this is a WebSocket", hint="send an upgrade")
    raise NotFound(f"there is no {method} {request.url.path}")


# -- files ---------------------------------------------------------------------------------------------------------------


def _file(method: str, tree: MockFiles, rest: list[str], request: httpx.Request) -> httpx.Response:
    params = query(request) if method in ("GET", "PUT") else document(request)
    if not params.get("path"):
        raise InvalidArgument("path is missing")
    path = absolute(params["path"])
    match method, rest:
        case "GET", []:
            return _page(tree.listed(path, int(params.get("depth", 1))), params)
        case "GET", ["stat"]:
            return answer(tree.stat(path, follow=params.get("follow") == "1"))
        case "GET", ["content"]:
            return _content(*tree.content(path), request)
        case "PUT", ["content"]:
            return answer(tree.write(path, request.content, params))
        case "GET", ["watch"]:
            recursive = params.get("recursive") == "1"
            tree.stat(path, follow=True)
            return streamed(Waiting(lambda closed: tree.watch(path, closed, recursive=recursive), tree.changed), "application/x-ndjson")
        case "POST", ["remove"]:
            tree.remove(path, params)
            return httpx.Response(204)
        case "POST", ["mkdir"]:
            return answer(tree.mkdir(path, params))
        case "POST", ["move"]:
            return answer(tree.move(path, params))
        case "POST", ["chmod" | "chown" | "symlink" as verb]:
            return answer(tree.change(verb, path, params))
    raise NotFound(f"there is no {method} {request.url.path}")


def _page(files: list[dict[str, Any]], params: Mapping[str, str]) -> httpx.Response:
    at = int(params.get("cursor", 0))
    end = at + min(PAGE, int(params.get("limit", PAGE)))
    return answer({"files": files[at:end], "next_cursor": str(end) if end < len(files) else None})


def _content(data: bytes, etag: str, request: httpx.Request) -> httpx.Response:
    if request.headers.get("if-match", etag) != etag:
        raise Conflict(f"the file's ETag is {etag}, and If-Match names another", hint="read it again")
    headers, status = {"etag": etag, "accept-ranges": "bytes"}, 200
    first, last = 0, len(data) - 1
    if wanted := request.headers.get("range", "").removeprefix("bytes="):
        begin, _, end = wanted.partition("-")
        first, last = int(begin), min(int(end or last), last)
        if first >= len(data):
            problem = {"code": "invalid_argument", "title": "Invalid argument", "detail": f"byte {first} is not in {len(data)} bytes"}
            return httpx.Response(416, headers={"content-range": f"bytes */{len(data)}"}, json=problem)
        status, headers["content-range"] = 206, f"bytes {first}-{last}/{len(data)}"
    some = data[first : last + 1]
    headers["content-length"] = str(len(some))
    return streamed(Pieces(some[at : at + 65536] for at in range(0, len(some), 65536)), "application/octet-stream", status, **headers)
