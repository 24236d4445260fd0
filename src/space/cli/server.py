"""The server's own commands, and version. They are imported when they are called, and the client's distribution has none of them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from space.cli.context import OWN_FAILURE, examples, need_instance, of, print_json, print_table
from space.cli.lazy import loaded
from space.model.errors import InvalidArgument, Unsupported

_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("serve", epilog=examples("space serve --set max_sandboxes=20"))(serve)
    app.command("setup", epilog=examples("space setup --check"), context_settings=_PASSED_ON)(setup)
    app.command("doctor", epilog=examples("space doctor --strict"))(doctor)
    app.command("clean", epilog=examples("space clean --instance lab"))(clean)
    app.command("bench", epilog=examples("space bench exec"), context_settings=_PASSED_ON)(bench)
    app.command("evaluate", epilog=examples("space evaluate --quick"), context_settings=_PASSED_ON)(evaluate)
    app.command("version", epilog=examples("space version --json"))(version)


def serve(
    context: typer.Context,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")] = None,
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Remove the instance, sandboxes included, at the end.")] = False,
    dev: Annotated[bool, typer.Option("--dev", help="Let the services run from a checkout.")] = False,
) -> int:
    """Run the server of an instance, as root, until it is told to stop."""
    instance = of(context).instance or os.environ.get("SPACE_INSTANCE")
    arguments = ["--instance", instance] if instance else []
    for setting in settings or []:
        arguments += ["--set", setting]
    arguments += ["--ephemeral"] * ephemeral + ["--dev"] * dev + ["--json"] * of(context).json
    return _called("space.serve.main", arguments)


def setup(context: typer.Context) -> int:
    """Make this machine ready for sandboxes (as root, from a checkout); --check says what is missing; --systemd writes a unit."""
    arguments = list(context.args)
    if not {"firecracker", "--check", "--source", "--systemd", "-h", "--help"} & {argument.split("=")[0] for argument in arguments}:
        if not Path("pyproject.toml").is_file() or not Path("guest").is_dir():
            raise InvalidArgument(
                "set-up builds from a checkout, and this directory is none", hint="run `make setup` in one, or give --source"
            )
        arguments += ["--source", str(Path.cwd())]
    if not of(context).json:
        return _called("space.setup.__main__", arguments)
    with redirect_stdout(sys.stderr):  # its progress is for people
        status = _called("space.setup.__main__", arguments)
    checks = () if "--systemd" in arguments else loaded("space.setup.doctor", "checks")()
    print_json({"ready": status == 0, "missing": [asdict(check) for check in checks if not check.ok]})
    return status


def doctor(
    context: typer.Context,
    strict: Annotated[bool, typer.Option("--strict", help="Exit status 1 for a warning, too.")] = False,
) -> int:
    """Say what this machine has and lacks for sandboxes, what was chosen because of it, and how to mend it.

    Exit status 0 when sandboxes work, also with warnings; 1 when something is missing. With --instance, of instances only that one.
    """
    if (only := of(context).instance) is not None:
        need_instance(only)
    checks: Sequence[Any] = loaded("space.setup.doctor", "checks")(only)
    status: int = loaded("space.setup.doctor", "status")(checks, strict=strict)
    if of(context).json:
        print_json({"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]})
        return status
    words = {"ok": "ok", "warning": "warning", "failure": "missing"}
    print_table(("", "CHECK", "FOUND", "CHOSEN"), [(words[check.level], check.name, check.detail, check.chosen) for check in checks])
    for check in checks:
        if check.remedy:
            print(f"{check.name}: {check.remedy}", file=sys.stderr)
    return status


def clean(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Everything, also where SPACE_INSTANCE names an instance.")] = False,
) -> int:
    """Remove everything that was put on this host; with --instance (or SPACE_INSTANCE), that instance alone."""
    asked = of(context)
    name = _to_clean(asked.instance, every=every)
    if name is None and not asked.json:
        return _exit_status(loaded("space.setup.clean", "main")())
    if os.geteuid() != 0:
        raise InvalidArgument("what an instance puts on this host belongs to root: clean as root")
    if name is None:
        checkout = Path(__file__).resolve().parents[3]
        print_json({"instance": None, "removed": loaded("space.setup.clean", "clean")(checkout)})
        return 0
    try:
        found = loaded("space.config.instance", "load")(name)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if found is None:
        raise InvalidArgument(f"there is no instance '{name}' on this host")
    loaded("space.setup.systemd", "forget")(name)
    loaded("space.setup.clean", "stop")(found)
    loaded("space.serve.remove", "remove")(found)
    if asked.json:
        print_json({"instance": name, "removed": [f"instance {name}"]})
    return 0


def _to_clean(instance: str | None, *, every: bool) -> str | None:
    """The instance that is removed; None for everything, which no variable that names one may end in."""
    if every:
        if instance is not None:
            raise typer.BadParameter("--all and --instance contradict each other")
        return None
    if instance is None and os.environ.get("SPACE_INSTANCE") == "":
        raise typer.BadParameter("SPACE_INSTANCE is empty: name an instance in it, unset it, or say --all for everything on this host")
    return instance or os.environ.get("SPACE_INSTANCE")


def bench(context: typer.Context) -> int:
    """Measure (all sections, or those that are named) and print ratios; --json for one object."""
    arguments = list(context.args) + ["--json"] * of(context).json
    return _called("space.bench.main", arguments)


def evaluate(context: typer.Context) -> int:
    """Try to get out of sandboxes, as root in them, and say what was reached; exit status 0 only if nothing was (docs/evaluation.md)."""
    try:
        found = loaded("space_evaluate.main", "main")
    except Unsupported:
        raise Unsupported("the evaluation is not installed here", hint="it is a distribution of its own, space-evaluate") from None
    return _exit_status(found(list(context.args) + ["--json"] * of(context).json))


def version(context: typer.Context) -> None:
    """Print the version of this program."""
    from space import __version__

    if of(context).json:
        print_json({"version": __version__, "python": platform.python_version()})
    else:
        print(__version__)


def _called(module: str, arguments: list[str]) -> int:
    return _exit_status(loaded(module, "main")(arguments))


def _exit_status(result: object) -> int:
    return result if isinstance(result, int) else 0 if result is None else OWN_FAILURE
