"""`space help`: what belongs to no single command."""

from __future__ import annotations

from typing import Annotated

import typer

from space.cli.context import examples, of, print_json, print_table, tell

EXIT_CODES = (
    ("0", "done"),
    ("1", "doctor: something is missing; policy: a mistake, or an expectation that is not met"),
    ("2", "wrong usage: nothing was asked of the server"),
    ("124", "the program ran into --timeout"),
    ("125", "space itself failed: no server, no room, a cut stream, something that is not there; the sentence says what"),
    ("126", "the program cannot be executed"),
    ("127", "there is no such program in the sandbox"),
    ("128 + N", "the program was ended by signal N, or this command was"),
    ("130", "Ctrl-C (signal 2)"),
    ("141", "whoever read the output has left (signal 13)"),
    ("any other", "the program's own, for run, exec, shell, attach and wait"),
)
SERVER = (
    ("1", "--url and --key-file, or --instance (an instance on this machine)"),
    ("2", "SPACE_API_URL and SPACE_API_KEY, or SPACE_INSTANCE"),
    ("3", "the client's own file: space config show"),
    ("4", "for root, the instance `default` of this machine"),
)
TOPICS = {"exit-codes": (("STATUS", "MEANING"), EXIT_CODES), "server": (("", "WHICH SERVER, AND WITH WHICH KEY"), SERVER)}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("help", epilog=examples("space help exit-codes", "space help exec", "space help files ls"))(show)


def show(
    context: typer.Context,
    topic: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC|COMMAND]", help=f"{', '.join(TOPICS)}, or a command.")] = None,
) -> int:
    """Explain a command, or a topic: exit-codes, server."""
    words = topic or []
    if words and words[0] in TOPICS:
        names, rows = TOPICS[words[0]]
        if of(context).json:
            print_json({words[0].replace("-", "_"): [{"name": name, "meaning": meaning} for name, meaning in rows]})
        else:
            print_table(names, rows)
        return 0
    from space.cli.main import main

    if not words:
        return main(["--help"])
    if of(context).json:
        raise typer.BadParameter("of commands there is no JSON: it is for topics")
    if (status := main([*words, "--help"])) != 0:
        tell(f"topics are {', '.join(TOPICS)}")
    return status
