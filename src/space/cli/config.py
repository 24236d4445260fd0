"""`space config`: the client's own file (`show`, `set`, `unset`), and what the server of this machine goes by (`server`)."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from space.cli.clientfile import NAMES, chosen, load, need_file, place, store
from space.cli.context import Misuse, examples, need_instance, note, of, print_json, print_table, shown, tell
from space.cli.lazy import loaded
from space.model.errors import InvalidArgument, SpaceError

Name = Annotated[str, typer.Argument(metavar="|".join(NAMES), help="Which setting.", autocompletion=lambda: list(NAMES))]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    about = "Show and set which server this command talks to; show what the server of this machine goes by."
    config = typer.Typer(no_args_is_help=True, help=about, rich_markup_mode=None)
    config.command("show", epilog=examples("space config show"))(show)
    config.command("set", epilog=examples("space config set api_url https://space.example.com"))(set_one)
    config.command("unset", epilog=examples("space config unset key_file"))(unset)
    config.command("server", epilog=examples("space config server --effective"))(server)
    app.add_typer(config, name="config")


# -- the client's ------------------------------------------------------------------------------------------------------------


def show(context: typer.Context) -> None:
    """Show which server this command would talk to, and where that was said: options, environment, the client's own file, this machine.

    The key itself is not shown.
    """
    from space.sdk.endpoint import resolve

    asked, file = of(context), place(os.environ)
    found = chosen(asked.url, asked.key_file, asked.instance, os.environ)
    local = f"instance {asked.instance or os.environ.get('SPACE_INSTANCE') or 'default'} of this machine"
    url, key_from = found.url, found.key_from
    problem: SpaceError | None = None
    try:
        url = resolve(found.url, instance=asked.instance, key_file=Path(found.key_file) if found.key_file else None).url
        key_from = key_from or local
    except SpaceError as fault:
        problem = fault
    settings = {
        "api_url": {"value": url, "source": (found.url_from or local) if url else None},
        "key_file": {"value": found.key_file, "source": key_from},
    }
    if asked.json:
        print_json({"file": str(file), "settings": settings, "problem": None if problem is None else problem.message})
        return
    rows = [(name, shown(setting["value"]), shown(setting["source"])) for name, setting in settings.items()]
    print_table(("SETTING", "VALUE", "FROM"), rows)
    note(f"the file is {file}")
    if problem is not None:
        tell(problem.message)


def set_one(context: typer.Context, name: Name, value: Annotated[str, typer.Argument(metavar="VALUE", help="An address; a path.")]) -> None:
    """Set `api_url`, the server's address, or `key_file`, the file with the API key for it. Keys go to that address only."""
    path = place(os.environ)
    held = load(path) | {_known(name): _address(value) if name == "api_url" else _key_file(value)}
    _stored(context, path, held)
    if "api_url" not in held:
        note("a key_file counts for the api_url beside it, which is not set")


def unset(context: typer.Context, name: Name) -> None:
    """Remove a setting from the client's own file."""
    path = place(os.environ)
    held = load(path)
    held.pop(_known(name), None)
    _stored(context, path, held)


def _stored(context: typer.Context, path: Path, held: dict[str, str]) -> None:
    try:
        store(path, held)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}") from error
    if of(context).json:
        print_json({"file": str(path), **{each: held.get(each) for each in NAMES}})


def _known(name: str) -> str:
    if name not in NAMES:
        raise Misuse(f"there is no setting {name!r}", hint=f"there are {' and '.join(NAMES)}; the server's are `space config server`")
    return name


def _address(text: str) -> str:
    from space.sdk.endpoint import resolve

    return resolve(text, "unused", environ={}).url


def _key_file(text: str) -> str:
    path = Path(text).expanduser().absolute()
    if not str(path).isprintable():
        raise InvalidArgument("the path holds control characters")
    try:
        mode = path.stat().st_mode
        need_file(path)
        path.open("rb").close()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}", hint="write the key into it first, and only the key") from error
    if mode & 0o077:
        tell(f"others can read {path}: chmod 600 keeps the key yours")
    return str(path)


# -- the server's ------------------------------------------------------------------------------------------------------------


def server(
    context: typer.Context,
    effective: Annotated[bool, typer.Option("--effective", help="Every setting, not only those that somebody set.")] = False,
) -> None:
    """Show what the server of this machine goes by, or would go by if it started now, and where each value came from."""
    name = of(context).instance or os.environ.get("SPACE_INSTANCE") or "default"
    need_instance(name)
    resolved, served = server_settings(name)
    values = asdict(resolved.settings)
    unset_word = loaded("space.config.settings", "DEFAULT")
    picked = {key: values[key] for key in values if effective or resolved.sources[key] != unset_word}
    if of(context).json:
        settings = {key: {"value": value, "source": resolved.sources[key]} for key, value in picked.items()}
        print_json({"instance": name, "served": served, "settings": settings})
        return
    print_table(("SETTING", "VALUE", "FROM"), [(key, written(value), resolved.sources[key]) for key, value in picked.items()])


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
