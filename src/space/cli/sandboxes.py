"""`space create`, `list` and `delete`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import grants
from space.cli.completion import sandboxes as completed
from space.cli.context import OWN_FAILURE, emit, examples, note, of, pairs, print_json, print_table, report, span, tell
from space.cli.inspect import OnTimeout, idle_policy
from space.cli.policies import PolicyOption, given
from space.cli.streams import OutputClosed, OutputFailed
from space.model.errors import SpaceError
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_DISK_MIB, DEFAULT_MEMORY_MIB, DEFAULT_TEMPLATE, Phase

if TYPE_CHECKING:
    from space.model.sandbox import SandboxInfo
    from space.sdk import Sandbox


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("create", epilog=examples("space create --memory 1024 --ttl 7200 --metadata owner=me --idle 600:pause"))(create)
    app.command("list", epilog=examples("space list -a", "space list --metadata owner=me -q"))(list_all)
    app.command("delete", epilog=examples("space delete sb-...", "space delete $(space list --metadata owner=me -q)"))(delete)


def create(
    context: typer.Context,
    template: Annotated[str, typer.Option(metavar="NAME", help="What to boot.")] = DEFAULT_TEMPLATE,
    cpus: Annotated[int, typer.Option(metavar="N", help="Virtual CPUs.")] = DEFAULT_CPUS,
    memory: Annotated[int, typer.Option(metavar="MIB", help="Memory.")] = DEFAULT_MEMORY_MIB,
    disk: Annotated[int, typer.Option(metavar="MIB", help="Disk.")] = DEFAULT_DISK_MIB,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment of every command; repeatable.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Words of yours, to find it again; repeatable.")] = None,
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="Its life, after which the server deletes it (an hour).")] = None,
    idle: Annotated[
        str | None,
        typer.Option(metavar="SECONDS[:ACTION]", help="When nothing happens in it for so long: pause, suspend, stop or delete it."),
    ] = None,
    on_timeout: Annotated[
        OnTimeout, typer.Option(metavar="ACTION", help="What becomes of it at the end of its life: delete, pause, suspend, stop.")
    ] = OnTimeout.delete,
    wake_on_call: Annotated[
        bool, typer.Option("--wake-on-call/--no-wake-on-call", help="Whether a call wakes it when a rule put it to rest.")
    ] = True,
    policy: PolicyOption = None,
    grant: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A credential that it may use; repeatable.", autocompletion=grants)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the id and nothing else.")] = False,
) -> None:
    """Make a sandbox that stays until it is deleted or its time is over; prints its id."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        began = time.monotonic()
        sandbox = Sandbox.create(
            template,
            cpus=cpus,
            memory_mib=memory,
            disk_mib=disk,
            env=pairs(env or [], "--env"),
            metadata=pairs(metadata or [], "--metadata"),
            ttl_seconds=ttl,
            idle=None if idle is None else idle_policy(idle),
            on_timeout=on_timeout.value,
            wake_on_call=wake_on_call,
            policy=None if policy is None else given(policy),
            grants=grant or (),
            client=client,
        )
        try:
            print_json(sandbox.info()) if of(context).json else emit(sandbox.id)
        except (OutputClosed, OutputFailed):
            _take_back(sandbox)
            raise
        if of(context).json:
            return
        if not quiet:
            note(f"runs after {time.monotonic() - began:.1f} s; `space exec {sandbox.id} -- CMD`, `space delete {sandbox.id}`")


def _take_back(sandbox: Sandbox) -> None:
    """Delete a sandbox whose id nobody got; where that fails, its id goes to stderr."""
    try:
        sandbox.delete()
    except SpaceError as fault:
        tell(f"{sandbox.id} was made, and could not be deleted: {fault.message}")


def list_all(
    context: typer.Context,
    phase: Annotated[str | None, typer.Option(metavar="PHASE", help="Only those in this phase.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Only those with these words; repeatable.")] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Those that have ended, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print ids and nothing else.")] = False,
) -> None:
    """List the sandboxes of the key's tenant, the newest first."""
    with of(context).client() as client:
        found = list(client.sandboxes(phase=phase, metadata=pairs(metadata or [], "--metadata")))
    if not every and phase is None:
        found = [info for info in found if info.phase is not Phase.GONE]
    if of(context).json:
        print_json({"sandboxes": [asdict(info) for info in found]})
    elif quiet:
        for info in found:
            emit(info.id)
    else:
        print_table(
            ("ID", "PHASE", "TEMPLATE", "CPUS", "MEMORY", "AGE", "ENDS IN", "METADATA"), [_row(info, time.time()) for info in found]
        )


def _row(info: SandboxInfo, now: float) -> Sequence[str]:
    ends = span(info.expires_at - now) if info.expires_at is not None and info.phase not in (Phase.GONE, Phase.FAILED) else "-"
    metadata = " ".join(f"{name}={value}" for name, value in info.spec.metadata.items())
    memory = f"{info.spec.memory_mib} MiB"
    return info.id, str(info.phase), info.spec.template, str(info.spec.cpus), memory, span(now - info.created_at), ends, metadata


def delete(
    context: typer.Context,
    sandboxes: Annotated[list[str], typer.Argument(metavar="SANDBOX...", help="Their ids.", autocompletion=completed)],
) -> int:
    """End sandboxes and remove everything of them."""
    from space.sdk import Sandbox

    failed = 0
    deleted = []
    with of(context).client() as client:
        for sandbox_id in sandboxes:
            try:
                Sandbox.connect(sandbox_id, client=client).delete()
            except SpaceError as fault:
                # The others are deleted all the same.
                report(fault, as_json=of(context).json)
                failed = OWN_FAILURE
            else:
                deleted.append(sandbox_id)
    if of(context).json:
        print_json({"deleted": deleted})
    return failed
