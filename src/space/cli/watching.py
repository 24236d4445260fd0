"""`space watch` and `space events`: what happens, a line each, until Ctrl-C."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import SandboxArgument, sandboxes
from space.cli.context import emit, examples, note, of, print_json, printable, tell, when
from space.model.errors import InvalidArgument
from space.model.events import EVENT_KINDS

if TYPE_CHECKING:
    from space.model.events import Event


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("watch", epilog=examples("space watch sb-... /srv -r"))(watch)
    app.command("events", epilog=examples("space events -f", "space events --after 1200 --kind created --kind deleted"))(events)


def watch(
    context: typer.Context,
    sandbox: SandboxArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file or directory: absolute, or from the user's home on.")],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Everything below it as well.")] = False,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Whose rights count (`user`).")] = None,
) -> None:
    """Tell what changes below a path, until it is deleted or Ctrl-C: a kind and a name a line.

    When more happened than could be told, stderr says so: look at what is there. JSON: a line for each change.
    """
    from space.sdk import Overflow, Sandbox

    with (
        of(context).client() as client,
        Sandbox.connect(sandbox, client=client).files.watch(path, recursive=recursive, user=user) as changes,
    ):
        note(f"watching {path}")
        for change in changes:
            if isinstance(change, Overflow):
                print_json({"kind": "overflow"}) if of(context).json else tell("changes were lost: look at what is there")
            elif of(context).json:
                print_json(change)
            else:
                name = (change.path or path) + ("/" if change.directory else "")
                emit(printable(f"{change.kind:<10} {name}" + (f" (from {change.origin})" if change.origin else "")))


def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    after: Annotated[int | None, typer.Option(metavar="ID", min=0, help="Begin behind this one.")] = None,
    sandbox: Annotated[str | None, typer.Option(metavar="SANDBOX", help="Only of this one.", autocompletion=sandboxes)] = None,
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", help=f"Only of these: {', '.join(EVENT_KINDS)}; repeatable.")] = None,
) -> None:
    """Tell what happened to the tenant's sandboxes: from the oldest that is kept, or with -f from now on, until Ctrl-C.

    Each event comes once, in order, over as many connections as it takes; --after goes on where another call stood. JSON: a line for each.
    """
    from space.sdk import EventGap

    if unknown := set(kind or []) - set(EVENT_KINDS):
        raise InvalidArgument(f"there is no kind {min(unknown)!r}", hint=f"there are {', '.join(EVENT_KINDS)}")
    wanted = tuple(kind or [])
    with (
        of(context).client() as client,
        closing(client.events(after, follow=follow, sandbox=sandbox, kinds=wanted)) as found,  # type: ignore[arg-type]
    ):
        for event in found:
            if isinstance(event, EventGap):
                gap = f"events before {event.oldest} are kept no longer" if event.oldest is not None else "those events are kept no longer"
                print_json({"kind": "gap", "oldest": event.oldest}) if of(context).json else tell(gap)
            elif of(context).json:
                print_json(asdict(event))
            else:
                emit(printable(line_of(event)))


def line_of(event: Event) -> str:
    """An event for people."""
    more = {
        "phase": f"{event.from_phase} -> {event.phase}",
        "changed": ", ".join(event.fields or ()),
        "out_of_memory": f"{event.count} killed, the last {event.process}",
    }.get(event.kind, "")
    words = (when(event.at), str(event.id), event.sandbox, event.kind, more, f"({event.reason})" if event.reason else "")
    return "  ".join(word for word in words if word)
