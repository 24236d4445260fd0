"""The composition root of the broker: the process that holds every key of the gateway, and speaks to nobody outside.

    python -I -m space.broker.server --instance NAME --listen-fd N [--ready-fd N]
    python -I -m space.broker.server --data DIR --listen-fd N --peer-uid UID [--keyring FILE] [--ready-fd N]

Its own directory (0700) holds `store.db`, sealed. The ring of wrapping keys comes from a file of its uid (0600) or the variable
SPACE_BROKER_KEY; a broker without one does not start. A new first key in the ring: everything is wrapped anew before it is ready.
Roots, intermediates, leaves, heads of audit chains; secrets, grants, leases. Requests: `space.rpc.broker_api`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from space.broker import keyring
from space.broker.desk import Desk
from space.broker.heads import Heads
from space.broker.lives import Lives
from space.broker.provided import Provided
from space.broker.roots import Roots
from space.broker.store import Store
from space.config import instance as instances
from space.config import logs
from space.config.hold import hold
from space.config.ready import say_ready
from space.config.settings import load_effective
from space.host.private import keep_memory_private
from space.model.errors import InvalidArgument, SpaceError, Unavailable
from space.rpc.packets import Listening

log = logging.getLogger("space.broker")

STORE = "store.db"


def open_store(data: Path, ring: keyring.Keyring) -> Store:
    """The store below `data`, wrapped under the ring's first key. InvalidArgument when others could get at it."""
    facts = data.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise InvalidArgument(
            f"{data} is mode {facts.st_mode & 0o7777:04o} of uid {facts.st_uid}", hint=f"it has to be 0700 of uid {os.geteuid()}"
        )
    store = Store(data / STORE, ring)
    try:
        turned = store.turn(ring)
    except BaseException:
        store.close()
        raise
    if turned:
        log.info("%d secrets were wrapped anew, under key %s; older keys may leave the ring", turned, ring.current.hex())
    return store


def _time() -> datetime:
    return datetime.now(UTC)


def compose(store: Store, provided: Provided | None = None, now: Callable[[], datetime] = _time) -> Desk:
    """The broker, within the event loop."""
    roots = Roots(store, provided)
    return Desk(roots, Lives(roots, now, time.monotonic), Heads(store), store, now, time.monotonic)


async def run(store: Store, listener: socket.socket, uids: Collection[int], ready_fd: int | None, provided: Provided | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    desk = compose(store, provided)
    listening = Listening(listener, uids, desk.connected)
    log.info("ready")
    say_ready(ready_fd)
    await stop.wait()
    listening.close()
    desk.close()
    log.info("stopped")


@dataclass(frozen=True, slots=True)
class Place:
    """Where it works, and for whom. keyring None: the environment's. provided: roots that set-up made."""

    data: Path
    peers: frozenset[int]
    keyring: Path | None
    provided: Provided | None


def of_instance(name: str) -> Place:
    """That of an instance. Unavailable when it is not there, or not served."""
    instance = instances.load(name)
    if instance is None:
        raise Unavailable(f"there is no instance {name}", hint=f"space serve --instance {name}")
    settings = load_effective(instance)
    ring = instance.broker_keyring if settings.broker_keyring is None else Path(settings.broker_keyring)
    return Place(instance.broker_data, frozenset({0, instance.node_uid}), ring, Provided(instance.broker_roots))


def _place(options: argparse.Namespace) -> Place:
    if options.instance is not None:
        return of_instance(options.instance)
    if options.data is None:
        raise InvalidArgument("there is neither --instance NAME nor --data DIR")
    provided = None if options.roots is None else Provided(options.roots)
    return Place(options.data, frozenset({0, *options.peer_uid}), options.keyring, provided)


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.broker", description="keys that nobody else may hold")
    parser.add_argument("--instance", help="whose broker it is, which says the rest")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--listen-fd", required=True, type=int)
    parser.add_argument("--peer-uid", type=int, action="append", default=[], help="who may register sandboxes, besides root")
    parser.add_argument("--keyring", type=Path, help=f"one or more lines of 64 hex digits; else the variable {keyring.VARIABLE}")
    parser.add_argument("--roots", type=Path, help="where rootd provides roots of templates")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    options = parser.parse_args()
    os.umask(0o077)
    logs.configure("broker", options.log_format)
    locked = keep_memory_private()
    if not locked:
        log.warning("memory is not locked: the limit for that (RLIMIT_MEMLOCK) is not unlimited")
    listener = socket.socket(fileno=options.listen_fd)
    listener.set_inheritable(False)
    try:
        place = _place(options)
        found = keyring.from_environment(os.environ)
        ring = keyring.read(place.keyring) if place.keyring is not None else found
        if ring is None:
            raise InvalidArgument("there is no key to open the store with", hint=f"give --keyring FILE or set {keyring.VARIABLE}")
        hold(place.data, "broker")
        store = open_store(place.data, ring)
        try:
            asyncio.run(run(store, listener, place.peers, options.ready_fd, place.provided))
        finally:
            store.close()
    except SpaceError as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
