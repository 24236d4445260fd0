"""`space config show --effective`: the server's settings with where each value came from."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Any

import typer

from space.cli.context import of, print_json, print_table
from space.cli.lazy import loaded
from space.model.errors import InvalidArgument, SpaceError


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    config = typer.Typer(no_args_is_help=True, help="Show settings.", rich_markup_mode=None)
    config.callback()(lambda: None)  # a group, also with one command
    config.command("show")(show)
    app.add_typer(config, name="config")


def show(
    context: typer.Context,
    effective: Annotated[bool, typer.Option("--effective", help="Every setting, not only those that somebody set.")] = False,
) -> None:
    """Show what the server of this machine goes by, or would go by if it started now, and where each value came from."""
    name = of(context).instance or os.environ.get("SPACE_INSTANCE") or "default"
    resolved, served = server_settings(name)
    values = asdict(resolved.settings)
    unset = loaded("space.config.settings", "DEFAULT")
    chosen = {key: values[key] for key in values if effective or resolved.sources[key] != unset}
    if of(context).json:
        settings = {key: {"value": value, "source": resolved.sources[key]} for key, value in chosen.items()}
        print_json({"instance": name, "served": served, "settings": settings})
        return
    print_table(("SETTING", "VALUE", "FROM"), [(key, written(value), resolved.sources[key]) for key, value in chosen.items()])


def server_settings(name: str) -> tuple[Any, bool]:
    """What the instance of that name goes by, and whether that is a running server's own word."""
    try:
        instance = loaded("space.config.instance", "load")(name)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if instance is not None and loaded("space.config.instance", "is_served")(instance):
        try:
            return loaded("space.config.settings", "effective")(instance), True
        except PermissionError:
            raise InvalidArgument(f"instance {name} shows its settings to root") from None
        except SpaceError:
            pass  # it is starting, and has written nothing yet
    path = loaded("space.config.instance", "SETTINGS_ROOT") / f"{name}.toml"
    return loaded("space.config.settings", "resolve")(path, None, os.environ), False


def written(value: object) -> str:
    """A value as `--set` takes it; `-` for none."""
    match value:
        case None | ():
            return "-"
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)
