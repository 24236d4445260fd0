"""`space`: reads the command line, calls one command, turns every failure into one sentence and an exit status (docs/cli.md).

Nothing that takes long to import is imported here: an HTTP client, tables and the server come with the commands that need them.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import typer

from space import __version__
from space.cli.arguments import arranged, command_of
from space.cli.context import OWN_FAILURE, Context, Misuse, report
from space.cli.streams import OutputClosed, OutputFailed, secure, silence
from space.model.errors import InvalidArgument, SpaceError, Unavailable
from space.model.ids import instance_name

USAGE = 2
COMPLETE_VARIABLE = "_SPACE_COMPLETE"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run code in microVMs: sandboxes with a kernel of their own, on machines of your own.",
)


@app.callback()
def _globals(
    context: typer.Context,
    instance: Annotated[str | None, typer.Option(metavar="NAME", help="The instance on this machine to talk to.")] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The server's address (or SPACE_API_URL).")] = None,
    key_file: Annotated[str | None, typer.Option(metavar="FILE", help="The file with the API key (or SPACE_API_KEY).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object, or one a line.")] = False,
) -> None:
    for name, value in (("--instance", instance), ("--url", url), ("--key-file", key_file)):
        if value is not None and not value.strip():
            raise typer.BadParameter(f"{name} is empty: leave it out to use what is configured")
    if instance is not None:
        try:
            instance_name(instance)
        except ValueError as error:
            raise typer.BadParameter(f"--instance: {error}") from None
    context.obj = Context(instance=instance, url=url, key_file=key_file, json=json)


# In the order of `space --help`: a module, and the commands that it brings, each with what is said of it there.
_MODULES: dict[str, dict[str, str]] = {
    "run": {
        "run": "Run a program in a fresh sandbox, and delete it",
        "exec": "Run a program in a sandbox that is there",
    },
    "code": {"run-code": "Execute code in a sandbox's interpreter"},
    "sandboxes": {
        "create": "Make a sandbox",
        "list": "List sandboxes",
        "delete": "End sandboxes and remove everything of them",
    },
    "inspect": {
        "show": "Show all of a sandbox, or of one of its processes",
        "update": "Change a sandbox's life, words and rules",
        "metrics": "Show what a sandbox takes, now or over time",
    },
    "lives": {
        "pause": "Stop a sandbox's processors",
        "resume": "Let a paused sandbox run",
        "suspend": "Store a sandbox's memory and disk",
        "stop": "Shut a sandbox's guest down, keep its disk",
        "wake": "Bring a sandbox back, whatever it takes",
        "checkpoint": "Keep an instant of a sandbox",
        "checkpoints": "List a sandbox's checkpoints",
        "rollback": "Take a sandbox back to a checkpoint",
        "fork": "Make children of a sandbox",
        "export": "Write a suspended sandbox to a file",
        "import": "Make a suspended sandbox of a file",
    },
    "terminal": {
        "shell": "Open a terminal in a sandbox",
        "attach": "Join a process that runs",
    },
    "processes": {
        "start": "Start a program in the background",
        "ps": "List the processes of a sandbox",
        "logs": "Show what a process wrote, and what comes",
        "wait": "Wait until a process has ended",
        "kill": "Send a signal to processes",
    },
    "copy": {"cp": "Copy files and directories in and out"},
    "files": {"files": "Look at and change single files"},
    "watching": {
        "watch": "Tell which files change",
        "events": "Tell what happens to sandboxes",
    },
    "forward": {"forward": "Let ports of this machine lead into a sandbox"},
    "ports": {
        "expose": "Let others reach a port of a sandbox",
        "unexpose": "Let a port be reached no more",
        "ingress": "Show how exposed ports are reached",
    },
    "keys": {"key": "Make, list and revoke API keys"},
    "tenants": {
        "quota": "Show and set what a tenant may have",
        "webhooks": "Have events delivered to an address",
    },
    "audit": {"audit": "Tell who did what and when; verify what was recorded"},
    "config": {"config": "Show and set which server is talked to"},
    "server": {
        "serve": "Run a server on this machine",
        "setup": "Make this machine ready for sandboxes",
        "doctor": "Say what this machine has and lacks",
        "clean": "Remove everything that was put on this machine",
        "bench": "Measure, and print ratios",
        "evaluate": "Try to get out of sandboxes, and say what was reached",
        "version": "Print the version",
    },
    "backup": {
        "backup": "Save the server's state in a file",
        "restore": "Put back what was saved",
    },
    "policy": {"policy": "Check, explain, store and apply egress policies"},
    "credentials": {
        "secret": "Store credentials that sandboxes use and never see",
        "grant": "Say which sandbox may use which secret, and where",
    },
    "egress": {"egress": "See what leaves sandboxes, and answer what they ask"},
    "completion": {"completion": "Print the completion script for a shell"},
    "templates": {
        "template": "Build, list and tag what sandboxes are made of",
        "prune": "Drop what builds keep",
    },
    "topics": {"help": "Explain a command or a topic"},
}


def _register(arguments: Sequence[str]) -> None:
    """Give the parser the command that `arguments` name, or all: each costs milliseconds, and one is called."""
    wanted = [module for module, commands in _MODULES.items() if command_of(arguments) in commands]
    # those of a call before: a process that calls again and again would parse for all of them
    app.registered_commands.clear()
    app.registered_groups.clear()
    for module in wanted or _MODULES:
        importlib.import_module(f"space.cli.{module}").add_to(app)
    said = {name: text for commands in _MODULES.values() for name, text in commands.items()}
    for command in app.registered_commands:
        command.short_help = said.get(command.name or "")
    for group in app.registered_groups:
        group.short_help = said.get(group.name or "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    secure()
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
    try:
        try:
            return _main(given)
        finally:
            sys.stdout.flush()
    except OutputClosed:
        silence()
        return 128 + signal.SIGPIPE
    except OutputFailed as failure:
        silence()
        report(Unavailable(str(failure)), as_json=as_json)
        return OWN_FAILURE


def _main(given: list[str]) -> int:
    if given in (["version"], ["--version"]):
        # Asked by scripts that time us: the parser would take ten times as long.
        print(__version__)
        return 0
    # httpx brings a command of its own along, which imports 100 ms of what nobody needs here; it can do without.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    if COMPLETE_VARIABLE in os.environ:
        _register([])
        return importlib.import_module("space.cli.completion").answer(app)  # type: ignore[no-any-return]
    _register(given)
    parser = typer.main.get_command(app)
    given = arranged(given, lambda command: _values_of(parser, command))
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # The default would end us at once, and leave a sandbox to its time-to-live. What nohup ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    return _call(parser, given, as_json=as_json)


def _call(parser: Any, given: Sequence[str], *, as_json: bool) -> int:
    try:
        status = parser.main(given, prog_name="space", standalone_mode=False)
    except SpaceError as fault:
        report(fault, as_json=as_json)
        return USAGE if isinstance(fault, Misuse) else OWN_FAILURE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except typer.Exit as end:
        return end.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        report(importlib.import_module("space.sdk.localfile").fault(error, "use", error.filename), as_json=as_json)
        return OWN_FAILURE
    except Exception as error:  # noqa: BLE001  # the parser's classes have no public name; what is none of them is raised again
        return _usage(error, as_json=as_json)
    return status if isinstance(status, int) else 0


def _values_of(parser: Any, command: str) -> Collection[str]:
    """The options of a command that take a value."""
    found = parser.commands.get(command)
    taking = [each for each in getattr(found, "params", ()) if each.param_type_name == "option" and not each.is_flag]
    return {name for each in taking for name in each.opts}


def _usage(error: Exception, *, as_json: bool) -> int:
    """Complaints of the option parser, which typer brings along or takes from click, by their shape."""
    if type(error).__name__ == "Abort":
        return 128 + signal.SIGINT
    show, status = getattr(error, "show", None), getattr(error, "exit_code", None)
    if not callable(show) or not isinstance(status, int):
        raise error
    if as_json and callable(said := getattr(error, "format_message", None)) and said():
        report(InvalidArgument(said()), as_json=True)
    else:
        show(file=sys.stderr)
    return status


def _stop(number: int, _: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
