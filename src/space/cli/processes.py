"""`space start`, `ps`, `logs`, `wait` and `kill`: processes that run on when nobody listens."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import ProcessArgument, SandboxArgument, processes
from space.cli.context import (
    OWN_FAILURE,
    Misuse,
    emit,
    examples,
    of,
    pairs,
    print_json,
    print_table,
    report,
    size,
    span,
    tell,
    writer,
)
from space.cli.run import Command, Cwd, Env, Timeout, User, argv_of, not_started, status_of
from space.cli.streams import OutputClosed, OutputFailed
from space.cli.tty import terminal_size
from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, SpaceError

if TYPE_CHECKING:
    from space.model.process import ProcessInfo
    from space.sdk import Gap, Output, Process, Sandbox

_SHOWN_COMMAND = 60


class Stream(StrEnum):
    """What a process writes."""

    stdout = "stdout"
    stderr = "stderr"


class Overflow(StrEnum):
    """What happens when the server keeps no more of a process's output."""

    block = "block"
    drop_oldest = "drop_oldest"


ProcessesArgument = Annotated[
    list[str], typer.Argument(metavar="PROCESS...", help="Their ids, or how those begin.", autocompletion=processes)
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("start", epilog=examples("space start sb-... -w /srv -- python3 -m http.server 8000"))(start)
    app.command("ps", epilog=examples("space ps sb-... -a"))(ps)
    app.command("logs", epilog=examples("space logs -f sb-... pr-...", "space logs sb-... pr-... --tail 4096 --stream stderr"))(logs)
    app.command("wait", epilog=examples("space wait sb-... pr-..."))(wait)
    app.command("kill", epilog=examples("space kill sb-... pr-...", "space kill sb-... pr-... -s KILL --all"))(kill)


def start(
    context: typer.Context,
    sandbox: SandboxArgument,
    command: Command = None,
    env: Env = None,
    timeout: Timeout = None,
    cwd: Cwd = None,
    user: User = None,
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Keep its input open, for `space attach`.")] = False,
    terminal: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal of the size of this one.")] = False,
    overflow: Annotated[
        Overflow, typer.Option(metavar="block|drop_oldest", help="When more output is there than is kept.")
    ] = Overflow.drop_oldest,
    spool: Annotated[int | None, typer.Option(metavar="BYTES", help="Keep so much of its output (the server's setting).")] = None,
) -> int:
    """Start a program in the background, and print its process id.

    It runs on when nobody listens, until it ends or its sandbox does. `space logs`, `attach`, `wait` and `kill` take the id.
    """
    from space.cli.terminal import terminal_environment
    from space.sdk import PtySize, Sandbox

    argv, wanted = argv_of(command), pairs(env or [], "--env")
    pty = PtySize(*terminal_size()) if terminal else None
    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client)
        try:
            process = found.start(
                argv,
                cwd=cwd,
                env=(terminal_environment({}) if terminal else {}) | wanted,
                user=user,
                timeout=timeout,
                pty=pty,
                stdin=stdin,
                overflow=overflow.value,
                spool_bytes=spool,
            )
        except (NotFound, PermissionDenied) as fault:
            return not_started(fault, as_json=of(context).json)
        try:
            print_json(process.info()) if of(context).json else emit(process.id)
        except (OutputClosed, OutputFailed):
            _take_back(process)
            raise
    return 0


def _take_back(process: Process) -> None:
    """End a process whose id nobody got; where that fails, its id goes to stderr."""
    try:
        with suppress(Conflict):  # it has ended
            process.kill()
    except SpaceError as fault:
        tell(f"{process.id} was started, and could not be ended: {fault.message}")


