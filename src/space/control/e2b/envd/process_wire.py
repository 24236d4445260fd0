"""Messages of `process.Process`. Names are the codec's (lowerCamelCase); what is missing is what it is by default."""

from __future__ import annotations

from msgspec import Struct


class Config(Struct, omit_defaults=True, rename="camel"):
    """A program. cwd: missing for the user's home."""

    cmd: str = ""
    args: list[str] | None = None
    envs: dict[str, str] | None = None
    cwd: str | None = None


class Size(Struct, rename="camel"):
    """Of a terminal."""

    cols: int = 0
    rows: int = 0


class Pty(Struct, rename="camel"):
    """A terminal is wanted."""

    size: Size | None = None


class StartRequest(Struct, rename="camel"):
    """stdin: missing means yes."""

    process: Config | None = None
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool | None = None


class Selector(Struct, rename="camel"):
    """Which process: one of the two."""

    pid: int | None = None
    tag: str | None = None


class ConnectRequest(Struct, rename="camel"):
    """Output from now on."""

    process: Selector | None = None


class UpdateRequest(Struct, rename="camel"):
    """Another size of the terminal."""

    process: Selector | None = None
    pty: Pty | None = None


class Input(Struct, rename="camel"):
    """Bytes for a process: one of the two."""

    stdin: bytes | None = None
    pty: bytes | None = None


class SendInputRequest(Struct, rename="camel"):
    """Bytes for a process, once."""

    process: Selector | None = None
    input: Input | None = None


class StreamStart(Struct, rename="camel"):
    """Which process a stream of input is for."""

    process: Selector | None = None


class StreamData(Struct, rename="camel"):
    """Bytes."""

    input: Input | None = None


class StreamInputRequest(Struct, rename="camel"):
    """A message of a stream of input: one of these."""

    start: StreamStart | None = None
    data: StreamData | None = None
    keepalive: dict[str, object] | None = None


class SendSignalRequest(Struct, rename="camel"):
    """signal: the enumeration's name or number."""

    process: Selector | None = None
    signal: str | int = 0


class CloseStdinRequest(Struct, rename="camel"):
    """The end of a process's input."""

    process: Selector | None = None


class ProcessEntry(Struct, omit_defaults=True, rename="camel"):
    """A process that runs."""

    config: Config
    pid: int
    tag: str | None = None


class ListResponse(Struct, rename="camel"):
    """All of them."""

    processes: list[ProcessEntry]


class StartEvent(Struct, rename="camel"):
    """It runs."""

    pid: int


class DataEvent(Struct, omit_defaults=True, rename="camel"):
    """Output: one of these."""

    stdout: bytes | None = None
    stderr: bytes | None = None
    pty: bytes | None = None


class EndEvent(Struct, omit_defaults=True, rename="camel"):
    """It has ended. exit_code: -1 when a signal ended it."""

    exit_code: int = 0
    exited: bool = False
    status: str = ""
    error: str | None = None


class Event(Struct, omit_defaults=True, rename="camel"):
    """One of these."""

    start: StartEvent | None = None
    data: DataEvent | None = None
    end: EndEvent | None = None
    keepalive: dict[str, object] | None = None


class EventMessage(Struct, rename="camel"):
    """What Start and Connect stream."""

    event: Event
