"""`space forward`: ports of this machine that lead to ports in a sandbox."""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from space.cli.completion import SandboxArgument
from space.cli.context import Misuse, emit, examples, note, of, print_json, tell

if TYPE_CHECKING:
    from space.model.errors import SpaceError
    from space.sdk import Forward


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    lines = ("space forward sb-... 8080:80", "space forward sb-... 5432 -:8000 --host 0.0.0.0")
    # `-:80` is no option.
    app.command("forward", context_settings={"ignore_unknown_options": True}, epilog=examples(*lines))(forward)


def ports(text: str) -> tuple[int, int]:
    """`LOCAL:REMOTE`, `REMOTE` for the same on both sides; `-` (or nothing) before the colon for a free one, which is 0."""
    local, colon, remote = text.rpartition(":")
    numbers = [remote, "0" if colon and local in ("", "-") else local if colon else remote]
    if not all(number.isascii() and number.isdigit() and int(number) <= 65535 for number in numbers) or int(remote) == 0:
        raise Misuse(f"{text!r} are no ports", hint="such as 8080:80, 8080, or -:80 for a free one of this machine")
    return int(numbers[1]), int(remote)


class Told(list["SpaceError"]):
    """Failures of single connections, told as they come; the same one after the other only once."""

    def append(self, fault: SpaceError) -> None:
        """One more."""
        if not self or str(self[-1]) != str(fault):
            tell(fault.message)
        super().append(fault)


def forward(
    context: typer.Context,
    sandbox: SandboxArgument,
    pairs: Annotated[list[str], typer.Argument(metavar="LOCAL:REMOTE...", help="8080:80; 8080 for both; -:80 for a free port here.")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Of this machine, to listen on.")] = "127.0.0.1",
) -> None:
    """Let ports of this machine lead to ports in a sandbox, until Ctrl-C. Prints what listens, a line each.

    Nothing need listen in the sandbox yet: a connection that finds nothing there is reset. JSON: a line for each port.
    """
    from space.sdk import Sandbox

    wanted = [ports(each) for each in pairs]
    with ExitStack() as stack:
        client = stack.enter_context(of(context).client())
        found = Sandbox.connect(sandbox, client=client)
        made = [(stack.enter_context(found.forward(local, remote, host=host)), remote) for local, remote in wanted]
        for each, remote in made:
            each.failures = Told()
            address, port = each.address
            if of(context).json:
                print_json({"host": address, "port": port, "sandbox": found.id, "remote": remote})
            else:
                emit(f"{f'[{address}]' if ':' in address else address}:{port} -> {found.id}:{remote}")
        note("Ctrl-C ends it")
        ended: queue.SimpleQueue[SpaceError] = queue.SimpleQueue()
        for each, _ in made:
            threading.Thread(target=_follow, args=(each, ended), daemon=True).start()
        raise ended.get()


def _follow(forward: Forward, ended: queue.SimpleQueue[SpaceError]) -> None:
    from space.model.errors import SpaceError

    try:
        forward.serve_forever()
    except SpaceError as fault:
        ended.put(fault)
