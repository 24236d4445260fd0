"""The composition root of the dialer: the only process that opens a socket to the outside for a sandbox.

    python -I -m space.dialer.server --instance NAME --listen-fd N [--ready-fd N]

It keeps no file and no state beyond its life: the node puts policies and binds sandboxes again after a restart. Its uid is the one whose
packets the filter of rootd holds to the same resolvers and networks. Requests: `space.rpc.dialer_api`, `space.core.wire.dialing`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import uvloop

from space.config import egress, logs
from space.config import instance as instances
from space.config.egress import Endpoint
from space.config.instance import DATA_ROOT, RUN_ROOT
from space.config.ready import say_ready
from space.config.settings import Settings, load_effective
from space.core.policy import document
from space.core.policy.addresses import Network
from space.dialer.connect import connect
from space.dialer.desk import MINTER, Desk, Limits
from space.dialer.dial import Dialer
from space.dialer.policies import Policies
from space.dialer.records import Records
from space.dialer.resolve import Resolver, Tuning
from space.dialer.surroundings import Following, Own, servers
from space.dialer.vet import Vetter
from space.host.private import keep_memory_private
from space.model.errors import SpaceError
from space.rpc.packets import Listening

log = logging.getLogger("space.dialer")

_LIMITS = Limits()
_LOOKUPS = 2048  # of all sandboxes; each has its share of them


def of_minter(endpoints: Iterable[Endpoint]) -> Policies:
    """Policies among which there is the minter's: the token endpoints, and nothing else. Nobody puts another one."""
    policies = Policies()
    rules = [{"host": host, "port": port} for host, port in sorted({(one.host, one.port) for one in endpoints})]
    if rules:
        made = document.read(document.compose({"sandbox": {"version": 1, "rule": rules}}))
        policies.add(made)
        policies.put(MINTER, 0, made.digest)
    else:
        policies.put(MINTER, 0, "")
    return policies


def compose(
    own: Own, resolver: Resolver, listed: Sequence[Network], limits: Limits = _LIMITS, endpoints: Iterable[Endpoint] = ()
) -> tuple[Desk, Records]:
    """The dialer, within the event loop."""
    records = Records(time.monotonic, limits.record)

    async def nobody(_: object) -> None:
        raise OSError("a dial belongs to a sandbox")

    dialer = Dialer(of_minter(endpoints), resolver, Vetter(own.now, listed).vet, nobody, time.monotonic, connect)
    return Desk(dialer, resolver, records, time.monotonic, limits), records


async def run(
    settings: Settings, listener: socket.socket, uids: Collection[int], ready_fd: int | None, resolv_conf: Path = egress.RESOLV_CONF
) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    own = Own()
    resolver = Resolver(servers(settings.egress_resolvers, resolv_conf), time.monotonic, Tuning(lookups=_LOOKUPS))
    following = None if settings.egress_resolvers else Following(resolver, resolv_conf)
    endpoints = egress.token_endpoints(settings.token_endpoints).values()
    desk, records = compose(own, resolver, egress.reachable(settings.egress_reachable), endpoints=endpoints)
    listening = Listening(listener, uids, desk.connected)
    if not resolver.servers:
        log.warning("there is no resolver, so no name can be dialled: %s names none, and egress_resolvers is empty", resolv_conf)
    log.info("ready: resolvers %s", ", ".join(f"{one.address} port {one.port}" for one in resolver.servers) or "none")
    say_ready(ready_fd)
    await stop.wait()
    listening.close()
    if following is not None:
        following.close()
    await desk.aclose()
    await records.aclose()
    await resolver.aclose()
    own.close()
    log.info("stopped")


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.dialer", description="resolves, vets and connects for sandboxes")
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
    logs.configure("dialer", options.log_format)
    keep_memory_private()  # locked or not: it holds no key
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for each dial a socket, for each lookup two, for each sandbox one
    listener = socket.socket(fileno=options.listen_fd)
    listener.set_inheritable(False)
    try:
        uvloop.run(run(load_effective(instance), listener, frozenset({0, instance.node_uid}), options.ready_fd))
    except SpaceError as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
