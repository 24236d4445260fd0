"""What control asks of a sandbox's processes, and what comes back: the verbs are in `rpc.node_api`."""

from __future__ import annotations

from typing import Literal

import msgspec

from space.rpc.asked import Asked


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a terminal, in lines and columns."""

    rows: int
    cols: int


class Exec(Asked, frozen=True, forbid_unknown_fields=True):
    """Run a process. stdin: whether it has one that control may write to.

    process: its id (`pr-...`), chosen by control; empty: the node chooses. named: the API's client chose it, and may ask again after a
    lost answer: the same start in the background answers the first process (Conflict when it is another, or attached, or when that
    process was forgotten since), and a start goes on without whoever asked. pty: a terminal, which needs stdin. attach: the answer goes
    on with the output, and control's CLOSE is the end of stdin; else the stream ends when it runs. kill_on_disconnect: whether an
    attached stream that ends before the process kills it. overflow: what happens when the spool holds `spool_bytes` (0: the node's
    setting) of output: `block` holds the process back while somebody is attached who has not read it, `drop_oldest` never does.
    stays: what it leaves behind when it ends goes on, and its outputs end when nobody holds them any more; without a terminal only.
    Unsupported: the guest's daemon is older than that.
    """

    sandbox: str
    argv: list[str]
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None
    timeout_ms: int | None = None
    stdin: bool = False
    process: str = ""
    named: bool = False
    pty: Window | None = None
    attach: bool = True
    kill_on_disconnect: bool = True
    overflow: Literal["block", "drop_oldest"] = "block"
    spool_bytes: int = 0
    stays: bool = False


class ProcessTarget(Asked, frozen=True, forbid_unknown_fields=True):
    """One process of a sandbox."""

    sandbox: str
    process: str


class Attach(Asked, frozen=True, forbid_unknown_fields=True):
    """Read a process's output, from offsets on: None from the oldest byte that is kept, negative that many bytes from the end.

    Offsets beyond what was produced are InvalidArgument; before the oldest byte kept, a Gap says what is missing. follow: until it ends;
    else the answer ends with Paused when it still runs. input: as in `input`. kill_on_disconnect: whether the end of this stream kills it.
    """

    sandbox: str
    process: str
    stdout: int | None = None
    stderr: int | None = None
    follow: bool = True
    input: bool = False
    kill_on_disconnect: bool = False


class Started(msgspec.Struct, frozen=True, tag_field="t", tag="started"):
    """The process runs. process: its id."""

    pid: int
    process: str = ""


class ProcessInfo(msgspec.Struct, frozen=True, tag_field="t", tag="process"):
    """A process. state: `running`, `exited`, or `lost` (its sandbox ended first, see reason). stdin: `none`, `open` or `closed`.

    stdout_bytes, stderr_bytes: produced so far; *_first: the oldest byte that is kept. Of a terminal all output is stdout.
    """

    process: str
    sandbox: str
    pid: int
    argv: list[str]
    cwd: str | None
    user: str | None
    pty: bool
    state: Literal["running", "exited", "lost"]
    started_us: int
    ended_us: int | None
    stdout_bytes: int
    stderr_bytes: int
    stdout_first: int
    stderr_first: int
    stdin: Literal["none", "open", "closed"]
    stdin_bytes: int
    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    wall_ms: int | None = None
    reason: str | None = None


class ProcessList(msgspec.Struct, frozen=True, tag_field="t", tag="processes"):
    """Some of a sandbox's processes."""

    processes: list[ProcessInfo]


class Attached(msgspec.Struct, frozen=True, tag_field="t", tag="attached"):
    """The process as it is now, and where the output begins."""

    info: ProcessInfo
    stdout: int
    stderr: int


class Gap(msgspec.Struct, frozen=True, tag_field="t", tag="gap"):
    """Output that is kept no longer. lane: 0 stdout, 1 stderr. offset: of the first byte that is missing. bytes: how many are."""

    lane: int
    offset: int
    bytes: int


class Paused(msgspec.Struct, frozen=True, tag_field="t", tag="paused"):
    """That is all so far; the process runs on. stdout, stderr: the offsets to ask from."""

    stdout: int
    stderr: int


class Lost(msgspec.Struct, frozen=True, tag_field="t", tag="lost"):
    """The process's sandbox ended before it did: nobody knows how it would have ended."""

    reason: str


class Eof(msgspec.Struct, frozen=True, tag_field="t", tag="eof"):
    """From control: the end of stdin."""


class Resize(msgspec.Struct, frozen=True, tag_field="t", tag="resize"):
    """From control: the terminal has this size now."""

    rows: int
    cols: int


class Signal(msgspec.Struct, frozen=True, tag_field="t", tag="signal"):
    """From control: a signal to the process's group, or with all to everything that it started."""

    signal: int
    all: bool = False


class InputDone(msgspec.Struct, frozen=True, tag_field="t", tag="input"):
    """Everything went to the process. stdin_bytes: taken so far, over its whole life."""

    stdin_bytes: int


class Exited(msgspec.Struct, frozen=True, tag_field="t", tag="exited"):
    """The process ended. stdout_bytes, stderr_bytes: all that it wrote."""

    code: int | None
    signal: int | None
    oom_killed: bool
    timed_out: bool
    stdout_bytes: int
    stderr_bytes: int
    wall_ms: int
