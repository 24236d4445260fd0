"""`space egress`: requests of sandboxes that wait for a person's word, and the word."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import SandboxArgument, asks
from space.cli.context import examples, note, of, print_json, print_table, span
from space.cli.egress_log import add_commands

if TYPE_CHECKING:
    from space.sdk import Ask

AskArgument = Annotated[str, typer.Argument(metavar="ASK", help="As `space egress asks` shows it.", autocompletion=asks)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(no_args_is_help=True, help="See what leaves sandboxes, and answer what they ask.", rich_markup_mode=None)
    group.command("asks", epilog=examples("space egress asks sb-..."))(list_asks)
    group.command("allow", epilog=examples("space egress allow sb-... ask-1"))(allow)
    group.command("deny", epilog=examples("space egress deny sb-... ask-1"))(deny)
    add_commands(group)
    app.add_typer(group, name="egress")


def list_asks(context: typer.Context, sandbox: SandboxArgument) -> None:
    """List the requests of a sandbox that wait for a person's word, the oldest first."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client).asks()
    if of(context).json:
        print_json({"asks": [asdict(one) for one in found]})
        return
    print_table(("ASK", "WAITS", "REQUEST", "RULE"), [(one.ask, _waits(one), _request(one), one.rule) for one in found])


def allow(context: typer.Context, sandbox: SandboxArgument, ask: AskArgument) -> None:
    """Let a request go: exactly the one that was asked about. The server's audit says whose key it was."""
    _answer(context, sandbox, ask, allowed=True)


def deny(context: typer.Context, sandbox: SandboxArgument, ask: AskArgument) -> None:
    """Refuse a request that waits."""
    _answer(context, sandbox, ask, allowed=False)


def _answer(context: typer.Context, sandbox: str, ask: str, *, allowed: bool) -> None:
    from space.sdk import Sandbox

    with of(context).client() as client:
        Sandbox.connect(sandbox, client=client).answer(ask, allowed)
    if of(context).json:
        print_json({"ask": ask, "allow": allowed})
    else:
        note(f"{ask} is {'allowed' if allowed else 'denied'}")


def _request(one: Ask) -> str:
    where = f"{one.scheme}://{one.host}:{one.port}{one.path}"
    return f"{one.method} {where}" if one.method else where


def _waits(one: Ask) -> str:
    return span(time.time() - one.asked_at)
