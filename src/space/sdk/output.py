"""A command's stream of frames, taken apart: bytes in, pieces of output out, a result at the end (docs/protocol.md, section 4).

Success needs the exit frame and output without a gap: an offset that does not fit, or an end without exit frame, is
StreamCut, from which nothing may be concluded.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from space.model.errors import ProtocolError, SpaceError, StreamCut, TooLarge
from space.model.frames import Decoder, Frame, Kind
from space.model.sandbox import ExitStatus
from space.sdk.answers import exit_status, problem_document

Stream = Literal["stdout", "stderr"]
DEFAULT_OUTPUT_LIMIT = 256 << 20
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Output:
    """Output as it arrived. offset: bytes of this stream before it. All output of a terminal is `stdout`."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Output that is lost: `bytes` of this stream from `offset` on were dropped before anybody read them."""

    stream: Stream
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended, and what it wrote.

    Exactly one of `exit_code` (0 to 255) and `signal` (1 to 64) is set. `stdout` and `stderr` are bytes (empty when not
    captured); `text` and `error_text` are the same as text. `wall_ms`: milliseconds in the guest. `timed_out`: the time
    limit passed and the whole process group was killed. `oom_killed`: the guest's kernel killed for memory.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    oom_killed: bool
    timed_out: bool
    wall_ms: int

    @property
    def ok(self) -> bool:
        """Exit code 0, in time."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """stdout as text; bytes that are no UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as text; bytes that are no UTF-8 become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    def described(self) -> str:
        """How it ended, in a few words."""
        how = f"exit code {self.exit_code}" if self.signal is None else f"signal {self.signal}"
        return how + (", out of memory" if self.oom_killed else "") + (", timed out" if self.timed_out else "")


class CommandFailed(SpaceError):
    """A command that was run with `check=True` did not end with exit code 0; `result` holds how it ended and its output."""

    code: ClassVar[str] = "command_failed"
    title: ClassVar[str] = "Command failed"

    def __init__(self, command: str, result: Result) -> None:
        tail = result.error_text.strip()[-400:]
        super().__init__(f"{command} ended with {result.described()}" + (f": {tail}" if tail else ""))
        self.result = result


class OutputLost(SpaceError):
    """Output of a process was dropped before it was read (`overflow="drop_oldest"`). `gaps` names what, `exited` how the process ended."""

    code: ClassVar[str] = "output_lost"
    status: ClassVar[int] = 410
    title: ClassVar[str] = "Output lost"

    def __init__(self, gaps: list[Gap], exited: ExitStatus | None = None) -> None:
        first = gaps[0]
        super().__init__(
            f"{sum(gap.bytes for gap in gaps)} bytes of output were dropped, the first at byte {first.offset} of {first.stream}",
            hint='read while the process runs, give it more spool_bytes, or start it with overflow="block"',
        )
        self.gaps = tuple(gaps)
        self.exited = exited


def frame_object(frame: Frame, request_id: str | None) -> dict[str, Any]:
    """The JSON object that a frame holds."""
    try:
        document = json.loads(frame.payload)
    except ValueError as error:
        raise ProtocolError(f"a {frame.kind.name} frame holds no JSON", request_id=request_id) from error
    if not isinstance(document, dict):
        raise ProtocolError(f"a {frame.kind.name} frame holds no object", request_id=request_id)
    return document


