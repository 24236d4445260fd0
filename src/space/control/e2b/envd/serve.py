"""Where a request to the in-sandbox API goes.

    /process.Process/*, /filesystem.Filesystem/*    the Connect protocol with JSON (`connect`)
    /files, /metrics, /envs, /health                plain HTTP

Nothing listens in the guest for it: each call is a verb of the guest channel, and rules of its own it has none.
"""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from space.control import answers
from space.control.answers import Answer
from space.control.call import Call
from space.control.e2b.envd.connect import STREAM, UNARY, Fault, Outlet, answered, deadline, streamed
from space.control.e2b.envd.figures import figures
from space.control.e2b.envd.filesystem import Filesystem
from space.control.e2b.envd.processes import Processes
from space.control.e2b.envd.room import Room
from space.control.e2b.envd.transfers import Files
from space.control.e2b.seat import Seat
from space.control.keys import Key
from space.control.problems import MethodNotAllowed
from space.control.services import Services
from space.model.errors import NotFound

_PROCESS, _FILES = "/process.Process/", "/filesystem.Filesystem/"
# Methods with one answer; the others have a stream.
_ANSWERED = {
    _PROCESS + "List": (Processes, "list"),
    _PROCESS + "Update": (Processes, "update"),
    _PROCESS + "SendInput": (Processes, "send_input"),
    _PROCESS + "SendSignal": (Processes, "send_signal"),
    _PROCESS + "CloseStdin": (Processes, "close_stdin"),
    _FILES + "Stat": (Filesystem, "stat"),
    _FILES + "MakeDir": (Filesystem, "make_dir"),
    _FILES + "Move": (Filesystem, "move"),
    _FILES + "ListDir": (Filesystem, "list_dir"),
    _FILES + "Remove": (Filesystem, "remove"),
    _FILES + "CreateWatcher": (Filesystem, "create_watcher"),
    _FILES + "GetWatcherEvents": (Filesystem, "get_watcher_events"),
    _FILES + "RemoveWatcher": (Filesystem, "remove_watcher"),
}
_STREAMED = {
    _PROCESS + "Start": (Processes, "start"),
    _PROCESS + "Connect": (Processes, "connect"),
    _PROCESS + "StreamInput": (Processes, "stream_input"),
    _FILES + "WatchDir": (Filesystem, "watch_dir"),
}
_PLAIN = {"/health": ("GET", "HEAD"), "/metrics": ("GET",), "/envs": ("GET",), "/files": ("GET", "POST")}


async def serve(scope: Scope, receive: Receive, send: Send, services: Services, seat: Seat) -> None:
    """Answer a request that was let in. NotFound, MethodNotAllowed, and faults of plain HTTP; ClientGone, CutOff."""
    path, method = scope["path"], scope["method"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    key = Key("e2b-token", seat.tenant, "", "", b"", 0)
    call = Call(scope, receive, key, "", {}, [], headers, "e2b envd", seat.sandbox)
    room = Room.of(services, seat)
    if path in _ANSWERED or path in _STREAMED:
        _allow(path, method, ("POST",))
        await _rpc(call, room, send, path)
        return
    if path not in _PLAIN:
        raise NotFound(f"the in-sandbox API has nothing at {path[:200]!r}")
    _allow(path, method, _PLAIN[path])
    match path:
        case "/health":
            await answers.nothing().send(send)
        case "/metrics":
            await _json(await call.while_there(figures(room))).send(send)
        case "/envs":
            await _json(dict(room.env)).send(send)
        case _:
            files = Files(call, room)
            await (files.write(send) if method == "POST" else files.read(send))


async def _rpc(call: Call, room: Room, send: Send, path: str) -> None:
    wanted = UNARY if path in _ANSWERED else STREAM
    if call.media_type != wanted:
        # As the protocol says it: no body, and what would be right.
        await Answer(415, headers={"Accept-Post": wanted}).send(send)
        return
    if path in _ANSWERED:
        kind, name = _ANSWERED[path]
        await answered(call, send, getattr(kind(call, room), name))
        return
    outlet = Outlet(send)
    kind, name = _STREAMED[path]
    try:
        seconds = deadline(call.headers)
    except Fault as fault:
        await outlet.end(fault)
        return
    await streamed(outlet, lambda: getattr(kind(call, room), name)(outlet, seconds))


def _allow(path: str, method: str, methods: tuple[str, ...]) -> None:
    if method not in methods:
        raise MethodNotAllowed(f"{method[:16]} is not possible on {path}", allowed=methods)


def _json(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value), "application/json")
