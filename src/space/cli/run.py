"""`space run` and `space exec`: a command in a sandbox, its output live, its exit status ours."""

from __future__ import annotations

import base64
import math
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import Context, examples, note, of, pairs, print_json, report, tell, writer
from space.cli.policies import PolicyOption, given
from space.model.errors import ConnectionFailed, NotFound, PermissionDenied, SpaceError, TooLarge
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_DISK_MIB, DEFAULT_MEMORY_MIB, DEFAULT_TEMPLATE, DEFAULT_TTL_SECONDS, MAX_STDIN

if TYPE_CHECKING:
    from space.model.sandbox import ExitStatus
    from space.sdk import Client, Result, Sandbox

TIMED_OUT, NOT_EXECUTABLE, NO_SUCH_PROGRAM = 124, 126, 127
Command = Annotated[list[str] | None, typer.Argument(metavar="-- CMD [ARG]...", help="The command and its arguments.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="An environment variable; repeatable.")]


def _positive(value: float | None) -> float | None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter("more than 0 seconds")
    return value


Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", callback=_positive, help="Kill the command, and exit with 124, after so long.")
]
Cwd = Annotated[str | None, typer.Option("--cwd", "-w", metavar="DIR", help="Working directory (the user's home).")]
User = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="The guest's user to run as (`user`).")]
Stdin = Annotated[
    bool | None, typer.Option("--stdin/--no-stdin", help="Read standard input to its end and hand it in (when piped or a file).")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("run", epilog=examples("space run -- uname -r", "space run --memory 1024 -e A=1 -- sh -c 'echo $A'"))(run)
    app.command("exec", epilog=examples("space exec sb-... -- ls -l /srv", "space exec sb-... --timeout 60 -- make test"))(execute)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A command as it was asked for."""

    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    user: str | None
    timeout: float | None
    stdin: bytes | None


def run(
    context: typer.Context,
    command: Command = None,
    template: Annotated[str, typer.Option(metavar="NAME", help="What to boot.")] = DEFAULT_TEMPLATE,
    cpus: Annotated[int, typer.Option(metavar="N", help="Virtual CPUs.")] = DEFAULT_CPUS,
    memory: Annotated[int, typer.Option(metavar="MIB", help="Memory.")] = DEFAULT_MEMORY_MIB,
    disk: Annotated[int, typer.Option(metavar="MIB", help="Disk.")] = DEFAULT_DISK_MIB,
    env: Env = None,
    timeout: Timeout = None,
    cwd: Cwd = None,
    user: User = None,
    stdin: Stdin = None,
    ttl: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="The sandbox's life at most (an hour, or the timeout and a minute).")
    ] = None,
    policy: PolicyOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the command's own output.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the sandbox; its id goes to stderr.")] = False,
    server: Annotated[bool, typer.Option("--server", help="Use a running server only, never a private one.")] = False,
) -> int:
    """Run one command in a fresh sandbox, delete it, exit with the command's status.

    Without a server that can be reached, and as root, a private one is started for as long as this takes.
    """
    from space.sdk import Sandbox

    asked = of(context)
    wanted = Wanted(argv_of(command), pairs(env or [], "--env"), cwd, user, timeout, _stdin(stdin))
    allowed = None if policy is None else given(policy)
    life = ttl or (None if timeout is None else max(DEFAULT_TTL_SECONDS, int(timeout) + 60))
    with ExitStack() as stack:
        client = stack.enter_context(_server(asked, private=not server and not keep, quiet=quiet))
        began = time.monotonic()
        sandbox = Sandbox.create(template, cpus=cpus, memory_mib=memory, disk_mib=disk, ttl_seconds=life, policy=allowed, client=client)
        if keep:
            print(sandbox.id, file=sys.stderr, flush=True)
        else:
            stack.enter_context(sandbox)
        if not quiet:
            note(f"{sandbox.id} runs after {time.monotonic() - began:.1f} s")
        return _run_in(sandbox, wanted, as_json=asked.json)


def execute(
    context: typer.Context,
    sandbox: SandboxArgument,
    command: Command = None,
    env: Env = None,
    timeout: Timeout = None,
    cwd: Cwd = None,
    user: User = None,
    stdin: Stdin = None,
) -> int:
    """Run a command in a sandbox that is there, and exit with the command's status."""
    from space.sdk import Sandbox

    wanted = Wanted(argv_of(command), pairs(env or [], "--env"), cwd, user, timeout, _stdin(stdin))
    with of(context).client() as client:
        return _run_in(Sandbox.connect(sandbox, client=client), wanted, as_json=of(context).json)


@contextmanager
def _server(asked: Context, *, private: bool, quiet: bool) -> Iterator[Client]:
    """A client of a server that answers; of a private one, for as long as the block runs, where that is allowed and needed."""
    from space.sdk import Client

    with ExitStack() as stack:
        try:
            client = stack.enter_context(asked.client())
            if private and not asked.names_a_server:
                client.call("GET", "/healthz", seconds=10, repeatable=False)
        except ConnectionFailed as fault:
            if not private or asked.names_a_server:
                raise
            if os.geteuid() != 0:
                raise ConnectionFailed(fault.message, hint="start `space serve`, or be root to run without a server") from fault
            stack.close()
            private_instance = _private_instance()
            if not quiet:
                note("no server runs: starting a private one")
            served = stack.enter_context(private_instance())
            client = stack.enter_context(Client(api_url=served.url, api_key=served.api_key))
        yield client


def _private_instance() -> Any:
    try:
        from space.serve.private import private_instance
    except ImportError as error:
        raise ConnectionFailed("no server runs, and this installation has none", hint="set SPACE_API_URL and SPACE_API_KEY") from error
    return private_instance


def _run_in(sandbox: Sandbox, wanted: Wanted, *, as_json: bool) -> int:
    live: dict[str, Any] = (
        {} if as_json else {"on_stdout_bytes": writer(sys.stdout.fileno()), "on_stderr_bytes": writer(sys.stderr.fileno(), must=False)}
    )
    try:
        result = sandbox.run(
            wanted.argv,
            cwd=wanted.cwd,
            env=wanted.env,
            user=wanted.user,
            timeout=wanted.timeout,
            stdin=wanted.stdin,
            capture=as_json,
            **live,
        )
    except (NotFound, PermissionDenied) as fault:
        return not_started(fault, as_json=as_json)
    if as_json:
        print_json({"sandbox": sandbox.id, **document(result)})
    elif result.oom_killed:
        tell("the command was killed: the sandbox is out of memory (--memory MIB gives it more)")
    return ended(result.exit_code, result.signal, timed_out=result.timed_out)


def not_started(fault: SpaceError, *, as_json: bool) -> int:
    """Tell why a program could not be started; the exit status, as a shell has it."""
    report(fault, as_json=as_json)
    return NO_SUCH_PROGRAM if isinstance(fault, NotFound) else NOT_EXECUTABLE


def status_of(status: ExitStatus) -> int:
    """The exit status that tells how a process ended."""
    return ended(status.code, status.signal, timed_out=status.timed_out)


def ended(code: int | None, signal: int | None, *, timed_out: bool) -> int:
    """The exit status for an exit code or a signal."""
    if timed_out:
        return TIMED_OUT
    return code if code is not None else 128 + (signal or 0)


def document(result: Result) -> dict[str, Any]:
    """A result as JSON: output as text where it is UTF-8, else as base64 under another name."""
    answer: dict[str, Any] = {"exit_code": result.exit_code, "signal": result.signal}
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        try:
            answer[name] = data.decode()
        except UnicodeDecodeError:
            answer[f"{name}_base64"] = base64.b64encode(data).decode()
    return answer | {"oom_killed": result.oom_killed, "timed_out": result.timed_out, "wall_ms": result.wall_ms}


def argv_of(command: list[str] | None) -> list[str]:
    """The program's words; wrong usage where there are none."""
    words = list(command or [])
    if not words:
        raise typer.BadParameter("there is no command: put it behind --, as in `space run -- uname -r`")
    return words


def _stdin(wanted: bool | None) -> bytes | None:
    """All of standard input, when it is a pipe or a file, or was asked for. Says after a while what it waits for."""
    if wanted is False:
        return None
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    if wanted is None and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return None
    gathered = bytearray()
    told = False
    while True:
        if not told and not select.select([0], [], [], 3.0)[0]:
            note("reading standard input to its end (--no-stdin runs without it)")
            told = True
        data = os.read(0, 1 << 20)
        if not data:
            return bytes(gathered)
        gathered += data
        if len(gathered) > MAX_STDIN:
            raise TooLarge(
                f"standard input is longer than {MAX_STDIN} bytes", hint="copy it in with `space cp` and redirect the command's input"
            )
