"""`space audit`: who did what through the API; and the gateway's own records, verified and exported from their files."""

from __future__ import annotations

import asyncio
import heapq
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from space.cli.context import Misuse, emit, examples, of, print_json, printable, when
from space.cli.egress_log import Since, moment
from space.cli.lazy import loaded
from space.model.egresslog import AUDIT_CHAINS, RECORD_KINDS
from space.model.errors import InvalidArgument, PermissionDenied

_KEY = re.compile(r"[0-9a-f]{64}\Z")
Files = Annotated[Path | None, typer.Option("--files", metavar="DIR", help="A copy of the records; this machine's own otherwise.")]
Chains = Annotated[list[str] | None, typer.Option("--chain", metavar="NAME", help=f"Only this: {', '.join(AUDIT_CHAINS)}; repeatable.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(
        invoke_without_command=True,
        help="Tell who did what through the API, and verify what the egress gateway recorded.",
        rich_markup_mode=None,
        epilog=examples("space audit --after 5000", "space audit --tenant acme --json", "space audit verify"),
    )
    group.callback(invoke_without_command=True)(audit)
    group.command("verify", epilog=examples("space audit verify", "space audit verify --files ./copy --key audit.key"))(verify)
    group.command("export", epilog=examples("space audit export --since 1d --sandbox sb-... > records.jsonl"))(export)
    group.command("key", epilog=examples("space audit key > audit.key"))(key)
    app.add_typer(group, name="audit")


def audit(
    context: typer.Context,
    after: Annotated[int | None, typer.Option(metavar="ID", min=0, help="Begin behind this record.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="Only of this one (with an admin's key).")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="So many at most.")] = None,
) -> None:
    """Tell who did what and when, the oldest first. With a tenant's key: what was done with its own keys. JSON: a line for each.

    What sandboxes sent is `space egress log`; whether its records are whole is `space audit verify`.
    """
    if context.invoked_subcommand is not None:
        return
    left = limit
    with of(context).client() as client:
        for record in client.audit(after, tenant=tenant):
            if of(context).json:
                print_json(record)
            else:
                what = f"{record.route} {record.sandbox or ''}".strip()
                emit(printable(f"{when(record.at)}  {record.id}  {record.tenant}  {record.key_id}  {record.peer}  {record.status}  {what}"))
            left = None if left is None else left - 1
            if left == 0:
                return


def verify(
    context: typer.Context,
    files: Files = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Of `space audit key`, or a file that holds it.")] = None,
    chains: Chains = None,
) -> int:
    """Say whether records of egress were removed, changed, put in another order or cut off. Exit status 1 when something is found.

    As root on the server: its files, against what its broker remembers. With --files and --key: a copy, anywhere, without a server; then
    files that were put back together with their older head are not found, for only the broker knows that there was more.
    """
    if (files is None) != (key is None):
        raise Misuse("--files and --key go together: a copy is verified with the public key", hint="space audit key, on the server")
    wanted = _chains(chains)
    if files is not None and key is not None:
        directory, public, floors = _directory(files), _public(key), dict.fromkeys(wanted)
    else:
        directory, socket = _own(context)
        public, floors = asyncio.run(_known(socket, wanted))
    found = {name: loaded("space.audit.files", "verify_files")(directory, name, public, floor=floors[name]) for name in wanted}
    intact = all(one.intact for one in found.values())
    if of(context).json:
        print_json({"intact": intact, "chains": [_told(name, one) for name, one in found.items()]})
        return 0 if intact else 1
    for name, one in found.items():
        behind = f", and {one.unvouched} behind them that nobody vouches for yet" if one.unvouched else ""
        emit(f"{name}: {one.records} records are vouched for{behind}")
        for finding in one.findings:
            where = f"{finding.file}:{finding.line}: " if finding.file else ""
            emit(printable(f"{name}: {finding.problem}: {where}{finding.message}"))
    emit("intact" if intact else "NOT intact")
    return 0 if intact else 1


def export(
    context: typer.Context,
    files: Files = None,
    chains: Chains = None,
    sandbox: Annotated[str | None, typer.Option(metavar="SANDBOX", help="Only of this one.")] = None,
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", help=f"Only these: {', '.join(RECORD_KINDS)}; repeatable.")] = None,
    since: Since = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only what is older, as --since.")] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only what was refused.")] = False,
) -> None:
    """Print records of egress as they are in their files, a JSON object a line, in the order of time. As root on the server, or of a copy.

    What is no record is passed over; `space audit verify` tells of it.
    """
    if unknown := set(kind or []) - set(RECORD_KINDS):
        raise Misuse(f"there is no kind {min(unknown)!r}", hint=f"there are {', '.join(RECORD_KINDS)}")
    directory = _directory(files) if files is not None else _own(context)[0]
    wanted = loaded("space.audit.files", "Wanted")(
        sandbox=sandbox, kinds=frozenset(kind) if kind else None, since=moment(since), until=moment(until, "--until"), denied=denied
    )
    chosen = [loaded("space.audit.files", "export")(directory, name, wanted) for name in _chains(chains)]
    for line in heapq.merge(*map(_timed, chosen)):
        sys.stdout.buffer.write(line[2])
    sys.stdout.buffer.flush()


def key(context: typer.Context) -> None:
    """Print the public key with which copies of the records can be verified anywhere (as root on the server). Keep it elsewhere."""
    _, socket = _own(context)
    public = asyncio.run(_head_key(socket)).hex()
    print_json({"key": public}) if of(context).json else emit(public)


def _timed(lines: Iterator[bytes]) -> Iterator[tuple[str, int, bytes]]:
    at = re.compile(rb'"at":"([^"]{0,40})"')
    last = ""  # a clock that went back does not change a chain's own order
    for number, line in enumerate(lines):
        found = at.search(line)
        last = max(last, found[1].decode("ascii", "replace") if found else last)
        yield last, number, line


def _told(name: str, one: Any) -> dict[str, Any]:
    findings = [{"problem": each.problem, "file": each.file, "line": each.line, "message": each.message} for each in one.findings]
    return {"chain": name, "intact": one.intact, "records": one.records, "unvouched": one.unvouched, "findings": findings}


def _chains(given: list[str] | None) -> list[str]:
    if unknown := set(given or []) - set(AUDIT_CHAINS):
        raise Misuse(f"there is no chain {min(unknown)!r}", hint=f"there are {', '.join(AUDIT_CHAINS)}")
    return list(dict.fromkeys(given or AUDIT_CHAINS))


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise Misuse(f"{path} is no directory")
    return path


def _public(text: str) -> Any:
    if not _KEY.match(text):
        try:
            text = Path(text).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise Misuse(f"--key: {text[:80]!r} is neither 64 hex digits nor a file that can be read", hint="space audit key") from None
    if not _KEY.match(text):
        raise Misuse("--key: the file does not hold 64 hex digits", hint="space audit key")
    return loaded("space.audit.publickey", "PublicKey")(bytes.fromhex(text))


def _own(context: typer.Context) -> tuple[Path, Path]:
    """This machine's files, and its broker's socket."""
    name = of(context).instance or os.environ.get("SPACE_INSTANCE") or "default"
    try:
        instance = loaded("space.config.instance", "load")(name)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if instance is None:
        raise InvalidArgument(f"there is no instance '{name}' on this host", hint="--files names a copy of the records")
    if os.geteuid() != 0:
        raise PermissionDenied("the records are the server's own: root alone can read them", hint="sudo, or `space egress log`")
    return _directory(instance.audit_data), instance.broker_socket


async def _known(socket: Path, chains: list[str]) -> tuple[Any, dict[str, Any]]:
    """The broker's public key, and how far it remembers to have vouched."""
    client = loaded("space.rpc.broker_client", "BrokerControl").connect(socket)
    try:
        public = loaded("space.audit.publickey", "PublicKey")(await client.head_key())
        return public, {name: await client.head(name) for name in chains}
    finally:
        client.close()


async def _head_key(socket: Path) -> bytes:
    client = loaded("space.rpc.broker_client", "BrokerControl").connect(socket)
    try:
        found: bytes = await client.head_key()
    finally:
        client.close()
    return found
