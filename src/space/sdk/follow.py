"""Reading a kept process over any number of connections: where each stream stands, and what a connection must go on with.

    begin() -> receive(data)... -> the connection breaks -> begin() -> receive(data)... -> exit

Decisions only. Each connection asks for `offsets`; what comes must go on exactly there, so nothing is repeated and nothing is
lost without a `Gap`. An offset that is not known yet (from the oldest byte; the last n bytes) is settled by the first start frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from space.model.errors import ConnectionFailed, ProtocolError, RateLimited, SpaceError, StreamCut, Unavailable
from space.model.frames import Decoder, Frame, Kind
from space.model.process import ProcessInfo
from space.model.sandbox import ExitStatus
from space.sdk.answers import exit_status, problem_document, process_info
from space.sdk.output import STREAMS, Gap, Output, Stream, frame_object

FAILURES = 10  # connections in a row that brought nothing, then the reader is told: about 25 s
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0

End = Literal["exit", "pause"]


class Follower:
    """The place of a reader in a process's output. stdout, stderr: where to begin; None is the oldest byte kept, -n the last n bytes."""

    def __init__(self, stdout: int | None = None, stderr: int | None = None) -> None:
        self._asked: dict[Stream, int | None] = {"stdout": stdout, "stderr": stderr}
        self._at: dict[Stream, int | None] = {
            name: offset if offset is not None and offset >= 0 else None for name, offset in self._asked.items()
        }
        self._loose: set[Stream] = set()
        self._decoder = Decoder()
        self._request_id: str | None = None
        self.info: ProcessInfo | None = None
        self.exit: ExitStatus | None = None
        self.end: End | None = None
        self.progressed = False

    @property
    def offsets(self) -> dict[Stream, int]:
        """Where each stream goes on, as far as it is known."""
        return {name: at for name, at in self._at.items() if at is not None}

    def params(self) -> dict[str, str]:
        """The offsets to ask for, as parameters of a request."""
        wanted = {name: self._asked[name] if self._at[name] is None else self._at[name] for name in STREAMS}
        return {name: str(offset) for name, offset in wanted.items() if offset is not None}

    def begin(self, request_id: str | None = None) -> None:
        """A new connection, made with `params()`."""
        self._decoder = Decoder()
        self._request_id = request_id
        self._loose = {name for name in STREAMS if self._at[name] is None}
        self.progressed = False

    def receive(self, data: bytes) -> Iterator[Output | Gap]:
        """What `data` brings, one by one: the place moves as each is taken, so what comes before a fault is given before it.

        Raises the server's error, ProtocolError, or StreamCut where the streams do not go on where they stood.
        """
        try:
            frames = self._decoder.receive(data)
        except ValueError as error:
            raise ProtocolError(f"the server's process stream is broken: {error}", request_id=self._request_id) from error
        for frame in frames:
            piece = self._take(frame)
            if piece is not None:
                yield piece

    def finish(self) -> None:
        """The connection ended: StreamCut unless that was the end."""
        if self.end is None:
            raise StreamCut("the output ended without its exit frame", request_id=self._request_id)
        if self._decoder.pending:
            raise ProtocolError("bytes follow the exit frame", request_id=self._request_id)

    def salvage(self) -> list[Output]:
        """The connection broke: what of a last, unfinished frame is output. So even one that breaks within every frame gets on."""
        try:
            frame = self._decoder.partial()
        except ValueError:
            frame = None
        self._decoder = Decoder()
        if frame is None or self.end is not None or frame.kind not in (Kind.STDOUT, Kind.STDERR):
            return []
        stream: Stream = "stdout" if frame.kind is Kind.STDOUT else "stderr"
        if frame.offset != self._at[stream]:
            return []  # frames before it were not taken: the fault was theirs
        output = self._output(stream, frame)
        return [] if output is None else [output]

    def _take(self, frame: Frame) -> Output | Gap | None:
        if self.end is not None:
            raise ProtocolError(f"a frame of kind {frame.kind.name} follows the {self.end} frame", request_id=self._request_id)
        match frame.kind:
            case Kind.STDOUT:
                return self._output("stdout", frame)
            case Kind.STDERR:
                return self._output("stderr", frame)
            case Kind.GAP:
                return self._gap(frame_object(frame, self._request_id))
            case Kind.EXIT:
                self._ended(exit_status(frame_object(frame, self._request_id), self._request_id))
            case Kind.PAUSE:
                self.end = "pause"
            case Kind.ERROR:
                document = frame_object(frame, self._request_id)
                raise problem_document(document, str(document.get("code")), self._request_id)
            case Kind.START:
                self._started(process_info(frame_object(frame, self._request_id)))
            case Kind.HEARTBEAT:
                self.progressed = True
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind.name} is out of place", request_id=self._request_id)
        return None

    def _started(self, info: ProcessInfo) -> None:
        self.info = info
        bounds: dict[Stream, tuple[int, int]] = {
            "stdout": (info.stdout_first, info.stdout_bytes),
            "stderr": (info.stderr_first, info.stderr_bytes),
        }
        for name in self._loose:
            first, produced = bounds[name]
            asked = self._asked[name]
            self._at[name] = first if asked is None else max(first, produced + asked)

    def _output(self, stream: Stream, frame: Frame) -> Output | None:
        self._settle(stream, frame.offset)
        self._at[stream] = frame.offset + len(frame.payload)
        self.progressed = True
        return Output(stream, frame.offset, frame.payload) if frame.payload else None

    def _gap(self, document: dict[str, Any]) -> Gap:
        stream, offset, lost = document.get("stream"), document.get("offset"), document.get("bytes")
        if stream not in STREAMS or not isinstance(offset, int) or not isinstance(lost, int) or lost < 1:
            raise ProtocolError(f"a gap frame that says nothing: {str(document)[:200]}", request_id=self._request_id)
        name: Stream = "stdout" if stream == "stdout" else "stderr"
        self._settle(name, offset)
        self._at[name] = offset + lost
        self.progressed = True
        return Gap(name, offset, lost)

    def _settle(self, stream: Stream, offset: int) -> None:
        """Output that was asked for without a number begins where the server says; any other goes on where it stood."""
        if stream not in self._loose and offset != self._at[stream]:
            raise StreamCut(f"{stream} goes on at byte {offset} and byte {self._at[stream]} is next", request_id=self._request_id)
        self._loose.discard(stream)

    def _ended(self, status: ExitStatus) -> None:
        totals: dict[Stream, int] = {"stdout": status.stdout_bytes, "stderr": status.stderr_bytes}
        for name, total in totals.items():
            at = self._at[name]
            if at is not None and at != total:
                raise StreamCut(f"{name} has {total} bytes and {at} arrived", request_id=self._request_id)
        self.exit = status
        self.end = "exit"
        self.progressed = True


def wait_before_reattach(failures: int, fault: SpaceError, chance: float) -> float | None:
    """Seconds to wait after `failures` connections in a row that brought nothing, or None: tell the reader. chance: 0 to 1, random."""
    if not isinstance(fault, (ConnectionFailed, StreamCut, Unavailable, RateLimited)) or failures >= FAILURES:
        return None
    longest: float = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** max(failures - 1, 0))
    return longest * (0.5 + chance / 2)
