"""`space pause`, `resume`, `suspend`, `stop`, `wake`, `checkpoint`, `checkpoints`, `rollback`, `fork`, `export` and `import`: the life of a
sandbox.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import emit, examples, note, of, pairs, print_json, print_table, size, when

if TYPE_CHECKING:
    from space.sdk import Sandbox


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("pause", epilog=examples("space pause sb-..."))(pause)
    app.command("resume", epilog=examples("space resume sb-..."))(resume)
    app.command("suspend", epilog=examples("space suspend sb-..."))(suspend)
    app.command("stop", epilog=examples("space stop sb-..."))(stop)
    app.command("wake", epilog=examples("space wake sb-...", "space wake sb-... --cold"))(wake)
    app.command("checkpoint", epilog=examples("space checkpoint sb-..."))(checkpoint)
    app.command("checkpoints", epilog=examples("space checkpoints sb-...", "space checkpoints sb-... --drop cp-..."))(checkpoints)
    app.command("rollback", epilog=examples("space rollback sb-... cp-..."))(rollback)
    app.command("fork", epilog=examples("space fork sb-... 3", "space fork sb-... --ttl 600 --metadata try=second"))(fork)
    app.command("export", epilog=examples("space suspend sb-... && space export sb-... night.space"))(export)
    app.command("import", epilog=examples("space import night.space", "space wake $(space import night.space)"))(import_)


def pause(context: typer.Context, sandbox: SandboxArgument) -> None:
    """Stop a sandbox's processors; its memory and processes stay."""
    _lived(context, sandbox, "pause")


def resume(context: typer.Context, sandbox: SandboxArgument) -> None:
    """Let a paused sandbox's processors run."""
    _lived(context, sandbox, "resume")


def suspend(context: typer.Context, sandbox: SandboxArgument) -> None:
    """Store a sandbox's memory, processes and disk, and free the memory that it took. It is kept until it is woken or deleted."""
    _lived(context, sandbox, "suspend")


def stop(context: typer.Context, sandbox: SandboxArgument) -> None:
    """Shut a sandbox's guest down and keep its disk; its processes end."""
    _lived(context, sandbox, "stop")


def wake(
    context: typer.Context,
    sandbox: SandboxArgument,
    cold: Annotated[bool, typer.Option("--cold", help="Boot a suspended one from its disk; its stored memory is given up.")] = False,
) -> None:
    """Do whatever it takes until a sandbox runs: resume it, go on from its stored memory, or boot from its disk."""
    _lived(context, sandbox, "wake", cold=cold)


def checkpoint(context: typer.Context, sandbox: SandboxArgument) -> None:
    """Keep a sandbox's memory and disk of this instant; prints the checkpoint's id."""
    with of(context).client() as client:
        made = _connect(sandbox, client).checkpoint()
    print_json(made) if of(context).json else emit(made.id)


def checkpoints(
    context: typer.Context,
    sandbox: SandboxArgument,
    drop: Annotated[list[str] | None, typer.Option(metavar="CHECKPOINT", help="Forget this one first; repeatable.")] = None,
) -> None:
    """List a sandbox's checkpoints, the oldest first."""
    with of(context).client() as client:
        there = _connect(sandbox, client)
        for name in drop or []:
            there.drop_checkpoint(name)
        found = there.checkpoints()
    if of(context).json:
        print_json({"checkpoints": [asdict(each) for each in found]})
    else:
        rows = [(each.id, when(each.created_at), size(each.bytes), f"{each.stopped_ms:.0f} ms") for each in found]
        print_table(("ID", "TAKEN", "MEMORY", "STOOD STILL"), rows)


def rollback(
    context: typer.Context,
    sandbox: SandboxArgument,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its id.")],
) -> None:
    """Make a sandbox what it was at a checkpoint; its present is lost."""
    with of(context).client() as client:
        there = _connect(sandbox, client)
        there.rollback(checkpoint)
        if of(context).json:
            print_json(there.info())


def fork(
    context: typer.Context,
    sandbox: SandboxArgument,
    count: Annotated[int, typer.Argument(metavar="[N]", min=1, help="How many children.")] = 1,
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="The life of each; as the parent's unless given.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Words of each, instead of the parent's; repeatable.")] = None,
    grant: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A grant that each has; repeatable.")] = None,
) -> None:
    """Make children of this instant of a sandbox, which goes on too; prints their ids. Its own grants are not theirs."""
    with of(context).client() as client:
        words = pairs(metadata or [], "--metadata") if metadata else None
        children = _connect(sandbox, client).fork(count, ttl_seconds=ttl, metadata=words, grants=grant or [])
        if of(context).json:
            print_json({"sandboxes": [asdict(child.info()) for child in children]})
            return
        for child in children:
            emit(child.id)


def _connect(sandbox: str, client: object) -> Sandbox:
    from space.sdk import Sandbox

    return Sandbox.connect(sandbox, client=client)  # type: ignore[arg-type]  # a client, whose class costs an import


def _lived(context: typer.Context, sandbox: str, verb: str, *, cold: bool = False) -> None:
    with of(context).client() as client:
        found = _connect(sandbox, client)
        if verb == "wake":
            found.wake(cold=cold)
        else:
            getattr(found, verb)()
        info = found.info()
    if of(context).json:
        print_json(info)
    else:
        note(f"{info.id} is {info.phase}")


def export(
    context: typer.Context,
    sandbox: SandboxArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; it is not there yet.")],
) -> None:
    """Write a suspended sandbox to one file: memory, processes and disk. It holds what its programs had in memory, secrets too."""
    with of(context).client() as client:
        written = _connect(sandbox, client).export(file)
    print_json({"file": str(file), "bytes": written}) if of(context).json else note(f"{file}: {written / (1 << 20):.1f} MiB")


def import_(
    context: typer.Context, file: Annotated[Path, typer.Argument(metavar="FILE", help="What an export of this server's wrote.")]
) -> None:
    """Make a suspended sandbox of such a file; prints its id. It is another one than went out, and wakes with the same memory."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        made = Sandbox.import_file(file, client=client)
        info = made.info()
    print_json(info) if of(context).json else emit(info.id)
