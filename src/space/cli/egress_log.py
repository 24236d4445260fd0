"""`space egress watch`, `log`, `counters`, `draft`: what the gateway decided, as it comes or as it was."""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import SandboxArgument, sandboxes
from space.cli.context import Misuse, emit, examples, note, of, print_facts, print_json, printable, size, tell
from space.cli.lazy import loaded
from space.model.egresslog import EgressRecord

if TYPE_CHECKING:
    from collections.abc import Generator

    from space.sdk import EgressGap

    Told = Generator[EgressRecord | EgressGap, None, None]

_ROWS = 200
_SPAN = re.compile(r"(\d{1,6})([smhd])\Z", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Optional = Annotated[
    str | None, typer.Argument(metavar="SANDBOX", help="Only of this one; all of the tenant's otherwise.", autocompletion=sandboxes)
]
Everybody = Annotated[bool, typer.Option("--all", help="Of all sandboxes of the tenant.")]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="Only what is not older: 10m, 2h, 3d, or a time in UTC (RFC 3339).")]
Denied = Annotated[bool, typer.Option("--denied", help="Only what was refused.")]


def add_commands(group: typer.Typer) -> None:
    """Register them."""
    group.command("watch", epilog=examples("space egress watch", "space egress watch sb-... --denied"))(watch)
    group.command("log", epilog=examples("space egress log sb-... --since 1h --denied", "space egress log --all -f --json"))(log)
    group.command("counters", epilog=examples("space egress counters sb-..."))(counters)
    group.command("draft", epilog=examples("space egress draft sb-... > policy.toml", "space policy check policy.toml"))(draft)


def watch(context: typer.Context, sandbox: Optional = None, denied: Denied = False) -> None:
    """Show what the gateway decides, as it comes: a live table on a terminal, plain lines elsewhere, until Ctrl-C."""
    with _records(context, sandbox, follow=True, denied=denied) as found:
        if of(context).json or not sys.stdout.isatty():
            _lines(context, found)
        else:
            _table(found)


def log(
    context: typer.Context,
    sandbox: Optional = None,
    everything: Everybody = False,
    since: Since = None,
    denied: Denied = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin behind this one.")] = None,
) -> None:
    """Tell what the gateway decided, the oldest first, also of a sandbox that is gone. JSON: a line for each.

    With --follow and neither --since nor --after: from now on.
    """
    if (sandbox is None) != everything:
        raise Misuse("name a sandbox, or --all", hint="space list")
    with _records(context, sandbox, follow=follow, denied=denied, since=moment(since), after=after) as found:
        _lines(context, found)


def counters(context: typer.Context, sandbox: SandboxArgument) -> None:
    """Show a sandbox's traffic in figures: what was let through, what was refused, and what its filter dropped."""
    from space.sdk import Sandbox

    with of(context).client() as client:
        found = Sandbox.connect(sandbox, client=client).egress()
    if of(context).json:
        print_json(asdict(found))
        return
    facts: dict[str, object] = {name.replace("_", " "): value for name, value in asdict(found).items() if name != "drops"}
    facts["sent bytes"], facts["received bytes"] = size(found.sent_bytes), size(found.received_bytes)
    print_facts(facts | {f"packets {kind}": count for kind, count in sorted(found.drops.items())})


def draft(
    context: typer.Context,
    sandbox: SandboxArgument,
    since: Since = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there, if nothing is there.")] = None,
) -> int:
    """Draft a policy from what a sandbox was refused, or let do because its policy only records: for reading alone, to be read first.

    Exit status 1 when nothing was seen that a rule could be made of.
    """
    made = loaded("space.core.policy.draft", "draft")
    with _records(context, sandbox, since=moment(since)) as found:
        seen, count = _seen(record for record in found if isinstance(record, EgressRecord))
    text = made(seen, title=f"from {count} records of {sandbox}")
    if output is not None:
        try:
            with output.open("x") as file:
                file.write(text)
        except OSError as error:
            raise Misuse(f"{output} cannot be written: {error.strerror}") from None
        note(f"{output}: read it, then `space policy check {output}`")
    if of(context).json:
        print_json({"records": count, "text": text})
    elif output is None:
        print(text, end="")
    return 0 if seen else 1


@contextmanager
def _records(
    context: typer.Context,
    sandbox: str | None,
    *,
    follow: bool = False,
    denied: bool = False,
    since: str | None = None,
    after: str | None = None,
) -> Iterator[Told]:
    from space.sdk import Sandbox

    with of(context).client() as client:
        source: Any = client if sandbox is None else Sandbox.connect(sandbox, client=client)
        with closing(source.egress_log(after, follow=follow, since=since, denied=denied)) as found:
            yield found


