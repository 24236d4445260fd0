"""Requests and answers of the process routes, and what of them no kernel could take."""

from __future__ import annotations

import signal
from typing import Annotated, Literal

from msgspec import Meta, Struct

from space.control.wire import check_text, check_user, environment
from space.model.errors import InvalidArgument, NotFound
from space.model.ids import process_id
from space.model.process import ProcessInfo
from space.model.sandbox import ExitStatus
from space.rpc import node_api

_LEAST_SPOOL = 64 * 1024
_MOST_SPOOL = 1 << 40


class WindowRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a terminal, in lines and columns."""

    rows: Annotated[int, Meta(ge=1, le=65_535)]
    cols: Annotated[int, Meta(ge=1, le=65_535)]


class ProcessRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A command. cwd: absolute, missing for the user's home. timeout_ms: missing for no limit.

    id: the process's, `pr-` and 16 hex digits (make them at random); missing: the server makes one. Of a process in the background the
    same request with the same id answers the process that the first one has made; any other with that id, or one that comes after the
    process was deleted, is a conflict.

    stdin: text, or stdin_base64: bytes; attached processes only. stdin_open: it may be written to later, through other requests; a
    terminal (pty) without stdin of its own implies it. kill_on_disconnect: whether an attached process ends with its connection; missing:
    it does. overflow: what happens when the server keeps spool_bytes of its output (missing: the server's setting): `block` holds the
    process back while somebody is attached who has not read it, `drop_oldest` never does; missing: `block` attached, else `drop_oldest`.
    """

    argv: Annotated[list[str], Meta(min_length=1, max_length=65_536)]
    id: Annotated[str, Meta(pattern=r"^pr-[0-9a-f]{16}\Z")] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    timeout_ms: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    stdin: str | None = None
    stdin_base64: bytes | None = None
    pty: WindowRequest | None = None
    stdin_open: bool = False
    kill_on_disconnect: bool | None = None
    overflow: Literal["block", "drop_oldest"] | None = None
    spool_bytes: Annotated[int, Meta(ge=_LEAST_SPOOL, le=_MOST_SPOOL)] | None = None


class SignalRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A signal, by number or name (`TERM`, `SIGTERM`), to the process's group, or with all to everything that it started."""

    signal: int | Annotated[str, Meta(max_length=16)]
    all: bool = False


class ProcessList(Struct, frozen=True):
    """A sandbox's processes, oldest first."""

    processes: list[ProcessInfo]


class StdinInfo(Struct, frozen=True):
    """stdin_bytes: all that the process's stdin has taken over its whole life."""

    stdin_bytes: int


class StartFrame(Struct, frozen=True):
    """The start frame of a process that this request has started."""

    pid: int
    process: str


class GapFrame(Struct, frozen=True):
    """Output that is kept no longer: `bytes` of them from `offset` on."""

    stream: Literal["stdout", "stderr"]
    offset: int
    bytes: int


class PauseFrame(Struct, frozen=True):
    """That is all so far, and the process runs on. stdout, stderr: the offsets to ask from."""

    stdout: int
    stderr: int


def process_info(told: node_api.ProcessInfo) -> ProcessInfo:
    """The node's words as ours."""
    ended = told.code is not None or told.signal is not None
    status = ExitStatus(told.code, told.signal, told.oom_killed, told.timed_out, told.wall_ms or 0, told.stdout_bytes, told.stderr_bytes)
    return ProcessInfo(
        id=told.process,
        sandbox=told.sandbox,
        pid=told.pid,
        argv=told.argv,
        cwd=told.cwd,
        user=told.user,
        pty=told.pty,
        state=told.state,
        started_at=told.started_us / 1e6,
        ended_at=None if told.ended_us is None else told.ended_us / 1e6,
        stdout_bytes=told.stdout_bytes,
        stderr_bytes=told.stderr_bytes,
        stdout_first=told.stdout_first,
        stderr_first=told.stderr_first,
        stdin=told.stdin,
        stdin_bytes=told.stdin_bytes,
        exit=status if ended else None,
        reason=told.reason,
    )


def check_process(request: ProcessRequest, *, attached: bool = True) -> ProcessRequest:
    """The request, when a kernel could take it; InvalidArgument names the field."""
    for index, argument in enumerate(request.argv):
        check_text(f"argv[{index}]", argument)
    if not request.argv[0]:
        raise InvalidArgument("argv[0]: the program has no name", hint='the first of argv is the program: ["ls", "-l"]')
    environment(request.env)
    if request.cwd is not None:
        check_text("cwd", request.cwd)
        if not request.cwd.startswith("/"):
            raise InvalidArgument(f"cwd: {request.cwd[:80]!r} is not absolute", hint="begin it with /, or leave it out for the user's home")
    check_user(request.user)
    if request.stdin is not None and request.stdin_base64 is not None:
        raise InvalidArgument("stdin and stdin_base64 were both given", hint="give one of them")
    if not attached:
        if request.stdin is not None or request.stdin_base64 is not None:
            raise InvalidArgument(
                "stdin: a process in the background takes none with its request", hint="give stdin_open, then POST .../stdin"
            )
        if request.kill_on_disconnect:
            raise InvalidArgument("kill_on_disconnect: this process is attached to nothing", hint="ask with stream=1, or leave it out")
    return request


def check_process_id(text: str) -> str:
    """A process's id; NotFound when it cannot be one."""
    try:
        return process_id(text)
    except ValueError:
        raise NotFound(f"there is no process {text[:64]!r}", hint="GET .../processes lists the sandbox's") from None


def signal_number(given: int | str) -> int:
    """A signal's number from its number or name; InvalidArgument otherwise."""
    if isinstance(given, int):
        if not 1 <= given <= 64:
            raise InvalidArgument(f"signal: {given} is none (1 to 64)", hint="TERM is 15, KILL is 9")
        return given
    if given.isascii() and given.isdigit():
        return signal_number(int(given))
    name = given.upper()
    try:
        return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError:
        raise InvalidArgument(f"signal: {given[:16]!r} is no name of one", hint="such as TERM, INT, HUP or KILL") from None
