"""What every command shares: the global options, a client made of them, and how answers and failures are shown."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from space.model.errors import InvalidArgument, SpaceError

if TYPE_CHECKING:
    from space.sdk import Client

OWN_FAILURE = 125
_GLOBAL_FLAGS = ("--json",)
_GLOBAL_VALUES = ("--instance", "--url", "--key-file")
_WITH_COMMAND = ("run", "exec")


class OutputClosed(Exception):
    """Whoever read our output has left. (The option parser would make an exit status of 1 of a BrokenPipeError.)"""


@dataclass(frozen=True, slots=True)
class Context:
    """The global options."""

    instance: str | None
    url: str | None
    key_file: str | None
    json: bool

    def client(self) -> Client:
        """A client of the server that the options, the environment or this machine name."""
        from space.sdk import Client

        return Client(api_url=self.url, instance=self.instance, key_file=Path(self.key_file) if self.key_file else None)

    @property
    def names_a_server(self) -> bool:
        """Whether somebody said which server: then no other one is taken in its place."""
        return bool(self.url or self.instance or os.environ.get("SPACE_API_URL") or os.environ.get("SPACE_INSTANCE"))


def of(context: typer.Context) -> Context:
    """The global options of a call."""
    found = context.obj
    assert isinstance(found, Context)
    return found


def command_of(arguments: Sequence[str]) -> str | None:
    """The command that the arguments name: the first word that is no global option or its value."""
    words = iter(arguments)
    for word in words:
        if word in _GLOBAL_VALUES:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def globals_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global options moved to the front, so that they may stand anywhere before `--`.

    A command to run may have options of the same name, so `run` and `exec` without `--` are left alone.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours, rest = list(arguments[:end]), list(arguments[end:])
    if not rest and command_of(ours) in _WITH_COMMAND:
        return ours
    front: list[str] = []
    others: list[str] = []
    words = iter(ours)
    for word in words:
        if word in _GLOBAL_FLAGS or word.startswith(tuple(f"{name}=" for name in _GLOBAL_VALUES)):
            front.append(word)
        elif word in _GLOBAL_VALUES:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            others.append(word)
    return front + others + rest


def report(fault: SpaceError, *, as_json: bool = False) -> None:
    """One sentence and the remedy, to stderr."""
    if as_json:
        error = {"code": fault.code, "message": fault.message, "hint": fault.hint, "request_id": fault.request_id}
        print(json.dumps({"error": error}), file=sys.stderr)
        return
    red, dim, plain = ("\x1b[31m", "\x1b[2m", "\x1b[0m") if _has_colour() else ("", "", "")
    lines = [f"{red}space:{plain} {_printable(fault.message)}"]
    if fault.hint:
        lines.append(f"  {dim}{_printable(fault.hint)}{plain}")
    if fault.request_id and fault.code == "internal":
        lines.append(f"  {dim}request {_printable(fault.request_id)}{plain}")
    print("\n".join(lines), file=sys.stderr)


def note(text: str) -> None:
    """Progress for a person: shown only where one looks."""
    if sys.stderr.isatty():
        dim, plain = ("\x1b[2m", "\x1b[0m") if _has_colour() else ("", "")
        print(f"{dim}{text}{plain}", file=sys.stderr, flush=True)


def print_json(answer: Any) -> None:
    """One object on one line."""
    print(json.dumps(asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table: with colour for a terminal, plain columns otherwise."""
    if not sys.stdout.isatty():
        lines = [list(header), *(list(map(_printable, row)) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*(Text(_printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


_STYLES = {"running": "green", "paused": "yellow", "failed": "red", "gone": "dim", "ok": "green", "warning": "yellow", "missing": "red"}


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE options as a mapping."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidArgument(f"{option} takes KEY=VALUE, not {text!r}")
        found[name] = value
    return found


def writer(descriptor: int) -> Callable[[bytes], None]:
    """Writes pieces as they come, past the interpreter's buffers: output must not wait for a newline."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                # Whoever shares our terminal or pipe may have made it non-blocking.
                select.select([], [descriptor], [])
            except BrokenPipeError:
                raise OutputClosed from None

    return write


def _printable(text: str) -> str:
    """Without control characters: names and messages may come from a guest, and a terminal obeys escape sequences."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
