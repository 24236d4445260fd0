"""The routes of processes."""

from __future__ import annotations

from space.control import attached, process_input, processes
from space.control.route import GUEST, JSON, NDJSON, SANDBOX, Access, Body, Query, Reply, Route
from space.control.wire_processes import ProcessList, ProcessRequest, SignalRequest, StdinInfo, WindowRequest
from space.model import frames
from space.model.errors import DeadlineExceeded, NoCapacity, ProtocolError
from space.model.process import ProcessInfo
from space.model.sandbox import ExitStatus

_PROCESS = SANDBOX + "/processes/{process}"
_BOOLEAN = {"type": "boolean", "default": False}
_FRAMES = {frames.MEDIA_TYPE: None, NDJSON: None}
# What the node keeps of a process is there without its guest.
_KEPT = (DeadlineExceeded, ProtocolError)
_FROM = tuple(
    Query(name, f"Offset of the first byte of {name}; negative: from the end; missing: the oldest that is kept", {"type": "integer"})
    for name in ("stdout", "stderr")
)
_SOCKET = "Binary messages of whole frames both ways (docs/protocol.md, section 4); subprotocol " + attached.SUBPROTOCOL

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        SANDBOX + "/processes",
        "run_process",
        "Run a command: with stream=1 attached to this request, else in the background",
        Access.TENANT,
        processes.start,
        (
            Reply(200, "stream=1: its life as frames or lines, ended by one exit or error", _FRAMES, ExitStatus),
            Reply(201, "It runs in the background", {JSON: ProcessInfo}),
        ),
        errors=(*GUEST, NoCapacity),
        query=(Query("stream", "1: attached, and leaving kills it unless kill_on_disconnect is false", _BOOLEAN),),
        body=Body({JSON: ProcessRequest, frames.PROCESS_MEDIA_TYPE: None}),
    ),
    Route(
        "GET",
        SANDBOX + "/processes",
        "list_processes",
        "A sandbox's processes, oldest first; also those that have ended, and of a sandbox that has ended",
        Access.TENANT,
        process_input.listed,
        (Reply(200, "All of them", {JSON: ProcessList}),),
        errors=_KEPT,
        query=(Query("state", "Only those in this state", {"type": "string", "enum": ["running", "exited", "lost"]}),),
        reserved=True,
        audit=False,
    ),
    Route(
        "GET",
        _PROCESS,
        "get_process",
        "One process",
        Access.TENANT,
        process_input.get,
        (Reply(200, "As it is now", {JSON: ProcessInfo}),),
        errors=_KEPT,
        reserved=True,
        audit=False,
    ),
    Route(
        "DELETE",
        _PROCESS,
        "delete_process",
        "Kill everything of a process and drop its output; idempotent",
        Access.TENANT,
        process_input.delete,
        (Reply(204, "It is forgotten", {}),),
        errors=GUEST,
    ),
    Route(
        "GET",
        _PROCESS + "/output",
        "process_output",
        "What a process wrote, from any offset on; what is kept no longer is told by a gap",
        Access.TENANT,
        attached.output,
        (Reply(200, "Frames or lines: start, output, gaps, and one exit, pause or error", _FRAMES, ExitStatus),),
        errors=GUEST,
        query=(*_FROM, Query("follow", "1: until it ends; else until all is told, then pause", _BOOLEAN)),
    ),
    Route(
        "POST",
        _PROCESS + "/stdin",
        "process_stdin",
        "Write to a process's stdin; answered when it has taken all of it",
        Access.TENANT,
        process_input.stdin,
        (Reply(200, "It took everything", {JSON: StdinInfo}),),
        errors=GUEST,
        query=(Query("close", "1: and that was the end", _BOOLEAN),),
        body=Body({"application/octet-stream": None}, required=False),
    ),
    Route(
        "POST",
        _PROCESS + "/signal",
        "signal_process",
        "Send a signal to a process's group, or to everything that it started",
        Access.TENANT,
        process_input.signal,
        (Reply(204, "It is sent", {}),),
        errors=GUEST,
        body=Body({JSON: SignalRequest}),
    ),
    Route(
        "POST",
        _PROCESS + "/resize",
        "resize_process",
        "Give a process's terminal another size",
        Access.TENANT,
        process_input.resize,
        (Reply(204, "It has it", {}),),
        errors=GUEST,
        body=Body({JSON: WindowRequest}),
    ),
    Route(
        "GET",
        _PROCESS + "/connect",
        "connect_process",
        "A WebSocket to a process: its output and its stdin, signals and the terminal's size",
        Access.TENANT,
        attached.connect,
        (Reply(101, "Frames both ways, until exit (then 1000) or an error (then 1011)", {}, ExitStatus),),
        errors=GUEST,
        query=(*_FROM, Query("kill_on_disconnect", "1: the end of the connection kills it", _BOOLEAN)),
        socket=_SOCKET,
    ),
)
