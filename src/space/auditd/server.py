"""The composition root of the keeper of the gateway's records: the one process that writes them.

    python -I -m space.auditd.server --instance NAME --listen-fd N [--ready-fd N]
    python -I -m space.auditd.server --data DIR --listen-fd N --peer-uid UID --writer gateway [--writer dialer] [--ready-fd N]

Its own directory (0700) has the files of `space.audit.files`. Sources and the broker's socket are handed to it over the
listening socket (`space.rpc.audit_api`); what it cannot do without the broker is have its chains vouched for.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import msgspec

from space.auditd.book import Book
from space.auditd.chainfile import ChainFile, Keeping
from space.auditd.keeper import Keeper, Limits
from space.auditd.reader import Reader
from space.config import instance as instances
from space.config import logs
from space.config.hold import hold
from space.config.ready import say_ready
from space.config.settings import Settings, load_effective
from space.model.errors import Internal, InvalidArgument, SpaceError, Unavailable
from space.rpc import audit_api as api
from space.rpc.asking import Refused
from space.rpc.packets import Listening, Packets, taken

log = logging.getLogger("space.auditd")

WRITERS = ("gateway", "dialer", "broker")
_FILE_BYTES = 64 << 20
_MOST_CONTROL = 16
_MOST_QUESTION = 4096


class Desk:
    """Who may register sources, and read."""

    def __init__(self, keeper: Keeper, reader: Reader) -> None:
        self._keeper = keeper
        self._reader = reader
        self._control: set[Packets] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, sock: socket.socket) -> None:
        """A connection of one who may."""
        if len(self._control) >= _MOST_CONTROL:
            log.warning("refused a connection: %d are open", len(self._control))
            sock.close()
            return
        ends: list[Packets] = []
        end = Packets(
            sock,
            lambda message, descriptor: self._received(ends[0], message, descriptor),
            lambda: self._control.discard(ends[0]),
            descriptors=True,
            most=_MOST_QUESTION,
        )
        ends.append(end)
        self._control.add(end)

    def close(self) -> None:
        """Hang up on everybody."""
        for end in self._control:
            end.close()

    def _received(self, end: Packets, message: bytes, descriptor: int | None) -> None:
        sock = None if descriptor is None else taken(descriptor)
        try:
            question = api.CONTROL.decode(message)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError):
            log.warning("hung up on a socket that sent no question (%d bytes)", len(message))
            if sock is not None:
                sock.close()
            end.hang_up()
            return
        # A task, for the broker is asked on the way; each question's answer has its number.
        task = asyncio.get_running_loop().create_task(self._answer(end, question, sock), name=type(question).__name__)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, end: Packets, question: api.ToControl, sock: socket.socket | None) -> None:
        try:
            answer = await self._arranged(question, sock)
        except SpaceError as error:
            answer = Refused(question.id, error.code, error.message[:1000], error.hint or "")
        except Exception:
            log.exception("%s failed", type(question).__name__)
            answer = Refused(question.id, Internal.code, "the keeper of the records failed; its log says why")
        end.send(api.encode(answer))

    async def _arranged(self, question: api.ToControl, sock: socket.socket | None) -> api.Answer:
        if isinstance(question, api.Status):
            return api.Standing(question.id, self._keeper.standing(), len(self._keeper))
        if isinstance(question, api.Read):
            return await self._reader.read(question)
        if isinstance(question, api.Follow):
            return await self._reader.follow(question)
        if isinstance(question, api.EndSource):
            self._keeper.unbind(question.writer, question.sandbox, question.generation)
            return api.Written(question.id)
        if sock is None:
            raise InvalidArgument(f"{type(question).__name__} comes with one SEQPACKET socket, and this came without")
        if isinstance(question, api.BindBroker):
            await self._keeper.bind_broker(sock)
        else:
            try:
                self._keeper.bind(sock, question.writer, question.sandbox, question.generation)
            except BaseException:
                sock.close()
                raise
        return api.Written(question.id)


def compose(data: Path, writers: Collection[str], keeping: Keeping, limits: Limits) -> Keeper:
    """The keeper, within the event loop. Conflict: what is in `data` is no chain."""
    facts = data.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise InvalidArgument(
            f"{data} is mode {facts.st_mode & 0o7777:04o} of uid {facts.st_uid}", hint=f"it has to be 0700 of uid {os.geteuid()}"
        )

    def stamp() -> str:
        return logs.stamp(time.time())

    books = {writer: Book(ChainFile(data, writer, keeping, time.time), stamp) for writer in writers}
    return Keeper(books, stamp, time.monotonic, lambda: int(time.time()), limits)


async def run(keeper_of: partial[Keeper], listener: socket.socket, uids: Collection[int], ready_fd: int | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    keeper = keeper_of()
    desk = Desk(keeper, Reader(keeper.books))
    listening = Listening(listener, uids, desk.connected)
    log.info("ready: %s", ", ".join(f"{chain.writer} at record {chain.records}" for chain in keeper.standing()))
    say_ready(ready_fd)
    await stop.wait()
    listening.close()
    desk.close()
    await keeper.stop()
    log.info("stopped")


def keeping_of(settings: Settings, chains: int) -> Keeping:
    """How records of that many chains are kept: at least two files each, so that there is always one to write and one to read."""
    room = (settings.egress_log_mib << 20) // chains
    size = max(1 << 18, min(_FILE_BYTES, room // 8))
    return Keeping(size=size, files=max(2, room // size), seconds=settings.audit_days * 86_400.0)


def _place(options: argparse.Namespace) -> tuple[Path, frozenset[int], Sequence[str], Keeping]:
    """Where it works, for whom, on which chains, and how long they are kept."""
    if options.instance is not None:
        instance = instances.load(options.instance)
        if instance is None:
            raise Unavailable(f"there is no instance {options.instance}", hint=f"space serve --instance {options.instance}")
        return instance.audit_data, frozenset({0, instance.node_uid}), WRITERS, keeping_of(load_effective(instance), len(WRITERS))
    if options.data is None or not options.writer:
        raise InvalidArgument("there is neither --instance NAME nor --data DIR with a --writer")
    keeping = Keeping(size=options.file_bytes, files=options.files)
    return options.data, frozenset({0, *options.peer_uid}), options.writer, keeping


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.auditd", description="the only writer of the gateway's records")
    parser.add_argument("--instance", help="whose records it keeps, which says the rest")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--listen-fd", required=True, type=int)
    parser.add_argument("--peer-uid", type=int, action="append", default=[], help="who may register sources, besides root")
    parser.add_argument("--writer", action="append", default=[], help="a chain to keep")
    parser.add_argument("--file-bytes", type=int, default=_FILE_BYTES, help="of one file, before the next is begun")
    parser.add_argument("--files", type=int, default=64, help="how many are kept")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    options = parser.parse_args()
    os.umask(0o077)
    logs.configure("audit", options.log_format)
    listener = socket.socket(fileno=options.listen_fd)
    listener.set_inheritable(False)
    try:
        data, peers, writers, keeping = _place(options)
        hold(data, "keeper of records")
        made = partial(compose, data, writers, keeping, Limits())
        asyncio.run(run(made, listener, peers, options.ready_fd))
    except SpaceError as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
