r"""An in-memory server for the tests of programs that use the SDK: no network, no VM, the same requests and answers.

    server = MockServer()

    @server.program("python3")
    def python(process: Process) -> Reply:
        return Reply(stdout=b"42\n")

    with Sandbox.create(client=server.client()) as sandbox:
        assert sandbox.run(["python3", "-c", "print(6*7)"]).text == "42\n"

It knows `true`, `false`, `exit N`, `echo`, `cat` and `sh -c` of one of these; other programs are functions of
yours. Trees go in and come out (`sandbox.files`). `fail_next` makes the next request fail. `listen()` serves it on a
loopback port, for programs that are processes of their own.
"""

from __future__ import annotations

import io
import json
import posixpath
import shlex
import struct
import tarfile
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import httpx

from space.model.errors import InvalidArgument, NotFound, SpaceError, Unauthenticated, Unsupported
from space.model.frames import MEDIA_TYPE, PROCESS_MEDIA_TYPE, Kind, encode
from space.model.ids import new_request_id, new_sandbox_id
from space.model.sandbox import Phase, SandboxSpec
from space.sdk._async.client import AsyncClient
from space.sdk._sync.client import Client

HOME = "/home/user"
_PAGE = 2  # small, so that every list of three is read in pages


@dataclass(frozen=True, slots=True)
class Process:
    """A command as the server got it. files: the sandbox's, by absolute path; a program may change them."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    user: str
    timeout_ms: int | None
    stdin: bytes
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a program does. pieces: further output in order, as ("stdout" or "stderr", bytes), taken one by one.

    cut: the stream ends without an exit frame, as when the server dies.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = 0
    signal: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    pieces: Iterable[tuple[str, bytes]] = ()
    cut: bool = False


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
    closed: int = 0

    def document(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "id": self.id,
            "phase": str(self.phase),
            "spec": self.spec,
            "created_at": self.created_at,
            "expires_at": self.created_at + self.spec["ttl_seconds"],
            "revision": self.revision,
            "isolation": "none (mock)",
            "reason": None,
        }


Program = Callable[[Process], Reply]


class MockServer:
    """The server. `requests` records (method, path) of everything that came; `sandboxes` is by id."""

    def __init__(self, *, key: str = "mock-key") -> None:
        self.key = key
        self.url = "http://space.test"
        self.sandboxes: dict[str, MockSandbox] = {}
        self.requests: list[tuple[str, str]] = []
        self.transport = httpx.MockTransport(self.handle)
        self._programs: dict[str, Program] = dict(_BUILTIN)
        self._faults: list[tuple[str, BaseException]] = []
        self._created: dict[str, str] = {}
        self._keys: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def client(self) -> Client:
        """A client of this server."""
        return Client(api_url=self.url, api_key=self.key, transport=self.transport)

    def async_client(self) -> AsyncClient:
        """A client of this server, for asyncio."""
        return AsyncClient(api_url=self.url, api_key=self.key, transport=self.transport)

    def program(self, name: str) -> Callable[[Program], Program]:
        """Decorates the function that plays the program `name`."""

        def register(function: Program) -> Program:
            self._programs[name] = function
            return function

        return register

    def fail_next(self, fault: BaseException, *, path: str = "", after: bool = False) -> None:
        """The next request whose path contains `path` ends in `fault`: a SpaceError as a problem, another one raised as it is.

        after: the request is done first, so that only its answer is lost.
        """
        self._faults.append((("after " if after else "before ") + path, fault))

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One request, whole; its answer."""
        path = request.url.path
        with self._lock:
            self.requests.append((request.method, path))
        try:
            self._raise_fault("before ", path)
            if path != "/healthz" and request.headers.get("authorization") != f"Bearer {self.key}":
                raise Unauthenticated("the key is not known", hint="is it the right server?")
            response = self._route(request, [part for part in path.split("/") if part])
            self._raise_fault("after ", path)
        except SpaceError as error:
            return _problem(error)
        return response

    @contextmanager
    def listen(self) -> Iterator[str]:
        """Serve on a free port of 127.0.0.1 from a thread; the value is the URL."""
        server = _listener(self)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    # -- routes --------------------------------------------------------------------------------------------------------
    def _raise_fault(self, when: str, path: str) -> None:
        for index, (where, fault) in enumerate(self._faults):
            if where.startswith(when) and where.removeprefix(when) in path:
                del self._faults[index]
                raise fault

    def _route(self, request: httpx.Request, parts: list[str]) -> httpx.Response:
        match request.method, parts:
            case "GET", ["healthz"]:
                return httpx.Response(200, json={"status": "ok", "version": "mock", "isolation": "none (mock)"})
            case "GET", ["v1", "templates"]:
                return httpx.Response(200, json={"templates": [{"name": "base"}]})
            case "POST", ["v1", "sandboxes"]:
                return self._create(request)
            case "GET", ["v1", "sandboxes"]:
                return self._list(request)
            case method, ["v1", "keys", *rest]:
                return self._key(method, rest, request)
            case method, ["v1", "sandboxes", sandbox_id, *rest]:
                sandbox = self.sandboxes.get(sandbox_id)
                if sandbox is None:
                    raise NotFound(f"there is no sandbox {sandbox_id}")
                return self._sandbox(method, sandbox, rest, request)
        raise NotFound(f"there is no {request.method} {request.url.path}")

    def _create(self, request: httpx.Request) -> httpx.Response:
        wanted = json.loads(request.content)
        spec = asdict(SandboxSpec())
        if unknown := set(wanted) - set(spec):
            raise InvalidArgument(f"unknown field {min(unknown)!r}")
        if wanted.get("template", "base") != "base":
            raise NotFound(f"there is no template {wanted['template']!r}")
        spec |= wanted
        repeat = request.headers.get("idempotency-key", "")
        with self._lock:
            if repeat in self._created:
                return httpx.Response(200, json=self.sandboxes[self._created[repeat]].document())
            sandbox = MockSandbox(new_sandbox_id(), spec, time.time())
            self.sandboxes[sandbox.id] = sandbox
            if repeat:
                self._created[repeat] = sandbox.id
        return httpx.Response(201, json=sandbox.document())

    def _list(self, request: httpx.Request) -> httpx.Response:
        params = parse_qs(request.url.query.decode())
        found = [s for s in sorted(self.sandboxes.values(), key=lambda s: s.id) if s.id > params.get("cursor", [""])[0]]
        if "phase" in params:
            found = [sandbox for sandbox in found if sandbox.phase == params["phase"][0]]
        page, more = found[:_PAGE], found[_PAGE:]
        cursor = page[-1].id if more else None
        return httpx.Response(200, json={"sandboxes": [sandbox.document() for sandbox in page], "next_cursor": cursor})

    def _key(self, method: str, rest: list[str], request: httpx.Request) -> httpx.Response:
        match method, rest:
            case "GET", []:
                return httpx.Response(200, json={"keys": list(self._keys.values())})
            case "POST", []:
                wanted = json.loads(request.content)
                made = {"id": f"key-{len(self._keys) + 1}", "created_at": time.time(), "revoked_at": None, **wanted}
                self._keys[made["id"]] = made
                return httpx.Response(201, json={**made, "key": f"secret-{made['id']}"})
            case "DELETE", [key_id] if key_id in self._keys:
                self._keys[key_id]["revoked_at"] = time.time()
                return httpx.Response(204)
        raise NotFound("there is no such key")

    def _sandbox(self, method: str, sandbox: MockSandbox, rest: list[str], request: httpx.Request) -> httpx.Response:
        match method, rest:
            case "GET", []:
                return httpx.Response(200, json=sandbox.document())
            case "DELETE", []:
                del self.sandboxes[sandbox.id]
                return httpx.Response(204)
            case "POST", ["pause" | "resume" as verb]:
                sandbox.phase = Phase.PAUSED if verb == "pause" else Phase.RUNNING
                sandbox.revision += 1
                return httpx.Response(200, json=sandbox.document())
            case "POST", ["noop"]:
                return httpx.Response(200, json={})
            case "GET", ["metrics"]:
                names = ["memory_total", "memory_available", "cpu_user_ms", "cpu_system_ms", "disk_total", "disk_used"]
                names += ["processes", "uptime_ms", "load1_milli", "host_memory_bytes", "host_cpu_ms"]
                return httpx.Response(200, json=dict.fromkeys(names, 1))
            case "POST", ["processes"]:
                return self._run(sandbox, request)
            case "PUT", ["tree"]:
                return _put_tree(sandbox, _tree_place(request), request.content)
            case "GET", ["tree"]:
                return httpx.Response(200, stream=_Pieces(iter([_get_tree(sandbox, _tree_place(request))])))
        raise NotFound(f"there is no {method} {request.url.path}")

    def _run(self, sandbox: MockSandbox, request: httpx.Request) -> httpx.Response:
        body, stdin = request.content, b""
        kind = request.headers["content-type"]
        if kind == PROCESS_MEDIA_TYPE:
            (length,) = struct.unpack_from("<I", body)
            body, stdin = body[4 : 4 + length], body[4 + length :]
        elif kind != "application/json":
            raise Unsupported(f"a process is {PROCESS_MEDIA_TYPE} or application/json, not {kind}")
        wanted = json.loads(body)
        process = Process(
            argv=tuple(wanted["argv"]),
            cwd=wanted.get("cwd") or HOME,
            env=sandbox.spec["env"] | wanted.get("env", {}),
            user=wanted.get("user") or "user",
            timeout_ms=wanted.get("timeout_ms"),
            stdin=stdin,
            files=sandbox.files,
        )
        reply = self._reply(process)

        def left() -> None:
            sandbox.closed += 1

        headers = {"content-type": MEDIA_TYPE, "x-request-id": new_request_id()}
        return httpx.Response(200, headers=headers, stream=_Pieces(_frames(reply), left))

    def _reply(self, process: Process) -> Reply:
        name = posixpath.basename(process.argv[0])
        if name == "sh" and len(process.argv) == 3:
            words = shlex.split(process.argv[2])
            process = Process(tuple(words), process.cwd, process.env, process.user, process.timeout_ms, process.stdin, process.files)
            name = posixpath.basename(words[0])
        program = self._programs.get(name)
        if program is None:
            raise NotFound(f"there is no program {process.argv[0]!r} in the sandbox")
        return program(process)


