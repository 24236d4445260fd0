"""`space cp`: files and directories into a sandbox and out of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.context import note, of, print_json, writer

if TYPE_CHECKING:
    from space.sdk import Client

_REMOTE = re.compile(r"(sb-[a-z2-7]{20}):(.*)", re.DOTALL)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("cp")(copy)


@dataclass(frozen=True, slots=True)
class Remote:
    """A place in a sandbox."""

    sandbox: str
    path: str


def place(text: str) -> Remote | str:
    """`SANDBOX:PATH`, or a local path (or `-`). A local file whose name looks like the former is written `./sb-...`."""
    found = _REMOTE.fullmatch(text)
    return Remote(found[1], found[2] or ".") if found else text


def copy(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A path, SANDBOX:PATH, or - for a tar stream on standard input.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A path, SANDBOX:PATH, or - for a tar stream on standard output.")],
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="The guest's user to read or write as.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Leave these out on the way in; repeatable.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is there on the way out.")] = False,
    skip_links: Annotated[
        bool, typer.Option("--skip-links", help="Leave out links that lead out of the tree, instead of refusing it.")
    ] = False,
) -> None:
    """Copy a file or directory into a sandbox, or out of it.

    TO is the name that the copy gets; with a trailing slash, the directory that it goes into. What comes out of a
    sandbox is unpacked safely: nothing outside TO is touched, and nothing is left of a tree that was refused.
    """
    from space.sdk import Sandbox

    asked = of(context)
    match place(source), place(target):
        case str() as local, Remote() as remote:
            with asked.client() as client:
                sandbox = Sandbox.connect(remote.sandbox, client=client)
                if local == "-":
                    took = sandbox.put_tar(_blocks(), remote.path, user=user)
                else:
                    took = sandbox.upload(local, remote.path, user=user, exclude=exclude or ())
            if asked.json:
                print_json(took)
            else:
                note(f"{took.entries} entries, {took.bytes} bytes")
        case Remote() as remote, str() as local:
            with asked.client() as client:
                _out(client, remote, local, user=user, replace=replace, skip_links=skip_links, as_json=asked.json)
        case _:
            raise typer.BadParameter("exactly one of FROM and TO is SANDBOX:PATH")


def _out(client: Client, remote: Remote, local: str, *, user: str | None, replace: bool, skip_links: bool, as_json: bool) -> None:
    from space.sdk import Sandbox

    sandbox = Sandbox.connect(remote.sandbox, client=client)
    if local == "-":
        write = writer(sys.stdout.fileno())
        for piece in sandbox.get_tar(remote.path, user=user):
            write(piece)
        return
    took = sandbox.download(remote.path, local, user=user, replace=replace, links="skip" if skip_links else "refuse")
    if as_json:
        print_json(asdict(took))
        return
    for name in took.skipped:
        note(f"left out: {name!r}, a link that leads out of the tree")
    note(f"{took.entries} entries, {took.bytes} bytes")


def _blocks() -> Iterator[bytes]:
    while block := sys.stdin.buffer.read(256 << 10):
        yield block