def ps(
    context: typer.Context,
    sandbox: SandboxArgument,
    every: Annotated[bool, typer.Option("--all", "-a", help="Those that have ended, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print ids and nothing else.")] = False,
) -> None:
    """List the processes that were started in a sandbox, the oldest first."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client).processes(None if every else "running")
    if of(context).json:
        print_json({"processes": [asdict(info) for info in found]})
    elif quiet:
        for info in found:
            emit(info.id)
    else:
        names = ("PROCESS", "PID", "STATE", "AGE", "USER", "STDOUT", "STDERR", "COMMAND")
        print_table(names, [_row(info, time.time()) for info in found])


def _row(info: ProcessInfo, now: float) -> tuple[str, ...]:
    words = " ".join(info.argv)
    words = words if len(words) <= _SHOWN_COMMAND else words[: _SHOWN_COMMAND - 1] + "\N{HORIZONTAL ELLIPSIS}"
    outputs = size(info.stdout_bytes), "terminal" if info.pty else size(info.stderr_bytes)
    return info.id, str(info.pid), how(info), span(now - info.started_at), info.user or "-", *outputs, words


def how(info: ProcessInfo) -> str:
    """Its state in a word or two."""
    if info.exit is None:
        return info.state
    return f"exited {info.exit.code}" if info.exit.signal is None else f"signal {info.exit.signal}"


def found_process(sandbox: Sandbox, name: str) -> Process:
    """A process by its id, or by how the id of one of them begins. NotFound, InvalidArgument when several begin so."""
    if name in ("", "pr-"):
        raise Misuse("the process has no name: give its id, or how that begins")
    if len(name) >= len("pr-") + 16:
        return sandbox.process(name)
    text = name if name.startswith("pr-") else f"pr-{name}"
    found = [info.id for info in sandbox.processes() if info.id.startswith(text)]
    if not found:
        raise NotFound(f"there is no process {name} in {sandbox.id}", hint=f"`space ps -a {sandbox.id}` lists them")
    if len(found) > 1:
        raise InvalidArgument(f"{len(found)} processes begin with {name}", hint=f"the first are {' and '.join(found[:2])}")
    return sandbox.process(found[0])


def offsets_of(given: list[str], tail: int | None) -> dict[str, int | None]:
    """Where to begin in each stream: `N` is stdout's, `stderr=N` the other one's."""
    wanted: dict[str, int | None] = {"stdout": None, "stderr": None}
    if tail is not None:
        # An offset of -0 would be the first byte: whoever wants none of what is there begins at the end, which `logs` looks up.
        wanted = dict.fromkeys(wanted, -tail)
    for text in given:
        name, separator, number = text.rpartition("=")
        if (separator and name not in wanted) or not number.isascii() or not number.isdigit():
            raise InvalidArgument(f"--since-offset takes N or stderr=N, not {text!r}", hint="bytes from the beginning of that stream")
        wanted[name or "stdout"] = int(number)
    return wanted


def logs(
    context: typer.Context,
    sandbox: SandboxArgument,
    process: ProcessArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until it ends.")] = False,
    tail: Annotated[int | None, typer.Option(metavar="BYTES", min=0, help="Only the last bytes of each stream.")] = None,
    since: Annotated[
        list[str] | None,
        typer.Option("--since-offset", metavar="[STREAM=]N", help="From this byte of stdout (or stderr=N) on; repeatable."),
    ] = None,
    stream: Annotated[Stream | None, typer.Option(metavar="stdout|stderr", help="Only this one.")] = None,
) -> None:
    """Show what a process wrote, its stdout on stdout and its stderr on stderr, byte for byte.

    A connection that breaks is made anew: nothing comes twice, nothing is left out. Output that the server keeps no longer is told on
    stderr. JSON: a line for each piece, with its stream and offset.
    """
    from space.sdk import Sandbox

    begin = offsets_of(since or [], tail)
    with of(context).client() as client:
        found = found_process(Sandbox.connect(sandbox, client=client), process)
        info = found.info()
        ends = {"stdout": info.stdout_bytes, "stderr": info.stderr_bytes}
        for name, end in ends.items():
            if (begin[name] == 0 and tail == 0) or stream not in (None, name):
                begin[name] = end  # nothing of what is there
        shown = found.output(begin["stdout"], begin["stderr"], follow=follow)
        # An interrupt between showing and counting makes the next call repeat a piece, and never leave one out.
        firsts = {"stdout": info.stdout_first, "stderr": info.stderr_first}
        at = {name: offset if offset is not None and offset >= 0 else firsts[name] for name, offset in begin.items()}
        try:
            with closing(shown):
                for piece in shown:
                    if stream in (None, piece.stream):
                        _show(piece, as_json=of(context).json)
                    at[piece.stream] = piece.offset + _length(piece)
        except KeyboardInterrupt:
            tell(_goes_on(at))
            raise
        except SpaceError as fault:
            fault.__notes__ = [_goes_on(at)]  # the SDK's own speaks of calls
            raise


def _goes_on(at: Mapping[str, int]) -> str:
    """Where to go on from."""
    return "go on with " + " ".join(f"--since-offset {name}={offset}" for name, offset in at.items())


def _length(piece: Output | Gap) -> int:
    from space.sdk import Gap

    return piece.bytes if isinstance(piece, Gap) else len(piece.data)


def _show(piece: Output | Gap, *, as_json: bool) -> None:
    from space.sdk import Gap

    if as_json:
        print_json(document(piece))
    elif isinstance(piece, Gap):
        tell(f"{piece.bytes} bytes of {piece.stream} from byte {piece.offset} on were dropped before they could be read")
    else:
        writer(1 if piece.stream == "stdout" else 2, must=piece.stream == "stdout")(piece.data)


def document(piece: Output | Gap) -> dict[str, Any]:
    """A piece of output as JSON: text where it is UTF-8, else base64 under another name; or what is missing."""
    from space.sdk import Gap

    known: dict[str, Any] = {"stream": piece.stream, "offset": piece.offset}
    if isinstance(piece, Gap):
        return {"kind": "gap", **known, "bytes": piece.bytes}
    try:
        return {"kind": "output", **known, "data": piece.data.decode()}
    except UnicodeDecodeError:
        return {"kind": "output", **known, "data_base64": base64.b64encode(piece.data).decode()}


def wait(context: typer.Context, sandbox: SandboxArgument, process: ProcessArgument) -> int:
    """Wait until a process has ended, and exit with its status."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = found_process(Sandbox.connect(sandbox, client=client), process)
        try:
            status = found.wait()
        except SpaceError as fault:
            fault.__notes__ = []  # which speak of its output
            raise
    if of(context).json:
        print_json({"process": found.id, **asdict(status)})
    return status_of(status)


def kill(
    context: typer.Context,
    sandbox: SandboxArgument,
    processes: ProcessesArgument,
    signal: Annotated[str, typer.Option("--signal", "-s", metavar="SIGNAL", help="Its name or number.")] = "TERM",
    every: Annotated[bool, typer.Option("--all", help="To everything that it started, not its process group alone.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Kill everything of it, and drop its output and its record.")] = False,
) -> int:
    """Send a signal to processes."""
    from space.sdk import Sandbox

    failed, done = 0, []
    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client)
        for name in processes:
            try:
                process = found_process(found, name)
                if forget:
                    process.delete()
                else:
                    process.signal(int(signal) if signal.isascii() and signal.isdigit() else signal, all=every)
            except SpaceError as fault:
                report(fault, as_json=of(context).json)  # the others get it all the same
                failed = OWN_FAILURE
            else:
                done.append(process.id)
    if of(context).json:
        print_json({"forgotten" if forget else "signalled": done})
    return failed
