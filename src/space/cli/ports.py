"""`space expose`, `unexpose` and `ingress`: servers in sandboxes that others may reach, by an address of their own."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import emit, examples, note, of, print_facts, print_json, print_table
from space.model.errors import NotFound

if TYPE_CHECKING:
    from space.model.ports import ExposedPort

Port = Annotated[int, typer.Argument(metavar="PORT", min=1, max=65_535, help="Where the server in the sandbox listens.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("expose", epilog=examples("space expose sb-... 8080", "space expose sb-... 8080 --public", "space expose sb-..."))(expose)
    app.command("unexpose", epilog=examples("space unexpose sb-... 8080"))(unexpose)
    group = typer.Typer(no_args_is_help=True, help="How exposed ports are reached.")
    group.command("show", epilog=examples("space ingress show"))(show)
    group.command("ca", epilog=examples("space ingress ca > ca.pem", "SSL_CERT_FILE=ca.pem curl https://8080-i...sandboxes.example.com/"))(
        ca
    )
    app.add_typer(group, name="ingress")


def expose(
    context: typer.Context,
    sandbox: SandboxArgument,
    port: Annotated[int | None, typer.Argument(metavar="[PORT]", min=1, max=65_535, help="Of a server in it; without: list them.")] = None,
    public: Annotated[bool, typer.Option("--public/--private", help="By anybody, or by who sends its token.")] = False,
) -> None:
    """Let a port of a sandbox be reached from outside; prints its address. Without a port: list those that are.

    Who reaches a private one sends the headers that are printed with it.
    """
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client)
        if port is None:
            _listed(found.exposed(), as_json=of(context).json)
            return
        made = found.expose(port, public=public)
    if of(context).json:
        print_json(asdict(made))
        return
    emit(made.url)
    if made.token is not None:
        note(f"send `E2b-Traffic-Access-Token: {made.token}`")
    note(f"or ask {made.address} with " + ", ".join(f"`{name}: {value}`" for name, value in made.headers.items() if value != made.token))


def _listed(found: list[ExposedPort], *, as_json: bool) -> None:
    if as_json:
        print_json({"ports": [asdict(one) for one in found]})
    else:
        print_table(("PORT", "WHO", "URL"), [(str(one.port), "anybody" if one.public else "token", one.url) for one in found])


def unexpose(context: typer.Context, sandbox: SandboxArgument, port: Port) -> None:
    """Let a port of a sandbox be reached no more; connections that are open end."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        Sandbox.connect(sandbox, client=client).unexpose(port)
    if of(context).json:
        print_json({"sandbox": sandbox, "unexposed": port})


def show(context: typer.Context) -> None:
    """Show where the ingress listens, and below which domain names lead to ports."""
    with of(context).client() as client:
        found = client.ingress()
    told = asdict(found)
    print_json(told) if of(context).json else print_facts(
        {**told, "ca": None if found.ca is None else "this server's own: space ingress ca"}
    )


def ca(context: typer.Context) -> None:
    """Print the authority that the ingress's certificate is of, as PEM. Who trusts it trusts it for that domain and nothing else."""
    with of(context).client() as client:
        found = client.ingress()
    if found.ca is None:
        remedy = "the operator's files are used, or there is no domain"
        raise NotFound("this server made no authority of its own for its ingress", hint=remedy)
    if of(context).json:
        print_json({"ca": found.ca})
    else:
        emit(found.ca.rstrip("\n"))
