"""`space`: reads the command line, calls one command, turns every failure into one sentence and an exit status (docs/cli.md).

Nothing that takes long to import is imported here: an HTTP client, tables and the server come with the commands that need them.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from space import __version__
from space.cli.arguments import arranged, command_of
from space.cli.context import OWN_FAILURE, Context, OutputClosed, report
from space.model.errors import SpaceError

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
    context.obj = Context(instance=instance, url=url, key_file=key_file, json=json)


# In the order of `space --help`: a module, and the commands that it brings.
_MODULES = {
    "run": ("run", "exec"),
    "sandboxes": ("create", "list", "delete"),
    "inspect": ("show", "update", "pause", "resume", "metrics"),
    "terminal": ("shell", "attach"),
    "processes": ("start", "ps", "logs", "wait", "kill"),
    "copy": ("cp",),
    "files": ("files",),
    "watching": ("watch", "events"),
    "forward": ("forward",),
    "keys": ("key",),
    "tenants": ("quota", "webhooks", "audit"),
    "config": ("config",),
    "server": ("serve", "setup", "doctor", "clean", "bench", "version"),
    "backup": ("backup", "restore"),
    "policy": ("policy",),
    "completion": ("completion",),
    "topics": ("help",),
}


def _register(arguments: Sequence[str]) -> None:
    """Give the parser the command that `arguments` name, or all: each costs milliseconds, and one is called."""
    wanted = [module for module, commands in _MODULES.items() if command_of(arguments) in commands]
    for module in wanted or _MODULES:
        importlib.import_module(f"space.cli.{module}").add_to(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["version"], ["--version"]):
        # Asked by scripts that time us: the parser would take ten times as long.
        print(__version__)
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another encoding shows what it can
    # httpx brings a command of its own along, which imports 100 ms of what nobody needs here; it can do without.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]
    if COMPLETE_VARIABLE in os.environ:
        _register([])
        return importlib.import_module("space.cli.completion").answer(app)  # type: ignore[no-any-return]
    _register(given)
    parser = typer.main.get_command(app)
    given = arranged(given, lambda command: _values_of(parser, command))
    as_json = "--json" in given[: given.index("--")] if "--" in given else "--json" in given
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The default would end us at once, and leave a sandbox to its time-to-live. What nohup ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    return _call(parser, given, as_json=as_json)


def _call(parser: Any, given: Sequence[str], *, as_json: bool) -> int:
    try:
        status = parser.main(given, prog_name="space", standalone_mode=False)
    except SpaceError as fault:
        report(fault, as_json=as_json)
        return OWN_FAILURE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OutputClosed:
        with suppress(OSError, ValueError):  # what is left in the buffer has no reader, and would be complained of at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except typer.Exit as end:
        return end.exit_code
    except Exception as error:  # noqa: BLE001  # the parser's classes have no public name; what is none of them is raised again
        return _usage(error)
    return status if isinstance(status, int) else 0


def _values_of(parser: Any, command: str) -> Collection[str]:
    """The options of a command that take a value."""
    found = parser.commands.get(command)
    taking = [each for each in getattr(found, "params", ()) if each.param_type_name == "option" and not each.is_flag]
    return {name for each in taking for name in each.opts}


def _usage(error: Exception) -> int:
    """Complaints of the option parser, which typer brings along or takes from click, by their shape."""
    if type(error).__name__ == "Abort":
        return 128 + signal.SIGINT
    show, status = getattr(error, "show", None), getattr(error, "exit_code", None)
    if not callable(show) or not isinstance(status, int):
        raise error
    show(file=sys.stderr)
    return status


def _stop(number: int, _: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