def _lines(context: typer.Context, found: Told) -> None:
    for record in found:
        if not isinstance(record, EgressRecord):
            gap = f"records of the {record.chain} up to {record.removed} are kept no longer"
            print_json({"kind": "gap", "chain": record.chain, "removed": record.removed}) if of(context).json else tell(gap)
        elif of(context).json:
            more = dict(record.more)
            print_json({name: value for name, value in asdict(record).items() if value not in ("", None, {}, ())} | more)
        else:
            emit(printable(line_of(record)))


def line_of(record: EgressRecord) -> str:
    """A record for people."""
    return "  ".join(word for word in (*_cells(record), f"({record.rule})" if record.rule else "") if word)


def _cells(record: EgressRecord) -> tuple[str, str, str, str, str]:
    """Time, sandbox, outcome, kind, and what was asked."""
    outcome = record.reason or ("recorded" if record.recorded else "allowed")
    if record.kind in ("lost", "malformed"):
        outcome = record.kind
    where = record.name + (f":{record.port}" if record.port else "")
    match record.kind:
        case "request":
            asked = f"{record.method} {where}{record.path} {record.status or ''}".strip()
        case "repeated":
            asked = f"{record.count} times {record.of} {where}".strip()
        case "connection":
            asked = f"{where} {record.requests} requests, {size(record.sent)} out, {size(record.received)} in"
        case "lost":
            asked = f"{record.count} records could not be written"
        case _:
            asked = f"{where} {record.address or record.upstream}".strip()
    return record.at.replace("T", " ").removesuffix("Z"), record.sandbox, outcome, record.kind, asked


def _table(found: Told) -> None:
    """The newest decision of each kind on top, with how often it was made."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console()
    rows: OrderedDict[tuple[str, ...], tuple[int, str]] = OrderedDict()

    def shown() -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
        for name in ("TIME", "TIMES", "SANDBOX", "OUTCOME", "KIND", "WHAT"):
            table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1 if name == "WHAT" else None)
        for key, (count, at) in list(reversed(rows.items()))[: max(console.height - 2, 5)]:
            sandbox, outcome, kind, what = key
            style = "green" if outcome == "allowed" else "yellow" if outcome == "recorded" else "red"
            cells = (at[11:19], str(count), sandbox, Text(printable(outcome), style=style), kind, Text(printable(what)))
            table.add_row(*cells)
        return table

    last = 0.0
    with Live(shown(), console=console, auto_refresh=False, transient=True) as live:
        for record in found:
            if not isinstance(record, EgressRecord):
                continue
            at, sandbox, outcome, kind, what = _cells(record)
            key = (printable(sandbox), outcome, kind, what if kind != "connection" else record.name)
            rows[key] = (rows.pop(key, (0, ""))[0] + record.count, at)
            if len(rows) > _ROWS:
                rows.popitem(last=False)
            if time.monotonic() - last > 0.1:
                live.update(shown(), refresh=True)
                last = time.monotonic()


def moment(text: str | None, option: str = "--since") -> str | None:
    """A time as records have it: so long ago, or as it was written."""
    if text is None:
        return None
    found = _SPAN.match(text)
    if found:
        meant = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    else:
        try:
            meant = dt.datetime.fromisoformat(text)
        except ValueError:
            raise Misuse(f"{option} takes 10m, 2h, 3d or a time such as 2026-01-31T12:00:00Z, not {text!r}") from None
        meant = meant.replace(tzinfo=dt.UTC) if meant.tzinfo is None else meant.astimezone(dt.UTC)
    return meant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Refusals that a rule would change; others (a mismatch, a malformed head) are no wishes.
_WISHES = frozenset({"name_not_allowed", "port_not_allowed", "scheme_not_allowed", "method_not_allowed", "path_not_allowed", "no_policy"})


def _seen(records: Iterator[Any]) -> tuple[list[Any], int]:
    """What was wished for, counted; and how many records were looked at."""
    made = loaded("space.core.policy.draft", "Seen")
    counts: Counter[tuple[str, int, str, str, str]] = Counter()
    schemes: dict[tuple[str, int], str] = {}
    looked_at = 0
    for record in records:
        looked_at += 1
        if record.kind == "connection" and record.scheme:
            schemes[(record.name, record.port)] = record.scheme
        if not record.name or not (record.recorded or record.reason in _WISHES):
            continue
        match record.kind:
            case "name":
                counts[(record.name, 0, "https", "", "")] += 1
            case "request":
                counts[(record.name, record.port, "", record.method, record.path)] += 1
            case "connection" if record.scheme in ("", "tcp"):
                counts[(record.name, record.port, record.scheme, "", "")] += 1
            case "repeated" if record.of == "name":
                counts[(record.name, 0, "https", "", "")] += record.count
            case _:
                pass
    seen = []
    for (name, port, scheme, method, path), count in counts.items():
        spoken = scheme or schemes.get((name, port)) or ("http" if port == 80 else "https" if method or port in (0, 443) else "tcp")
        seen.append(made(name, port, spoken, method, path, count))
    return seen, looked_at