_BUILTIN: dict[str, Program] = {
    "true": lambda _: Reply(),
    "false": lambda _: Reply(exit_code=1),
    "exit": lambda process: Reply(exit_code=int(process.argv[1])),
    "echo": lambda process: Reply(stdout=" ".join(process.argv[1:]).encode() + b"\n"),
    "cat": lambda process: Reply(stdout=process.stdin),
}


def _frames(reply: Reply) -> Iterator[bytes]:
    yield encode(Kind.START, json.dumps({"pid": 2}).encode())
    sent = {"stdout": 0, "stderr": 0}
    first = (("stdout", reply.stdout), ("stderr", reply.stderr))
    for output in (first, reply.pieces):
        for stream, data in output:
            for at in range(0, len(data), 65536):
                piece = data[at : at + 65536]
                yield encode(Kind.STDOUT if stream == "stdout" else Kind.STDERR, piece, sent[stream])
                sent[stream] += len(piece)
    if not reply.cut:
        status = {"code": reply.exit_code, "signal": reply.signal, "oom_killed": reply.oom_killed, "timed_out": reply.timed_out}
        yield encode(Kind.EXIT, json.dumps(status | {f"{k}_bytes": v for k, v in sent.items()} | {"wall_ms": 1}).encode())


class _Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that is made while it is read, by either client."""

    def __init__(self, pieces: Iterator[bytes], left_early: Callable[[], None] = lambda: None) -> None:
        self._pieces = pieces
        self._left_early = left_early
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        self._ended = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._left_early()

    async def aclose(self) -> None:
        self.close()


def _problem(error: SpaceError) -> httpx.Response:
    request_id = new_request_id()
    document = {"type": f"urn:space:problem:{error.code}", "code": error.code, "title": error.title, "status": error.status}
    document |= {"detail": error.message, "request_id": request_id} | ({"hint": error.hint} if error.hint else {})
    headers = {"content-type": "application/problem+json", "x-request-id": request_id}
    return httpx.Response(error.status, headers=headers, content=json.dumps(document).encode())


def _tree_place(request: httpx.Request) -> str:
    return posixpath.normpath(posixpath.join(HOME, request.url.params["path"]))


def _put_tree(sandbox: MockSandbox, place: str, body: bytes) -> httpx.Response:
    entries = 0
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        for member in archive:
            entries += 1
            path = posixpath.normpath(posixpath.join(place, member.name))
            sandbox.members[path] = member
            if member.isreg():
                file = archive.extractfile(member)
                assert file is not None
                sandbox.files[path] = file.read()
    return httpx.Response(200, json={"entries": entries, "bytes": len(body), "crc32": zlib.crc32(body)})


def _get_tree(sandbox: MockSandbox, place: str) -> bytes:
    known: dict[str, tarfile.TarInfo | None] = {**dict.fromkeys(sandbox.files), **sandbox.members}
    if place not in known and not any(path.startswith(f"{place}/") for path in known):
        raise NotFound(f"there is no {place} in the sandbox")
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in known if path == place or path.startswith(f"{place}/")):
            info = known[path] or tarfile.TarInfo()
            is_single = path == place and path in sandbox.files
            info.name = posixpath.basename(path) if is_single else "./" + posixpath.relpath(path, place)
            info.pax_headers = {}
            data = sandbox.files.get(path)
            info.size = len(data) if data is not None else 0
            archive.addfile(info, io.BytesIO(data) if data is not None else None)
    return output.getvalue()


def _listener(mock: MockServer) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = self.headers.get("content-length")
            body = self.rfile.read(int(length)) if length is not None else b"".join(self._chunks())
            request = httpx.Request(self.command, mock.url + self.path, headers=list(self.headers.items()), content=body)
            response = mock.handle(request)
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                if name != "content-length":
                    self.send_header(name, value)
            if response.status_code == 204:
                self.end_headers()
                return
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            assert isinstance(response.stream, httpx.SyncByteStream)
            try:
                for piece in response.stream:
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                response.stream.close()
                self.close_connection = True

        def _chunks(self) -> Iterator[bytes]:
            if self.headers.get("transfer-encoding") != "chunked":
                return
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815  # the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Tests print what they want to see."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    return server
