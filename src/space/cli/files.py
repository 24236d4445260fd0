"""`space files`: single files and directories of a sandbox, without a program in it. Trees are `space cp`'s."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import OWN_FAILURE, Misuse, examples, note, of, print_facts, print_json, print_table, report, shown, when, writer
from space.model.errors import SpaceError

if TYPE_CHECKING:
    from space.model.files import FileInfo
    from space.sdk import Files

_LETTERS = {"file": "-", "directory": "d", "symlink": "l", "fifo": "p", "socket": "s", "character": "c", "block": "b"}
_BLOCK = 256 << 10

Path = Annotated[str, typer.Argument(metavar="PATH", help="Absolute, or from the user's home on.")]
Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Absolute, or from the user's home on.")]
User = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Whose rights count (`user`).")]
Recursive = Annotated[bool, typer.Option("--recursive", "-R", help="And everything below.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    files = typer.Typer(no_args_is_help=True, help="Look at and change single files of a sandbox.", rich_markup_mode=None)
    files.command("ls", epilog=examples("space files ls sb-... /srv -l"))(ls)
    files.command("stat", epilog=examples("space files stat sb-... /etc/os-release"))(stat)
    files.command("cat", epilog=examples("space files cat sb-... /etc/os-release"))(cat)
    files.command("write", epilog=examples("echo hello | space files write sb-... notes/a.txt -p"))(write)
    files.command("mkdir", epilog=examples("space files mkdir sb-... -p /srv/a/b"))(mkdir)
    files.command("mv", epilog=examples("space files mv sb-... old.txt new.txt"))(move)
    files.command("rm", epilog=examples("space files rm sb-... -r build"))(remove)
    files.command("chmod", epilog=examples("space files chmod sb-... 755 run.sh"))(chmod)
    files.command("chown", epilog=examples("space files chown sb-... user:user /srv/data"))(chown)
    files.command("ln", epilog=examples("space files ln sb-... /srv/app-2 /srv/app"))(link)
    app.add_typer(files, name="files")


def _with(context: typer.Context, sandbox: str, act: Callable[[Files], Any]) -> Any:
    from space.sdk import Sandbox

    with of(context).client() as client:
        return act(Sandbox.connect(sandbox, client=client).files)


def _each(context: typer.Context, sandbox: str, paths: list[str], act: Callable[[Files, str], FileInfo | None]) -> int:
    """Do it to each path, also after one at which it failed. JSON: `{"files": [...]}`, what became of them."""

    def all_of(files: Files) -> int:
        failed = 0
        became = []
        for path in paths:
            try:
                info = act(files, path)
            except SpaceError as fault:
                report(fault, as_json=of(context).json)
                failed = OWN_FAILURE
            else:
                became.append(path if info is None else asdict(info))
        if of(context).json:
            print_json({"files": became})
        return failed

    status: int = _with(context, sandbox, all_of)
    return status


def mode_bits(text: str) -> int:
    """Permission bits in octal, as chmod takes them."""
    digits = text.removeprefix("0o")
    if not digits or set(digits) - set("01234567") or int(digits, 8) > 0o7777:
        raise Misuse(f"{text!r} are no permission bits", hint="in octal, such as 755 or 0600")
    return int(digits, 8)


def permissions(info: FileInfo) -> str:
    """As `ls -l` writes kind and permission bits."""
    letters = "".join("rwx"[2 - place % 3] if info.mode >> place & 1 else "-" for place in range(8, -1, -1))
    special = ((0o4000, 2, "s"), (0o2000, 5, "s"), (0o1000, 8, "t"))
    for bit, place, letter in special:
        if info.mode & bit:
            letters = letters[:place] + (letter if letters[place] == "x" else letter.upper()) + letters[place + 1 :]
    return _LETTERS[info.kind] + letters


def ls(
    context: typer.Context,
    sandbox: SandboxArgument,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A directory (the user's home).")] = ".",
    long: Annotated[bool, typer.Option("--long", "-l", help="With kind, permissions, owner, size and time.")] = False,
    depth: Annotated[int, typer.Option(metavar="N", min=1, help="Levels to go down.")] = 1,
    user: User = None,
) -> None:
    """List a directory, in byte order."""
    found: list[FileInfo] = _with(context, sandbox, lambda files: list(files.list(path, depth=depth, user=user)))
    if of(context).json:
        print_json({"files": [asdict(info) for info in found]})
    elif long:
        rows = [(permissions(info), f"{info.owner}:{info.group}", str(info.size), when(info.modified_at), _named(info)) for info in found]
        print_table(("MODE", "OWNER", "BYTES", "MODIFIED", "NAME"), rows)
    else:
        print_table(("NAME",), [(info.name + ("/" if info.kind == "directory" else ""),) for info in found], header=False)


def _named(info: FileInfo) -> str:
    return info.name if info.target is None else f"{info.name} -> {info.target}"


def stat(
    context: typer.Context,
    sandbox: SandboxArgument,
    path: Path,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="Of a link: itself, not what it leads to.")] = False,
    user: User = None,
) -> None:
    """Show what a path is."""
    info: FileInfo = _with(context, sandbox, lambda files: files.stat(path, follow=not no_follow, user=user))
    if of(context).json:
        print_json(info)
        return
    facts = {name: value for name, value in asdict(info).items() if name not in ("mode", "modified_at")}
    print_facts(facts | {"mode": f"{info.mode:04o} {permissions(info)}", "modified": when(info.modified_at)})


def cat(
    context: typer.Context,
    sandbox: SandboxArgument,
    path: Path,
    offset: Annotated[int, typer.Option(metavar="BYTE", min=0, help="From this byte on.")] = 0,
    length: Annotated[int | None, typer.Option(metavar="BYTES", min=0, help="So many at most.")] = None,
    user: User = None,
) -> None:
    """Write a file's bytes to stdout. On a terminal, control characters of it are shown as such and not obeyed.

    JSON: one object with `data`, or `data_base64` where it is no UTF-8.
    """
    if of(context).json:
        import base64

        data: bytes = _with(context, sandbox, lambda files: files.read(path, offset=offset, length=length, user=user))
        try:
            print_json({"path": path, "offset": offset, "data": data.decode()})
        except UnicodeDecodeError:
            print_json({"path": path, "offset": offset, "data_base64": base64.b64encode(data).decode()})
        return

    def all_of(files: Files) -> None:
        write, harmless = writer(1), Harmless() if sys.stdout.isatty() else None
        with closing(files.stream(path, offset=offset, length=length, user=user)) as pieces:
            for piece in pieces:
                write(piece if harmless is None else harmless.receive(piece))

    _with(context, sandbox, all_of)


class Harmless:
    """A guest's text for a terminal: whole characters, and none that it would obey but the end of a line and the tabulator."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def receive(self, data: bytes) -> bytes:
        """What of it is whole."""
        text = self._decoder.decode(data)
        return "".join(letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text).encode()


