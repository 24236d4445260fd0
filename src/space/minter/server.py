"""The composition root of the minter: it has one secret at a time, never the store, and no way to anybody but token endpoints.

    python -I -m space.minter.server --instance NAME --listen-fd N [--ready-fd N] [--log-format F]

serve starts it under the minter's uid in a network namespace of its own with nothing in it: sockets to endpoints come from the dialer,
which dials for it what `token_endpoints` names and nothing else. It keeps no file. Requests: `space.rpc.minter_api`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import Collection
from pathlib import Path

from space.config import authorities, egress, logs
from space.config import instance as instances
from space.config.instance import DATA_ROOT, RUN_ROOT
from space.config.ready import say_ready
from space.config.settings import Settings, load_effective
from space.host import namespaces, syscalls
from space.host.private import keep_memory_private
from space.minter.desk import Desk
from space.minter.exchange import context
from space.model.errors import InvalidArgument, SpaceError, Unavailable
from space.rpc.packets import Listening

log = logging.getLogger("space.minter")


def compose(settings: Settings) -> Desk:
    """The minter, within the event loop. Unavailable: there are no authorities."""
    endpoints = egress.token_endpoints(settings.token_endpoints)
    extra = settings.egress_ca_file
    try:
        tls = context(authorities.text(None if extra is None else Path(extra)))
    except ssl.SSLError as error:
        raise Unavailable(f"the authorities of endpoints cannot be loaded: {error}", hint="is egress_ca_file PEM?") from error
    return Desk(endpoints, tls)


async def run(settings: Settings, listener: socket.socket, uids: Collection[int], ready_fd: int | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    desk = compose(settings)
    listening = Listening(listener, uids, desk.connected)
    log.info("ready: %d token endpoints", len(settings.token_endpoints))
    say_ready(ready_fd)
    await stop.wait()
    listening.close()
    await desk.aclose()
    log.info("stopped")


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.minter", description="exchanges credentials for tokens")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--listen-fd", required=True, type=int)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="for tests: where instances are")
    parser.add_argument("--run-root", type=Path, default=RUN_ROOT, help="for tests")
    options = parser.parse_args()
    instance = instances.load(options.instance, data_root=options.data_root, run_root=options.run_root)
    if instance is None:
        parser.error(f"there is no instance {options.instance!r} on this host")
    os.umask(0o077)
    logs.configure("minter", options.log_format)
    keep_memory_private()  # locked or not: what it has, it has for one exchange
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    listener = socket.socket(fileno=options.listen_fd)
    listener.set_inheritable(False)
    try:
        if namespaces.interfaces() != {"lo"} or namespaces.is_up("lo"):
            raise InvalidArgument("the minter runs in a network namespace of its own, with nothing in it")
        asyncio.run(run(load_effective(instance), listener, frozenset({0, instance.node_uid}), options.ready_fd))
    except SpaceError as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
