"""`space key create`, `list` and `revoke`: the API's keys, with an admin's key."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from space.cli.context import emit, examples, note, of, print_json, print_table


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    keys = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys (with an admin's key).", rich_markup_mode=None)
    keys.command("create", epilog=examples("space key create --tenant acme --name ci"))(create)
    keys.command("list", epilog=examples("space key list"))(list_all)
    keys.command("revoke", epilog=examples("space key revoke key-..."))(revoke)
    app.add_typer(keys, name="key")


def create(
    context: typer.Context,
    tenant: Annotated[str, typer.Option(metavar="TENANT", help="Whose sandboxes it reaches.")] = "default",
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="`tenant`, or `admin` for keys and metrics besides.")] = "tenant",
    name: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    e2b: Annotated[bool, typer.Option("--e2b", help="Of the form that E2B's clients know.")] = False,
) -> None:
    """Make a key. It is printed this once, and stored hashed."""
    with of(context).client() as client:
        made = client.create_key(tenant=tenant, scope=scope, name=name, e2b=e2b)
    if of(context).json:
        print_json(made)
        return
    emit(made.key)
    note(f"key {made.id} of tenant {made.tenant}; it is not shown again")


def list_all(context: typer.Context) -> None:
    """List keys, without their secrets."""
    with of(context).client() as client:
        found = client.keys()
    if of(context).json:
        print_json({"keys": [asdict(key) for key in found]})
        return
    rows = [(key.id, key.tenant, key.scope, key.name, _day(key.created_at), _day(key.revoked_at)) for key in found]
    print_table(("ID", "TENANT", "SCOPE", "NAME", "CREATED", "REVOKED"), rows)


def revoke(
    context: typer.Context, key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `space key list` shows it.")]
) -> None:
    """Make a key invalid, at once and for good."""
    with of(context).client() as client:
        client.revoke_key(key)
    if of(context).json:
        print_json({"revoked": key})


def _day(moment: float | None) -> str:
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment))
