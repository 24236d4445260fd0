"""`space show`, `update` and `metrics`: one sandbox, looked at and changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from space.cli.completion import SandboxArgument, processes
from space.cli.context import Misuse, examples, note, of, pairs, print_facts, print_json, print_table, size, span, when
from space.cli.policies import policy_shown
from space.cli.processes import found_process, how
from space.model.sandbox import Action, IdlePolicy, Phase

if TYPE_CHECKING:
    from space.model.process import ProcessInfo
    from space.model.sandbox import SandboxInfo
    from space.sdk import MetricsHistory, Sample

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60


class OnTimeout(StrEnum):
    """What becomes of a sandbox at the end of its life."""

    delete = "delete"
    pause = "pause"
    suspend = "suspend"
    stop = "stop"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("show", epilog=examples("space show sb-...", "space show sb-... pr-..."))(show)
    app.command("update", epilog=examples("space update sb-... --ttl 7200 --idle 600:pause", "space update sb-... --unset owner"))(update)
    app.command("metrics", epilog=examples("space metrics sb-...", "space metrics sb-... --history --since 600"))(metrics)


def idle_policy(text: str) -> IdlePolicy:
    """`SECONDS`, or with `:pause`, `:suspend`, `:stop` or `:delete` behind it."""
    seconds, _, action = text.partition(":")
    if not seconds.isascii() or not seconds.isdigit() or action not in ("", *get_args(Action)):
        raise Misuse(f"--idle takes SECONDS, or SECONDS: and one of {', '.join(get_args(Action))}, not {text!r}")
    return IdlePolicy(int(seconds), cast("Action", action or "pause"))


def show(
    context: typer.Context,
    sandbox: SandboxArgument,
    process: Annotated[str | None, typer.Argument(metavar="[PROCESS]", help="One of its processes.", autocompletion=processes)] = None,
) -> None:
    """Show all there is to know of a sandbox, or of one of its processes."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client)
        if process is not None:
            told = found_process(found, process).info()
            print_json(told) if of(context).json else print_facts(_process_facts(told))
            return
        info = found.info()
        shown = found.exposed() if info.phase is not Phase.GONE else []
    if of(context).json:
        print_json({**asdict(info), "exposed": [asdict(one) for one in shown]})
        return
    ports = {f"port {one.port}": f"{one.url}, {'anybody' if one.public else 'with its token'}" for one in shown}
    print_facts(_sandbox_facts(info, time.time()) | ports)


def _sandbox_facts(info: SandboxInfo, now: float) -> dict[str, object]:
    spec = info.spec
    alive = info.phase not in (Phase.GONE, Phase.FAILED)
    left = f", in {span(info.expires_at - now)}" if info.expires_at is not None and alive else ""
    facts: dict[str, object] = {
        "id": info.id,
        "phase": info.phase.value,
        "reason": info.reason,
        "template": spec.template,
        "isolation": info.isolation,
        "cpus": spec.cpus,
        "memory": f"{spec.memory_mib} MiB",
        "disk": f"{spec.disk_mib} MiB",
        "created": when(info.created_at),
        "ends": when(info.expires_at) + left,
        "life": f"{info.generation}, {info.start}" if info.start else str(info.generation),
        "parent": info.parent,
        "stored": f"{size(info.snapshot_bytes)}, {info.checkpoints} checkpoints" if info.snapshot_bytes else None,
        "at its end": spec.on_timeout,
        "when idle": None if spec.idle is None else f"{spec.idle.action} after {span(spec.idle.seconds)}",
        "revision": info.revision,
        "policy": policy_shown(info.policy),
    }
    facts |= {f"env {name}": value for name, value in sorted(spec.env.items())}
    return facts | {f"metadata {name}": value for name, value in sorted(spec.metadata.items())}


def _process_facts(info: ProcessInfo) -> dict[str, object]:
    facts: dict[str, object] = {
        "id": info.id,
        "sandbox": info.sandbox,
        "pid": info.pid,
        "state": how(info),
        "reason": info.reason,
        "command": " ".join(info.argv),
        "cwd": info.cwd,
        "user": info.user,
        "terminal": info.pty,
        "started": when(info.started_at),
        "ended": when(info.ended_at),
        "stdin": f"{info.stdin}, {info.stdin_bytes} bytes taken",
        "stdout": f"{info.stdout_bytes} bytes, kept from {info.stdout_first} on",
        "stderr": f"{info.stderr_bytes} bytes, kept from {info.stderr_first} on",
    }
    if info.exit is not None:
        facts |= {"timed out": info.exit.timed_out, "out of memory": info.exit.oom_killed, "took": f"{info.exit.wall_ms} ms"}
    return facts


