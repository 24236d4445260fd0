"""`space completion`: scripts for bash, zsh and fish; and what they ask for, ids of sandboxes and processes included.

A shell that waits for a key must not wait for a network: ids come within ASK_SECONDS, or none does.
"""

from __future__ import annotations

import importlib
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from space.cli.context import Context, emit, examples
from space.model.ids import process_id, sandbox_id

ASK_SECONDS = 1.0
_VARIABLE = "_SPACE_COMPLETE"
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Shell(StrEnum):
    """Shells that can complete."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    lines = ("source <(space completion bash)", "space completion fish > ~/.config/fish/completions/space.fish")
    app.command("completion", epilog=examples(*lines))(completion)


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")]) -> None:
    """Print the script that lets a shell complete commands, options and the ids of sandboxes and processes."""
    made = importlib.import_module("typer.completion").get_completion_script
    emit(made(prog_name="space", complete_var=_VARIABLE, shell=shell.value))


def answer(app: typer.Typer) -> int:
    """Answer a shell's question, which is in the environment."""
    importlib.import_module("typer.completion").completion_init()
    app([], prog_name="space", standalone_mode=False, complete_var=_VARIABLE)
    return 0


def _asked(context: Any) -> Context:
    """The global options as far as they were typed."""
    known = context.find_root().params
    return Context(instance=known.get("instance"), url=known.get("url"), key_file=known.get("key_file"), json=False)


def _within(seconds: float, ask: Callable[[], Sequence[str]]) -> list[str]:
    """What `ask` finds in that time. Whatever goes wrong is no answer: it would be written into the line that somebody types."""

    def too_late(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return list(ask())
    except Exception:  # noqa: BLE001
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sandboxes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of sandboxes that begin so. They are checked: what a shell evaluates must be nothing else."""

    def ask() -> list[str]:
        with _asked(ctx).client() as client:
            found = client.call("GET", "/v1/sandboxes", params={"limit": "200"}, seconds=ASK_SECONDS, repeatable=False)
        return [sandbox_id(each["id"]) for each in found["sandboxes"] if each["phase"] not in ("gone", "failed")]

    return [each for each in _within(ASK_SECONDS, ask) if each.startswith(incomplete)]


def processes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of processes of the sandbox that was typed before."""
    sandbox = ctx.params.get("sandbox")

    def ask() -> list[str]:
        with _asked(ctx).client() as client:
            path = f"/v1/sandboxes/{sandbox_id(str(sandbox))}/processes"
            found = client.call("GET", path, seconds=ASK_SECONDS, repeatable=False)
        return [process_id(each["id"]) for each in found["processes"]]

    return [each for each in _within(ASK_SECONDS, ask) if each.startswith(incomplete)]


def asks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of requests that wait, of the sandbox that was typed before."""
    sandbox = ctx.params.get("sandbox")

    def ask() -> list[str]:
        with _asked(ctx).client() as client:
            path = f"/v1/sandboxes/{sandbox_id(str(sandbox))}/egress/asks"
            found = client.call("GET", path, seconds=ASK_SECONDS, repeatable=False)
        return _words(each["ask"] for each in found["asks"])

    return [each for each in _within(ASK_SECONDS, ask) if each.startswith(incomplete)]


def policies(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of stored policies."""

    def ask() -> list[str]:
        with _asked(ctx).client() as client:
            found = client.call("GET", "/v1/policies", seconds=ASK_SECONDS, repeatable=False)
        return _words(each["name"] for each in found["policies"])

    return [each for each in _within(ASK_SECONDS, ask) if each.startswith(incomplete)]


def secrets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of secrets."""
    return _named(ctx, "secrets", incomplete)


def grants(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of grants."""
    return _named(ctx, "grants", incomplete)


def _named(ctx: typer.Context, what: str, incomplete: str) -> list[str]:
    def ask() -> list[str]:
        with _asked(ctx).client() as client:
            found = client.call("GET", f"/v1/{what}", params={"limit": "200"}, seconds=ASK_SECONDS, repeatable=False)
        return _words(each["name"] for each in found[what])

    return [each for each in _within(ASK_SECONDS, ask) if each.startswith(incomplete)]


def _words(given: Iterable[str]) -> list[str]:
    """Those that a shell may evaluate."""
    return [word for word in given if _WORD.match(word)]


SandboxArgument = Annotated[str, typer.Argument(metavar="SANDBOX", help="Its id.", autocompletion=sandboxes)]
ProcessArgument = Annotated[str, typer.Argument(metavar="PROCESS", help="Its id, or how that begins.", autocompletion=processes)]
