"""What every command shares: the global options, a client made of them, and how answers and failures are shown."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from space.cli.clientfile import chosen
from space.cli.streams import lost
from space.model.errors import InvalidArgument, SpaceError

if TYPE_CHECKING:
    from space.sdk import Client

OWN_FAILURE = 125


class Misuse(InvalidArgument):
    """Wrong usage that needs no server to be seen: the exit status is 2."""


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
        from space.sdk.endpoint import checked_url

        if self.url:
            try:
                checked_url(self.url)
            except InvalidArgument as fault:
                raise Misuse(fault.message, hint=fault.hint) from None
        found = chosen(self.url, self.key_file, self.instance, os.environ)
        return Client(api_url=found.url, instance=self.instance, key_file=Path(found.key_file) if found.key_file else None)

    @property
    def names_a_server(self) -> bool:
        """Whether somebody said which server: then no other one is taken in its place."""
        if self.instance or os.environ.get("SPACE_INSTANCE"):
            return True
        return chosen(self.url, self.key_file, None, os.environ).url is not None


def of(context: typer.Context) -> Context:
    """The global options of a call."""
    found = context.obj
    assert isinstance(found, Context)
    return found


def need_instance(name: str) -> None:
    """InvalidArgument for an instance that neither is on this machine nor has settings here; `default` needs neither."""
    from space.cli.lazy import loaded

    try:
        found = loaded("space.config.instance", "load")(name)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if found is None and name != "default" and not (loaded("space.config.instance", "SETTINGS_ROOT") / f"{name}.toml").exists():
        raise InvalidArgument(f"there is no instance '{name}' on this host")


def report(fault: SpaceError, *, as_json: bool = False) -> None:
    """One sentence and the remedy, to stderr."""
    if as_json:
        error: dict[str, Any] = {"code": fault.code, "message": fault.message, "hint": fault.hint, "request_id": fault.request_id}
        error |= {"details": list(fault.details)} if fault.details else {}
        print(json.dumps({"error": error}), file=sys.stderr)
        return
    red, dim, plain = ("\x1b[31m", "\x1b[2m", "\x1b[0m") if _has_colour() else ("", "", "")
    lines = [f"{red}space:{plain} {printable(fault.message)}"]
    lines += [f"  {printable(told)}" for told in getattr(fault, "__notes__", ())]
    # The one detail of a message that is that detail tells nothing more.
    alone = len(fault.details) == 1 and fault.message == f"{fault.details[0].get('path', '')}: {fault.details[0].get('message', '')}"
    for one in () if alone else fault.details:
        advice = f" ({one['hint']})" if one.get("hint") else ""
        lines.append(f"  {printable(one.get('path', ''))}: {printable(one.get('message', ''))}{printable(advice)}")
    if fault.hint:
        lines.append(f"  {dim}{printable(fault.hint)}{plain}")
    if fault.request_id:
        lines.append(f"  {dim}request {printable(fault.request_id)}{plain}")
    print("\n".join(lines), file=sys.stderr)


def note(text: str) -> None:
    """Progress for a person: shown only where one looks."""
    if sys.stderr.isatty():
        dim, plain = ("\x1b[2m", "\x1b[0m") if _has_colour() else ("", "")
        print(f"{dim}{text}{plain}", file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """One sentence to stderr, whoever looks: what a script's author must know as well."""
    print(f"space: {printable(text)}", file=sys.stderr, flush=True)


def emit(line: str) -> None:
    """One line to stdout, at once: who follows a stream through a pipe waits for it."""
    try:
        print(line, flush=True)
    except OSError as error:
        raise lost(error) from None


def print_json(answer: Any) -> None:
    """One object on one line."""
    emit(json.dumps(asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer))


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, a line each."""
    print_table(("", ""), [(name, shown(value)) for name, value in facts.items()], header=False)


def shown(value: object) -> str:
    """A value for people; `-` for none."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = True) -> None:
    """A table: with colour for a terminal, plain columns otherwise. header: whether the columns' names are shown."""
    if not sys.stdout.isatty():
        lines = [*([list(names)] if header else []), *(list(map(printable, row)) for row in rows)]
        widths = [max((len(line[column]) for line in lines), default=0) for column in range(len(names))]
        for line in lines:
            emit("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, show_header=header)
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    Console().print(table)


def when(moment: float | None) -> str:
    """A time, in UTC; `-` for none."""
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))


def span(seconds: float) -> str:
    """A length of time in two units at most."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, hours = whole // 60, whole // 3600
    if whole < 3600:
        return f"{minutes}m{whole % 60:02}s"
    return f"{hours}h{minutes % 60:02}m"


def size(count: float) -> str:
    """Bytes, in the unit that leaves up to four digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def examples(*lines: str) -> str:
    """What stands at the end of a command's help. The mark keeps the parser from filling lines."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


_STYLES = {
    "running": "green",
    "paused": "yellow",
    "suspended": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "gone": "dim",
    "exited": "dim",
    "lost": "red",
    "ok": "green",
    "warning": "yellow",
    "missing": "red",
}


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE options as a mapping."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise Misuse(f"{option} takes KEY=VALUE, not {text!r}")
        found[name] = value
    return found


def writer(descriptor: int, *, must: bool = True) -> Callable[[bytes], None]:
    """Writes pieces as they come, past the interpreter's buffers: output must not wait for a newline.

    must: without it, what cannot be written for another reason than that its reader left is dropped, as standard error's.
    """

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                # Whoever shares our terminal or pipe may have made it non-blocking.
                select.select([], [descriptor], [])
            except OSError as error:
                if not must and not isinstance(error, BrokenPipeError):
                    return
                raise lost(error) from None

    return write


def printable(text: str) -> str:
    """Without control characters: names and messages may come from a guest, and a terminal obeys escape sequences."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
