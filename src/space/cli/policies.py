"""`space policy set`, `get`, `list`, `delete`, `apply`, and `explain` of a sandbox: policies that a server holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import SandboxArgument
from space.cli.completion import policies as completed
from space.cli.context import Misuse, emit, examples, note, of, print_facts, print_json, print_table, printable, shown, tell, when
from space.model.ids import sandbox_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from space.model.egress import PolicyLayer, PolicyNote, SandboxPolicy

_Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of a stored policy.", autocompletion=completed)]
_Tenant = Annotated[str | None, typer.Option("--tenant", metavar="TENANT", help="A tenant's layer (with an admin's key).")]
_Operator = Annotated[bool, typer.Option("--operator", help="The operator's layer (with an admin's key).")]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", metavar="FILE|NAME", help="What may leave it; nothing unless given.", autocompletion=completed)
]


def add_to(group: typer.Typer) -> None:
    """Register the commands."""
    lines = ("space policy set agents policy.toml", "space policy set --tenant acme acme.toml --default agents --permit open")
    layers = ("space policy set --operator operator.toml", "space policy set --operator --none")
    group.command("set", epilog=examples(*lines, *layers))(set_policy)
    group.command("get", epilog=examples("space policy get agents", "space policy get --tenant acme"))(get_policy)
    group.command("list", epilog=examples("space policy list"))(list_policies)
    group.command("delete", epilog=examples("space policy delete agents"))(delete_policy)
    applied = ("space policy apply sb-... policy.toml", "space policy apply sb-... agents", "space policy apply sb-... --none")
    group.command("apply", epilog=examples(*applied))(apply)


def given(text: str) -> Path | str:
    """A file's path, or a stored policy's name: what has a slash or a dot and is there is a file."""
    return Path(text) if "/" in text or Path(text).suffix in (".toml", ".json") else text


def set_policy(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [FILE]", help="A name and a file; for a layer the file alone.")
    ] = None,
    tenant: _Tenant = None,
    operator: _Operator = False,
    default: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --tenant: what its sandboxes have that name none.", autocompletion=completed)
    ] = None,
    permit: Annotated[list[str] | None, typer.Option(metavar="open|record", help="With --tenant: what they may have; repeatable.")] = None,
    nothing: Annotated[bool, typer.Option("--none", help="For a layer, in place of a file: it does not narrow.")] = False,
) -> None:
    """Store a policy under a name, or set a layer; live for every sandbox that it concerns.

    A layer is set whole, also what of it is not said again; one that is to narrow nothing is said to be so.
    """
    layered = _layered(tenant, operator=operator)
    files = list(words or [])
    if not layered and len(files) != 2:
        raise Misuse("a name and a file, or --tenant TENANT, or --operator", hint="space policy set agents policy.toml")
    if layered and len(files) + nothing != 1:  # a file that was forgotten must open nothing
        raise Misuse("a layer has no name: a file alone, or --none for one that does not narrow")
    if nothing and not layered:
        raise Misuse("--none is of a layer: --tenant TENANT, or --operator")
    if tenant is None and (default is not None or permit):
        raise Misuse("--default and --permit are of a tenant's layer: --tenant TENANT")
    if unknown := set(permit or []) - {"open", "record"}:
        raise Misuse(f"--permit takes open or record, not {min(unknown)!r}")
    with of(context).client() as client:
        if tenant is not None:
            found = client.set_tenant_policy(tenant, Path(files[0]) if files else None, default=default, permits=permit or ())  # type: ignore[arg-type]  # they are known
            _show_layer(context, found)
        elif operator:
            _show_layer(context, client.set_operator_policy(Path(files[0]) if files else None))
        else:
            stored = client.set_policy(files[0], Path(files[1]))
            if of(context).json:
                print_json(stored)
                return
            _warn(stored.warnings)
            note(f"{stored.name} is at revision {stored.revision}; sandboxes that follow it: {stored.sandboxes}")


def get_policy(context: typer.Context, name: _Name = None, tenant: _Tenant = None, operator: _Operator = False) -> None:
    """Show a stored policy, or a layer, as JSON."""
    if _layered(tenant, operator=operator) == (name is not None):
        raise Misuse("a name, or --tenant TENANT, or --operator")
    with of(context).client() as client:
        if name is not None:
            stored = client.policy(name)
            print_json(stored) if of(context).json else _document(stored.policy)
        else:
            found = client.tenant_policy(tenant) if tenant is not None else client.operator_policy()
            print_json(found) if of(context).json else _show_layer(context, found)


def list_policies(context: typer.Context) -> None:
    """List the tenant's stored policies."""
    with of(context).client() as client:
        found = client.policies()
    if of(context).json:
        print_json({"policies": [asdict(one) for one in found]})
        return
    rows = [(one.name, str(one.rules), str(one.sandboxes), "open" if one.open else "-", when(one.updated_at)) for one in found]
    print_table(("NAME", "RULES", "SANDBOXES", "OPEN", "CHANGED"), rows)


