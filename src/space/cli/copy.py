"""`space cp`: files and directories into a sandbox and out of it."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import sandboxes
from space.cli.context import examples, note, of, print_json, size, tell, writer
from space.cli.progress import Progress
from space.model.errors import InvalidArgument, SpaceError

if TYPE_CHECKING:
    from space.sdk import Client, Sandbox

_REMOTE = re.compile(r"(sb-[a-z2-7]{20}):(.*)", re.DOTALL)
_TRAVELS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
_STAYS = ("fifo", "socket", "character", "block")
_DEEPEST = 256


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    lines = ("space cp ./project sb-...:/srv/project", "space cp sb-...:/srv/project/report .", "tar -c . | space cp - sb-...:/srv/x")
    app.command("cp", epilog=examples(*lines))(copy)


@dataclass(frozen=True, slots=True)
class Remote:
    """A place in a sandbox."""

    sandbox: str
    path: str


def place(text: str) -> Remote | str:
    """`SANDBOX:PATH`, or a local path (or `-`). A local file whose name looks like the former is written `./sb-...`."""
    found = _REMOTE.fullmatch(text)
    return Remote(found[1], found[2] or ".") if found else text


def _places(ctx: typer.Context, incomplete: str) -> list[str]:
    return [f"{each}:" for each in sandboxes(ctx, incomplete)] if incomplete.startswith("sb-") else []


@dataclass(frozen=True, slots=True)
class Options:
    """How to copy."""

    user: str | None
    exclude: tuple[str, ...]
    replace: bool
    skip_links: bool
    json: bool


def copy(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="A path, SANDBOX:PATH, or - for a tar stream on standard input.", autocompletion=_places),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="A path, SANDBOX:PATH, or - for a tar stream on standard output.", autocompletion=_places)
    ],
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="The guest's user to read or write as.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Leave these out on the way in; repeatable.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is there on the way out.")] = False,
    skip_links: Annotated[
        bool, typer.Option("--skip-links", help="Leave out links that lead out of the tree, instead of refusing it.")
    ] = False,
) -> None:
    """Copy a file or directory into a sandbox, or out of it.

    TO is the name that the copy gets; with a trailing slash, the directory that it goes into. What comes out of a
    sandbox is unpacked safely: nothing outside TO is touched, and nothing is left of a tree that was refused. Sockets, pipes and devices
    stay where they are; stderr says how many.
    """
    from space.sdk import Sandbox

    asked = of(context)
    options = Options(user, tuple(exclude or ()), replace, skip_links, asked.json)

    def connected(client: Client, name: str) -> Sandbox:
        return Sandbox.connect(name, client=client)

    match place(source), place(target):
        case str() as local, Remote() as remote:
            with asked.client() as client:
                _in(connected(client, remote.sandbox), local, remote.path, options)
        case Remote() as remote, "-":
            if sys.stdout.isatty():
                raise InvalidArgument("a tar stream is nothing for a terminal", hint="redirect it: > FILE, or | tar -t")
            with asked.client() as client, closing(connected(client, remote.sandbox).get_tar(remote.path, user=user)) as pieces:
                write = writer(sys.stdout.fileno())
                for piece in pieces:
                    write(piece)
        case Remote() as remote, str() as local:
            with asked.client() as client:
                _out(connected(client, remote.sandbox), remote.path, local, options)
        case _:
            raise typer.BadParameter("exactly one of FROM and TO is SANDBOX:PATH")


class Staying:
    """What of a local tree is not sent: what the patterns say, and what has no content that could travel, which is counted."""

    def __init__(self, root: str, patterns: tuple[str, ...]) -> None:
        from space.sdk.pack import matcher

        self._root = root
        self._matches = matcher(patterns)
        self.count = 0

    def __call__(self, path: str) -> bool:
        """Whether this path, relative to the tree, stays."""
        if self._matches(path):
            return True
        mode = os.lstat(f"{self._root}/{path}").st_mode
        if any(travels(mode) for travels in _TRAVELS):
            return False
        self.count += 1
        return True


def _in(sandbox: Sandbox, local: str, path: str, options: Options) -> None:
    staying = Staying(local, options.exclude)
    total = Path(local).stat().st_size if Path(local).is_file() else None
    with Progress(total=total) as progress:
        if local == "-":
            took = sandbox.put_tar(_blocks(), path, user=options.user, on_progress=progress)
        else:
            took = sandbox.upload(local, path, user=options.user, exclude=staying, on_progress=progress)
    _left_out(staying.count)
    if options.json:
        print_json(asdict(took) | {"left_out": staying.count})
    else:
        note(f"{took.entries} entries, {size(took.bytes)}, {progress.rate()}")


def _out(sandbox: Sandbox, path: str, local: str, options: Options) -> None:
    with Progress() as progress:
        links = "skip" if options.skip_links else "refuse"
        took = sandbox.download(
            path,
            local,
            user=options.user,
            replace=options.replace,
            links=links,  # type: ignore[arg-type]  # one of the two
            on_progress=progress,
        )
    staying = _staying(sandbox, path, options.user)
    _left_out(staying)
    if options.json:
        print_json(asdict(took) | {"left_out": staying})
        return
    for name in took.skipped:
        note(f"left out: {name!r}, a link that leads out of the tree")
    note(f"{took.entries} entries, {size(took.bytes)}, {progress.rate()}")


def _staying(sandbox: Sandbox, path: str, user: str | None) -> int | None:
    """How many sockets, pipes and devices a guest's tree has: its tar stream does not say. None: that cannot be found out."""
    try:
        if sandbox.files.stat(path, user=user).kind != "directory":
            return 0
        with closing(sandbox.files.list(path, depth=_DEEPEST, user=user)) as found:
            return sum(info.kind in _STAYS for info in found)
    except SpaceError:
        return None


def _left_out(count: int | None) -> None:
    if count is None:
        tell("whether sockets, pipes or devices were left out could not be found out")
    elif count:
        tell(f"{count} {'socket, pipe or device was' if count == 1 else 'sockets, pipes or devices were'} left out")


def _blocks() -> Iterator[bytes]:
    while block := sys.stdin.buffer.read(256 << 10):
        yield block