def write(
    context: typer.Context,
    sandbox: SandboxArgument,
    path: Path,
    append: Annotated[bool, typer.Option("--append", "-a", help="Behind what is there.")] = False,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Make missing directories.")] = False,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="Only if it is not there.")] = False,
    mode: Annotated[str | None, typer.Option(metavar="OCTAL", help="Its permission bits.")] = None,
    user: User = None,
) -> None:
    """Write standard input to a file: others see the old one or the new one, never a part."""
    bits = None if mode is None else mode_bits(mode)
    if sys.stdin.isatty():
        note("reading standard input to its end (Ctrl-D)")
    info: FileInfo = _with(
        context,
        sandbox,
        lambda files: files.write(path, _stdin(), mode=bits, append=append, parents=parents, exclusive=exclusive, user=user),
    )
    if of(context).json:
        print_json(info)
    else:
        note(f"{info.name}: {info.size} bytes")


def _stdin() -> Iterator[bytes]:
    while block := os.read(0, _BLOCK):
        yield block


def mkdir(
    context: typer.Context,
    sandbox: SandboxArgument,
    paths: Paths,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="Those above it as well; one that is there is no error.")] = False,
    mode: Annotated[str | None, typer.Option(metavar="OCTAL", help="Its permission bits.")] = None,
    user: User = None,
) -> int:
    """Make directories."""
    bits = None if mode is None else mode_bits(mode)
    return _each(context, sandbox, paths, lambda files, path: files.mkdir(path, mode=bits, parents=parents, user=user))


def move(
    context: typer.Context,
    sandbox: SandboxArgument,
    source: Annotated[str, typer.Argument(metavar="FROM", help="What is there.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Its new name.")],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    user: User = None,
) -> None:
    """Rename a file or directory. TO is the new name itself, not a directory to move it into."""
    info = _with(context, sandbox, lambda files: files.move(source, target, replace=force, user=user))
    if of(context).json:
        print_json(info)


def remove(
    context: typer.Context,
    sandbox: SandboxArgument,
    paths: Paths,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", "-R", help="With all that is in it.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="What is not there is no error.")] = False,
    user: User = None,
) -> int:
    """Remove files, links themselves, and empty directories (or, with -r, any)."""
    return _each(context, sandbox, paths, lambda files, path: files.remove(path, recursive=recursive, missing_ok=force, user=user))


def chmod(
    context: typer.Context,
    sandbox: SandboxArgument,
    mode: Annotated[str, typer.Argument(metavar="OCTAL", help="Permission bits, such as 755.")],
    paths: Paths,
    recursive: Recursive = False,
    user: User = None,
) -> int:
    """Set permission bits."""
    bits = mode_bits(mode)
    return _each(context, sandbox, paths, lambda files, path: files.chmod(path, bits, recursive=recursive, user=user))


def chown(
    context: typer.Context,
    sandbox: SandboxArgument,
    owner: Annotated[str, typer.Argument(metavar="OWNER[:GROUP]", help="Names or numbers; `:GROUP` for the group alone.")],
    paths: Paths,
    recursive: Recursive = False,
) -> int:
    """Set owner and group, as root."""
    name, _, group = owner.partition(":")
    if not name and not group:
        raise Misuse(f"{owner!r} names neither an owner nor a group", hint="such as user, user:user or :user")
    return _each(
        context, sandbox, paths, lambda files, path: files.chown(path, owner=name or None, group=group or None, recursive=recursive)
    )


def link(
    context: typer.Context,
    sandbox: SandboxArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="What the link says; it need not be there.")],
    path: Annotated[str, typer.Argument(metavar="PATH", help="The link.")],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    symbolic: Annotated[bool, typer.Option("--symbolic", "-s", help="As it always is.", hidden=True)] = True,
    user: User = None,
) -> None:
    """Make a symbolic link."""
    info = _with(context, sandbox, lambda files: files.symlink(path, target, replace=force, user=user))
    if of(context).json:
        print_json(info)
    else:
        note(f"{shown(info.name)} -> {target}")
