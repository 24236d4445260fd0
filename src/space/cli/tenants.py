"""`space quota`, `webhooks` and `audit`: what an operator and a tenant agree on."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.context import emit, examples, note, of, print_json, print_table, printable, shown, when
from space.model.errors import InvalidArgument
from space.model.events import EVENT_KINDS

if TYPE_CHECKING:
    from space.model.tenants import QuotaInfo

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Whose.")]
Limit = str | None


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    quota = typer.Typer(no_args_is_help=True, help="Show and set what a tenant may have (with an admin's key).", rich_markup_mode=None)
    quota.command("show", epilog=examples("space quota show acme"))(show_quota)
    quota.command("set", epilog=examples("space quota set acme --sandboxes 20 --memory 16384 --rate default"))(set_quota)
    app.add_typer(quota, name="quota")
    webhooks = typer.Typer(no_args_is_help=True, help="Have events delivered to an address.", rich_markup_mode=None)
    webhooks.command("list", epilog=examples("space webhooks list"))(list_webhooks)
    webhooks.command("create", epilog=examples("space webhooks create https://hooks.example.com/space --kind deleted"))(create_webhook)
    webhooks.command("delete", epilog=examples("space webhooks delete wh-..."))(delete_webhook)
    app.add_typer(webhooks, name="webhooks")


# -- quotas ----------------------------------------------------------------------------------------------------------------


def show_quota(context: typer.Context, tenant: Tenant) -> None:
    """Show what a tenant may have, and has."""
    with of(context).client() as client:
        _show_quota(context, client.quota(tenant))


def _show_quota(context: typer.Context, info: QuotaInfo) -> None:
    if of(context).json:
        print_json(info)
        return
    own, effective, used = asdict(info.quota), asdict(info.effective), asdict(info.used)
    rows = [
        (name, shown(used.get(name)), "no limit" if limit is None else str(limit), "default" if own[name] is None else "its own")
        for name, limit in effective.items()
    ]
    print_table((info.tenant, "USED", "LIMIT", "FROM"), rows)


def limit_of(text: str, option: str) -> float | None:
    """A number, or `default`."""
    if text == "default":
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number < 1e12:
        raise InvalidArgument(f"{option} takes a number or `default`, not {text!r}")
    return number if option == "--rate" else int(number)


def set_quota(
    context: typer.Context,
    tenant: Tenant,
    sandboxes: Annotated[Limit, typer.Option(metavar="N", help="Live ones at a time.")] = None,
    cpus: Annotated[Limit, typer.Option(metavar="N", help="Of all of them together.")] = None,
    memory: Annotated[Limit, typer.Option(metavar="MIB", help="Of all of them together.")] = None,
    disk: Annotated[Limit, typer.Option(metavar="MIB", help="Of all of them together.")] = None,
    snapshot: Annotated[Limit, typer.Option(metavar="MIB", help="Of stored memory and checkpoints.")] = None,
    checkpoints: Annotated[Limit, typer.Option(metavar="N", help="Of all of them together.")] = None,
    secrets: Annotated[Limit, typer.Option(metavar="N", help="That are kept.")] = None,
    grants: Annotated[Limit, typer.Option(metavar="N", help="That are kept.")] = None,
    rate: Annotated[Limit, typer.Option(metavar="N", help="Requests a second, as fast as the allowance is refilled.")] = None,
    burst: Annotated[Limit, typer.Option(metavar="N", help="The allowance, in requests.")] = None,
) -> None:
    """Set what a tenant may have: what is given, and nothing else. `default` is the server's own limit again."""
    given = {
        "sandboxes": ("--sandboxes", sandboxes),
        "cpus": ("--cpus", cpus),
        "memory_mib": ("--memory", memory),
        "disk_mib": ("--disk", disk),
        "snapshot_mib": ("--snapshot", snapshot),
        "checkpoints": ("--checkpoints", checkpoints),
        "secrets": ("--secrets", secrets),
        "grants": ("--grants", grants),
        "requests_per_second": ("--rate", rate),
        "burst": ("--burst", burst),
    }
    changed: dict[str, Any] = {name: limit_of(text, option) for name, (option, text) in given.items() if text is not None}
    if not changed:
        raise typer.BadParameter("there is nothing to set: such as --sandboxes 20")
    with of(context).client() as client:
        _show_quota(context, client.set_quota(tenant, replace(client.quota(tenant).quota, **changed)))


# -- webhooks --------------------------------------------------------------------------------------------------------------


def list_webhooks(context: typer.Context) -> None:
    """List where events are delivered, the oldest first."""
    with of(context).client() as client:
        found = client.webhooks()
    if of(context).json:
        print_json({"webhooks": [asdict(each) for each in found]})
        return
    rows = [
        (
            each.id,
            each.url,
            ",".join(each.kinds) if each.kinds else "all",
            str(each.cursor),
            when(each.failing_since),
            shown(each.last_error),
        )
        for each in found
    ]
    print_table(("ID", "URL", "KINDS", "DELIVERED TO", "FAILING SINCE", "LAST ERROR"), rows)


def create_webhook(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="An https address.")],
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", help=f"Only these: {', '.join(EVENT_KINDS)}; repeatable.")] = None,
    secret_stdin: Annotated[bool, typer.Option("--secret-stdin", help="Take the signatures' secret from standard input.")] = False,
) -> None:
    """Have the events from now on delivered, signed. Prints the secret of the signatures, this once."""
    # A secret in an argument would be in the list of processes and the shell's history.
    secret = sys.stdin.readline().rstrip("\n") if secret_stdin else None
    if unknown := set(kind or []) - set(EVENT_KINDS):
        raise InvalidArgument(f"there is no kind {min(unknown)!r}", hint=f"there are {', '.join(EVENT_KINDS)}")
    with of(context).client() as client:
        made = client.create_webhook(url, kinds=kind or None, secret=secret)  # type: ignore[arg-type]  # the names are known
    if of(context).json:
        print_json(made)
        return
    emit(printable(made.secret))
    note(f"webhook {made.webhook.id}; its secret is not shown again")


def delete_webhook(
    context: typer.Context, webhook: Annotated[str, typer.Argument(metavar="ID", help="As `space webhooks list` shows it.")]
) -> None:
    """Deliver nothing more there."""
    with of(context).client() as client:
        client.delete_webhook(webhook)
    if of(context).json:
        print_json({"deleted": webhook})
