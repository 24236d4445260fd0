"""How frames of a process are written (docs/protocol.md, section 4), and what each event of the node's stream is as a frame."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from space.control.link import decoded
from space.control.route import NDJSON
from space.control.wire_processes import process_info
from space.core.wire.events import Data, Message
from space.model import frames
from space.model.errors import ProtocolError, SandboxDied, Unsupported
from space.model.frames import Kind
from space.model.sandbox import ExitStatus
from space.rpc.node_api import Attached, Exited, Gap, Lost, Paused, Started

_EVENTS = Started | Attached | Gap | Exited | Paused | Lost
_LANES = (Kind.STDOUT, Kind.STDERR)


class Form(Protocol):
    """How frames are written."""

    media_type: str

    def told(self, kind: Kind, fields: Any) -> bytes:
        """A frame with fields."""

    def output(self, kind: Kind, data: bytes, offset: int) -> bytes:
        """A frame with bytes."""


class Binary:
    """Frames as they are."""

    media_type = frames.MEDIA_TYPE

    def told(self, kind: Kind, fields: Any) -> bytes:
        return frames.encode(kind, msgspec.json.encode(fields) if kind is not Kind.HEARTBEAT else b"")

    def output(self, kind: Kind, data: bytes, offset: int) -> bytes:
        return frames.encode(kind, data, offset)


class Lines:
    """One JSON object a line, bytes in base64."""

    media_type = NDJSON

    def told(self, kind: Kind, fields: Any) -> bytes:
        return msgspec.json.encode({"kind": kind.name.lower(), **msgspec.to_builtins(fields)}) + b"\n"

    def output(self, kind: Kind, data: bytes, offset: int) -> bytes:
        line = {"kind": kind.name.lower(), "offset": offset, "data_base64": base64.b64encode(data).decode()}
        return msgspec.json.encode(line) + b"\n"


def form_for(accept: str) -> Form:
    """The first media type that both sides know; Unsupported otherwise."""
    for part in (accept or "*/*").split(","):
        match part.partition(";")[0].strip().lower():
            case frames.MEDIA_TYPE | "*/*" | "application/*":
                return Binary()
            case "application/x-ndjson":
                return Lines()
            case _:
                pass
    raise Unsupported(f"cannot answer as {accept[:80]!r}", hint=f"accept {frames.MEDIA_TYPE} or {NDJSON}")


@dataclass(slots=True)
class Told:
    """Events to frames, with the offsets of both outputs. What does not add up is a ProtocolError."""

    form: Form
    counts: dict[Kind, int] = field(default_factory=lambda: {Kind.STDOUT: 0, Kind.STDERR: 0})

    def frame(self, event: Data | Message) -> tuple[bytes, bool]:
        """The frame, and whether it is the last. The process's fault, or its sandbox's, is raised."""
        if isinstance(event, Data):
            kind = _LANES[bool(event.lane)]
            offset = self.counts[kind]
            self.counts[kind] += len(event.payload)
            return self.form.output(kind, event.payload, offset), False
        match decoded(event, _EVENTS):
            case Started(pid, process):
                return self.form.told(Kind.START, {"pid": pid, "process": process}), False
            case Attached(info, stdout, stderr):
                self.counts = {Kind.STDOUT: stdout, Kind.STDERR: stderr}
                return self.form.told(Kind.START, process_info(info)), False
            case Gap(lane, offset, missing):
                return self._gap(_LANES[bool(lane)], offset, missing), False
            case Paused(stdout, stderr):
                self._whole("gave", stdout, stderr)
                return self.form.told(Kind.PAUSE, {"stdout": stdout, "stderr": stderr}), True
            case Exited() as told:
                self._whole("wrote", told.stdout_bytes, told.stderr_bytes)
                return self.form.told(Kind.EXIT, exit_status(told)), True
            case Lost(reason):
                raise SandboxDied(f"the sandbox ended before its process did: {reason}", hint="how it would have ended is not known")
        raise AssertionError

    def _gap(self, kind: Kind, offset: int, missing: int) -> bytes:
        if missing < 0 or offset > self.counts[kind] or offset + missing < self.counts[kind]:
            raise ProtocolError(f"the node tells of {missing} bytes missing from {offset} on, and {self.counts[kind]} have come")
        self.counts[kind] = offset + missing
        return self.form.told(Kind.GAP, {"stream": kind.name.lower(), "offset": offset, "bytes": missing})

    def _whole(self, what: str, stdout: int, stderr: int) -> None:
        seen = (self.counts[Kind.STDOUT], self.counts[Kind.STDERR])
        if seen != (stdout, stderr):
            raise ProtocolError(f"the process {what} {stdout} and {stderr} bytes, and {seen[0]} and {seen[1]} arrived")


def exit_status(told: Exited) -> ExitStatus:
    """The node's words as ours."""
    return ExitStatus(told.code, told.signal, told.oom_killed, told.timed_out, told.wall_ms, told.stdout_bytes, told.stderr_bytes)
