"""`space shell` and `space attach`: a process in a sandbox, at this terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from space.cli.completion import ProcessArgument, SandboxArgument
from space.cli.context import examples, note, of, pairs
from space.cli.processes import found_process
from space.cli.run import Command, Cwd, Env, User, not_started, status_of
from space.cli.tty import Conversation, detach_keys, terminal_size
from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied

_DETACH = "ctrl-p,ctrl-q"
_FALLBACK = "xterm-256color"
# Terminals that a Debian guest describes without further packages; a program on another one would find none.
_KNOWN = {"dumb", "linux", "rxvt", "vt100", "vt102", "vt220", "xterm", "xterm-color", "xterm-256color", "xterm-mono"}
_KNOWN |= {"screen", "screen-256color", "tmux", "tmux-256color"}


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("shell", epilog=examples("space shell sb-...", "space shell sb-... -u root -- top"))(shell)
    app.command("attach", epilog=examples("space attach sb-... pr-..."))(attach)


def shell(
    context: typer.Context,
    sandbox: SandboxArgument,
    command: Command = None,
    env: Env = None,
    cwd: Cwd = None,
    user: User = None,
) -> int:
    """Open a terminal in a sandbox: the user's login shell, or a program; exits with its status.

    Every key goes to the program, Ctrl-C and Ctrl-Z too. It ends with this connection: close its window, or end the shell.
    """
    from space.sdk import Sandbox

    _needs_people(of(context).json, "`space exec --json` answers with an object")
    rows, cols = terminal_size()
    wanted = terminal_environment(os.environ) | pairs(env or [], "--env")
    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client)
        try:
            terminal = found.shell(command or None, rows=rows, cols=cols, cwd=cwd, env=wanted, user=user)
        except (NotFound, PermissionDenied) as fault:
            return not_started(fault, as_json=False)
        with terminal:
            if terminal_size() != (rows, cols):
                terminal.resize(*terminal_size())
            status = Conversation(terminal, keys=detach_keys(""), pty=True).run()
    return 0 if status is None else status_of(status)


def attach(
    context: typer.Context,
    sandbox: SandboxArgument,
    process: ProcessArgument,
    tail: Annotated[int, typer.Option(metavar="BYTES", min=0, help="Show so much of its output first.")] = 0,
    keys: Annotated[str, typer.Option("--detach-keys", metavar="KEYS", help="What to type to let go of it.")] = _DETACH,
    stdin: Annotated[bool, typer.Option("--stdin/--no-stdin", help="Hand on what is typed or piped in.")] = True,
) -> int:
    """Join a process that runs: its output here, what is typed to it; exits with its status when it ends.

    In a terminal, Ctrl-P Ctrl-Q lets go of it (--detach-keys chooses others, "" none); otherwise Ctrl-C does. It runs on then.
    """
    from space.sdk import Sandbox

    _needs_people(of(context).json, "`space logs -f --json` answers with objects")
    letting_go = detach_keys(keys)
    with of(context).client() as client:
        found = found_process(Sandbox.connect(sandbox, client=client), process)
        info = found.info()
        if info.state != "running":
            raise Conflict(f"process {info.id} has ended", hint=f"`space logs {sandbox} {info.id}` shows what it wrote")
        reads = stdin and (info.pty or info.stdin == "open")
        begin = {"stdout": max(info.stdout_first, info.stdout_bytes - tail), "stderr": max(info.stderr_first, info.stderr_bytes - tail)}
        with found.connect(stdout=begin["stdout"], stderr=begin["stderr"]) as terminal:
            if info.pty:
                rows, cols = terminal_size()
                # A program draws its screen anew when the size changes, and only then.
                terminal.resize(rows, max(1, cols - 1))
                terminal.resize(rows, cols)
            try:
                status = Conversation(terminal, keys=letting_go, pty=info.pty, reads=reads).run()
            except KeyboardInterrupt:
                note(f"{info.id} runs on")
                raise
    if status is None:
        note(f"\n{info.id} runs on; `space attach {sandbox} {info.id}` comes back")
        return 0
    return status_of(status)


def terminal_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a program must know of our terminal. One that guests do not describe is told as what most of them imitate."""
    name = environ.get("TERM") or _FALLBACK
    wanted = {"TERM": name if name in _KNOWN else _FALLBACK}
    return wanted | ({"COLORTERM": environ["COLORTERM"]} if environ.get("COLORTERM") else {})


def _needs_people(as_json: bool, instead: str) -> None:
    if as_json:
        raise InvalidArgument("a terminal's bytes are no JSON", hint=instead)
