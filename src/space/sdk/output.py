"""A command's stream of frames, taken apart: bytes in, pieces of output out, a result at the end (docs/protocol.md, section 4).

Success needs the exit frame and output without a gap: an offset that does not fit, or an end without exit frame, is
StreamCut, from which nothing may be concluded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from space.model.errors import ProtocolError, SpaceError, StreamCut, TooLarge
from space.model.frames import Decoder, Frame, Kind
from space.sdk.answers import problem_document

Stream = Literal["stdout", "stderr"]
DEFAULT_OUTPUT_LIMIT = 256 << 20


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


@dataclass(frozen=True, slots=True)
class Piece:
    """Output as it arrived."""

    stream: Stream
    data: bytes


class ProcessStream:
    """Feed it the body as it arrives; ask for the result at its end."""

    def __init__(self, *, capture: bool = True, limit: int = DEFAULT_OUTPUT_LIMIT, request_id: str | None = None) -> None:
        self._decoder = Decoder()
        self._capture = capture
        self._limit = limit
        self._request_id = request_id
        self._seen: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._exit: dict[str, Any] | None = None
        self.pid: int | None = None

    @property
    def has_ended(self) -> bool:
        """The exit frame is there: nothing may follow."""
        return self._exit is not None

    def receive(self, data: bytes) -> list[Piece]:
        """The output in `data`. Raises the server's error, ProtocolError, StreamCut (a gap) or TooLarge (more than is kept)."""
        try:
            frames = self._decoder.receive(data)
        except ValueError as error:
            raise ProtocolError(f"the server's process stream is broken: {error}", request_id=self._request_id) from error
        return [piece for frame in frames if (piece := self._take(frame)) is not None]

    def result(self) -> Result:
        """The command's result, at the end of the body. StreamCut when the stream ended before its exit frame."""
        if self._exit is None:
            raise self._cut("the server's process stream ended without an exit frame")
        if self._decoder.pending:
            raise ProtocolError("bytes follow the exit frame", request_id=self._request_id)
        status = self._exit
        try:
            for stream in self._seen:
                # A server that does not count them is an older one.
                if (told := status.get(f"{stream}_bytes", self._seen[stream])) != self._seen[stream]:
                    raise self._cut(f"{stream} has {told} bytes and {self._seen[stream]} arrived")
            result = Result(
                exit_code=status["code"],
                signal=status["signal"],
                stdout=bytes(self._kept["stdout"]),
                stderr=bytes(self._kept["stderr"]),
                oom_killed=bool(status["oom_killed"]),
                timed_out=bool(status["timed_out"]),
                wall_ms=int(status["wall_ms"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"the exit frame is incomplete: {error!r}", request_id=self._request_id) from error
        if (result.exit_code is None) == (result.signal is None):
            raise ProtocolError(f"the exit frame holds code {result.exit_code} and signal {result.signal}", request_id=self._request_id)
        return result

    def _take(self, frame: Frame) -> Piece | None:
        if self._exit is not None:
            raise ProtocolError(f"a frame of kind {frame.kind.name} follows the exit frame", request_id=self._request_id)
        match frame.kind:
            case Kind.STDOUT:
                return self._output("stdout", frame)
            case Kind.STDERR:
                return self._output("stderr", frame)
            case Kind.EXIT:
                self._exit = self._json(frame)
            case Kind.ERROR:
                document = self._json(frame)
                raise problem_document(document, str(document.get("code")), self._request_id)
            case Kind.START:
                pid = self._json(frame).get("pid")
                self.pid = pid if isinstance(pid, int) else None
            case Kind.HEARTBEAT:
                pass
        return None

    def _output(self, stream: Stream, frame: Frame) -> Piece:
        if frame.offset != self._seen[stream]:
            raise self._cut(f"{stream} goes on at byte {frame.offset} and {self._seen[stream]} have arrived")
        self._seen[stream] += len(frame.payload)
        if self._capture:
            if self._seen[stream] > self._limit:
                raise TooLarge(
                    f"{stream} passed {self._limit} bytes; the command was ended",
                    hint="capture=False with a callback keeps nothing, output_limit= allows more",
                    request_id=self._request_id,
                )
            self._kept[stream] += frame.payload
        return Piece(stream, frame.payload)

    def _json(self, frame: Frame) -> dict[str, Any]:
        try:
            document = json.loads(frame.payload)
        except ValueError as error:
            raise ProtocolError(f"a {frame.kind.name} frame holds no JSON", request_id=self._request_id) from error
        if not isinstance(document, dict):
            raise ProtocolError(f"a {frame.kind.name} frame holds no object", request_id=self._request_id)
        return document

    def _cut(self, what: str) -> StreamCut:
        return StreamCut(what, hint="the command may or may not have run to its end", request_id=self._request_id)