class ProcessStream:
    """Feed it the body as it arrives; ask for the result at its end."""

    def __init__(self, *, capture: bool = True, limit: int = DEFAULT_OUTPUT_LIMIT, request_id: str | None = None) -> None:
        self._decoder = Decoder()
        self._capture = Capture(limit) if capture else None
        self._request_id = request_id
        self._seen: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._exit: dict[str, Any] | None = None
        self.pid: int | None = None
        self.process: str | None = None

    @property
    def has_ended(self) -> bool:
        """The exit frame is there: nothing may follow."""
        return self._exit is not None

    def receive(self, data: bytes) -> Iterator[Output]:
        """The output in `data`, one by one. Raises the server's error, ProtocolError, StreamCut (a gap) or TooLarge (more than is kept)."""
        try:
            frames = self._decoder.receive(data)
        except ValueError as error:
            raise ProtocolError(f"the server's process stream is broken: {error}", request_id=self._request_id) from error
        for frame in frames:
            piece = self._take(frame)
            if piece is not None:
                yield piece

    def result(self) -> Result:
        """The command's result, at the end of the body. StreamCut when the stream ended before its exit frame."""
        if self._exit is None:
            raise self._cut("the server's process stream ended without an exit frame")
        if self._decoder.pending:
            raise ProtocolError("bytes follow the exit frame", request_id=self._request_id)
        # A server that does not count them is an older one.
        status = exit_status({f"{stream}_bytes": seen for stream, seen in self._seen.items()} | self._exit, self._request_id)
        told_of: dict[Stream, int] = {"stdout": status.stdout_bytes, "stderr": status.stderr_bytes}
        for stream, told in told_of.items():
            if told != self._seen[stream]:
                raise self._cut(f"{stream} has {told} bytes and {self._seen[stream]} arrived")
        return result_of(status, self._capture)

    def _take(self, frame: Frame) -> Output | None:
        if self._exit is not None:
            raise ProtocolError(f"a frame of kind {frame.kind.name} follows the exit frame", request_id=self._request_id)
        match frame.kind:
            case Kind.STDOUT:
                return self._output("stdout", frame)
            case Kind.STDERR:
                return self._output("stderr", frame)
            case Kind.EXIT:
                self._exit = frame_object(frame, self._request_id)
            case Kind.ERROR:
                document = frame_object(frame, self._request_id)
                raise problem_document(document, str(document.get("code")), self._request_id)
            case Kind.START:
                started = frame_object(frame, self._request_id)
                pid, process = started.get("pid"), started.get("process")
                self.pid = pid if isinstance(pid, int) else None
                self.process = process if isinstance(process, str) else None
            case Kind.HEARTBEAT:
                pass
            case Kind.GAP:
                gap = frame_object(frame, self._request_id)
                raise self._cut(f"{gap.get('bytes')} bytes of {gap.get('stream')} were dropped")
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind.name} is out of place", request_id=self._request_id)
        return None

    def _output(self, stream: Stream, frame: Frame) -> Output:
        if frame.offset != self._seen[stream]:
            raise self._cut(f"{stream} goes on at byte {frame.offset} and {self._seen[stream]} have arrived")
        self._seen[stream] += len(frame.payload)
        output = Output(stream, frame.offset, frame.payload)
        if self._capture is not None:
            self._capture.add(output, self._request_id)
        return output

    def _cut(self, what: str) -> StreamCut:
        return StreamCut(what, hint="the command may or may not have run to its end", request_id=self._request_id)


@dataclass(frozen=True, slots=True)
class Text:
    """Whole characters of a stream, as they came."""

    stream: Stream
    text: str


class TextDecoder:
    """Output as text: a character that is split over pieces is given when it is whole; what is no UTF-8 is U+FFFD."""

    def __init__(self) -> None:
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}

    def receive(self, piece: Output | Gap) -> list[Text | Gap]:
        """What is whole with `piece`. Across a gap nothing is joined."""
        decoder = self._decoders[piece.stream]
        if isinstance(piece, Gap):
            before = decoder.decode(b"", final=True)
            return [*([Text(piece.stream, before)] if before else []), piece]
        text = decoder.decode(piece.data)
        return [Text(piece.stream, text)] if text else []

    def finish(self) -> list[Text]:
        """What was left unfinished."""
        return [Text(name, text) for name in STREAMS if (text := self._decoders[name].decode(b"", final=True))]


class Capture:
    """Output that is kept, up to `limit` bytes of each stream."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, output: Output, request_id: str | None = None) -> None:
        """Keep it; TooLarge beyond the limit."""
        kept = self._kept[output.stream]
        if len(kept) + len(output.data) > self._limit:
            raise TooLarge(
                f"{output.stream} passed {self._limit} bytes; the command was ended",
                hint="capture=False with a callback keeps nothing, output_limit= allows more",
                request_id=request_id,
            )
        kept += output.data

    def bytes_of(self, stream: Stream) -> bytes:
        """All of one stream."""
        return bytes(self._kept[stream])


def result_of(status: ExitStatus, capture: Capture | None) -> Result:
    """How it ended, with what was kept."""
    return Result(
        exit_code=status.code,
        signal=status.signal,
        stdout=capture.bytes_of("stdout") if capture is not None else b"",
        stderr=capture.bytes_of("stderr") if capture is not None else b"",
        oom_killed=status.oom_killed,
        timed_out=status.timed_out,
        wall_ms=status.wall_ms,
    )