def delete_policy(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="Which.", autocompletion=completed)]
) -> None:
    """Forget a stored policy that no sandbox follows."""
    with of(context).client() as client:
        client.delete_policy(name)
    if of(context).json:
        print_json({"deleted": name})


def apply(
    context: typer.Context,
    sandbox: SandboxArgument,
    policy: Annotated[
        str | None, typer.Argument(metavar="[FILE|NAME]", help="A file, or a stored policy's name.", autocompletion=completed)
    ] = None,
    nothing: Annotated[bool, typer.Option("--none", help="Nothing may leave.")] = False,
) -> int:
    """Give a sandbox another policy, live. Exit status 1 when the machine does not decide by it yet."""
    from space.sdk import Sandbox

    if nothing == (policy is not None):
        raise Misuse("a file, a name, or --none")
    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client).set_policy(None if policy is None else given(policy))
    if of(context).json:
        print_json(found)
    else:
        _warn(found.warnings)
        print_facts(_facts(found))
    return 0 if found.status.state == "applied" else 1


def explain_of(context: typer.Context, sandbox: str, url: str, *, method: str, websocket: bool, foreign: bool) -> None:
    """What becomes of a URL in a sandbox, by the layers that hold there now."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client).explain(url, method=method, websocket=websocket, foreign=foreign)
    if of(context).json:
        print_json(found)
        return
    for step in found.steps:
        for at, line in enumerate(step.lines):
            emit(printable(f"{step.step if at == 0 else '':8} {line}"))


def is_sandbox(text: str) -> bool:
    """Whether a word is a sandbox's id, and so no file of ours."""
    try:
        sandbox_id(text)
    except ValueError:
        return False
    return not Path(text).exists()


def _layered(tenant: str | None, *, operator: bool) -> bool:
    if tenant is not None and operator:
        raise Misuse("--tenant and --operator are two layers: one at a time")
    return tenant is not None or operator


def _show_layer(context: typer.Context, found: PolicyLayer) -> None:
    if of(context).json:
        print_json(found)
        return
    _warn(found.warnings)
    facts = {"revision": found.revision, "default": found.default, "permits": ", ".join(found.permits)}
    print_facts(facts | ({"policy": "does not narrow"} if found.policy is None else {}))
    if found.policy is not None:
        _document(found.policy)


def _document(policy: Any) -> None:
    emit(json.dumps(policy, indent=2))


def _facts(found: SandboxPolicy) -> dict[str, object]:
    status = found.status
    return {
        "policy": status.name or ("its own" if found.policy is not None else "none: nothing may leave"),
        "narrowed by": ", ".join(found.layers),
        "state": status.state,
        "reason": status.reason,
        "generation": f"{status.generation}, applied {status.applied_generation}",
        "open": status.open,
    }


def policy_shown(status: Any) -> str:
    """One line for `space show`."""
    if not status.digest and status.name is None:
        return "none: nothing may leave"
    opened = ", OPEN: any public name" if status.open else ""
    return f"{status.name or 'its own'}, generation {status.generation}{opened}" + (
        "" if status.state == "applied" else f", {status.state}: {shown(status.reason)}"
    )


def _warn(notes: Sequence[PolicyNote]) -> None:
    for one in notes:
        tell(f"warning: {one.path}: {one.message}" + (f" ({one.hint})" if one.hint else ""))