def update(
    context: typer.Context,
    sandbox: SandboxArgument,
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="Its life, from now on; longer or shorter.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Set these words; repeatable.")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="K", help="Remove these words; repeatable.")] = None,
    idle: Annotated[str | None, typer.Option(metavar="SECONDS[:ACTION]", help="When nothing happens for so long.")] = None,
    no_idle: Annotated[bool, typer.Option("--no-idle", help="No rule for when nothing happens.")] = False,
    on_timeout: Annotated[OnTimeout | None, typer.Option(metavar="ACTION", help="What becomes of it at the end of its life.")] = None,
    wake_on_call: Annotated[
        bool | None, typer.Option("--wake-on-call/--no-wake-on-call", help="Whether a call wakes it when a rule put it to rest.")
    ] = None,
    revision: Annotated[int | None, typer.Option(metavar="N", help="Only if it was not changed since this one.")] = None,
) -> None:
    """Change a sandbox: what is given, and nothing else."""
    from space.sdk import Sandbox

    if idle and no_idle:
        raise typer.BadParameter("--idle and --no-idle contradict each other")
    words: dict[str, str | None] = {**pairs(metadata or [], "--metadata"), **dict.fromkeys(unset or [])}
    more: dict[str, Any] = {"idle": None} if no_idle else {"idle": idle_policy(idle)} if idle else {}
    if not words and not more and ttl is None and on_timeout is None and wake_on_call is None:
        raise typer.BadParameter("there is nothing to change: give at least one of --ttl, --metadata, --unset, --idle, --on-timeout")
    with of(context).client() as client:
        info = Sandbox.connect(sandbox, client=client).update(
            ttl_seconds=ttl,
            metadata=words or None,
            on_timeout=None if on_timeout is None else on_timeout.value,
            wake_on_call=wake_on_call,
            revision=revision,
            **more,
        )
    if of(context).json:
        print_json(info)
    else:
        note(f"{info.id} is at revision {info.revision}")


def metrics(
    context: typer.Context,
    sandbox: SandboxArgument,
    history: Annotated[bool, typer.Option("--history", help="The same over time.")] = False,
    since: Annotated[int | None, typer.Option(metavar="SECONDS", min=1, help="Of the history, only the last so long.")] = None,
) -> None:
    """Show what a sandbox takes: memory, processors, disk, and its VM on the host."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client)
        if history or since is not None:
            past = found.metrics_history(None if since is None else time.time() - since)
            print_json(past) if of(context).json else _show_history(past)
            return
        now = found.metrics()
    if of(context).json:
        print_json(now)
        return
    print_facts({
        "memory": f"{size(now.memory_total - now.memory_available)} of {size(now.memory_total)}",
        "disk": f"{size(now.disk_used)} of {size(now.disk_total)}",
        "cpu time": f"{now.cpu_user_ms / 1000:.2f} s user, {now.cpu_system_ms / 1000:.2f} s system",
        "load": f"{now.load1_milli / 1000:.2f}",
        "processes": now.processes,
        "up": span(now.uptime_ms / 1000),
        "on the host": f"{size(now.host_memory_bytes)}, {now.host_cpu_ms / 1000:.2f} s of processor",
    })  # fmt: skip


def _show_history(past: MetricsHistory) -> None:
    if not past.samples:
        note("nothing was kept yet")
        return
    rows = [(name, sparkline(values), *map(write, (min(values), max(values), values[-1]))) for name, values, write in curves(past.samples)]
    print_table(("", f"{when(past.samples[0].at)} to {when(past.samples[-1].at)[11:]} UTC", "LEAST", "MOST", "LAST"), rows)


def curves(samples: Sequence[Sample]) -> list[tuple[str, list[float], Any]]:
    """The figures that are shown over time, and how each is written. cpu: of one processor, between a sample and the next."""
    steps = [
        100 * (after.cpu_user_ms + after.cpu_system_ms - before.cpu_user_ms - before.cpu_system_ms) / (1000 * (after.at - before.at))
        for before, after in pairwise(samples)
        if after.at > before.at
    ]
    found: list[tuple[str, list[float], Any]] = [
        ("memory", [float(each.memory_total - each.memory_available) for each in samples], size),
        ("disk", [float(each.disk_used) for each in samples], size),
        ("processes", [float(each.processes) for each in samples], "{:.0f}".format),
        ("host memory", [float(each.host_memory_bytes) for each in samples], size),
    ]
    return ([("cpu", steps, "{:.0f} %".format)] if steps else []) + found


def sparkline(values: Sequence[float], columns: int = _COLUMNS) -> str:
    """A row of bars from the least value to the greatest; the greatest of what falls into a column."""
    count = min(columns, len(values))
    spread = [values[n * len(values) // count : (n + 1) * len(values) // count] for n in range(count)]
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((max(each) - low) * scale)] for each in spread)
