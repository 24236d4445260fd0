"""The composition root of the ingress: it reads strangers' requests and guests' replies, has no database and no key but its certificate's.

    python -I -m space.ingress.server --instance NAME --listen-fd N --also-fd N [--tls-fd N] [--ready-fd N] [--log-format F]

serve starts it under the ingress's uid in a network namespace of its own with nothing in it: it has its listeners, and control's socket to
ask. Before it accepts anybody it gives up every system call that it does not need.
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

import uvloop

from space.config import instance as instances
from space.config import logs
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.config.ready import say_ready
from space.config.settings import Settings, load_effective
from space.host import namespaces, syscalls
from space.host.private import keep_memory_private
from space.ingress import filters
from space.ingress.control import Control
from space.ingress.doors import Doors
from space.ingress.limits import Limits
from space.model.errors import InvalidArgument, SpaceError

log = logging.getLogger("space.ingress")


def context(tls_fd: int | None) -> ssl.SSLContext | None:
    """Of the certificate and key that serve handed over. InvalidArgument."""
    if tls_fd is None:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    try:
        made.load_cert_chain(f"/proc/self/fd/{tls_fd}")
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(
            f"the certificate and key of the ingress cannot be used: {error.strerror or error}",
            hint="ingress_tls_certificate and ingress_tls_key name PEM files that belong together, the key without a passphrase",
        ) from error
    finally:
        os.close(tls_fd)
    return made


def check_address(listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    """InvalidArgument when tokens would cross a network in the clear."""
    host = listener.getsockname()[0]
    if tls is None and not (host.startswith("127.") or host == "::1"):
        raise InvalidArgument(
            f"the ingress listens on {host}, and without TLS every traffic token would cross the network in the clear",
            hint="set domain, or ingress_tls_certificate and ingress_tls_key",
        )


async def run(
    instance: Instance, settings: Settings, listener: socket.socket, relay: socket.socket, tls: ssl.SSLContext | None,
    uids: Collection[int], ready_fd: int | None,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    limits = Limits()
    control = Control(instance.ports_socket, limits)
    doors = Doors(listener, relay, domain=settings.domain, dialer=control, tls=tls, limits=limits, relays=uids)
    doors.open()
    log.info("ready: instance %s on %s", instance.name, listener.getsockname())
    say_ready(ready_fd)
    await stop.wait()
    await doors.aclose()
    log.info("stopped")


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.ingress", description="requests to ports of sandboxes")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--listen-fd", required=True, type=int)
    parser.add_argument("--also-fd", required=True, type=int)
    parser.add_argument("--tls-fd", type=int, help="a file with certificate and key")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-format", choices=logs.FORMATS, default="text")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="for tests: where instances are")
    parser.add_argument("--run-root", type=Path, default=RUN_ROOT, help="for tests")
    options = parser.parse_args()
    instance = instances.load(options.instance, data_root=options.data_root, run_root=options.run_root)
    if instance is None:
        parser.error(f"there is no instance {options.instance!r} on this host")
    os.umask(0o077)
    logs.configure("ingress", options.log_format)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    listener, relay = socket.socket(fileno=options.listen_fd), socket.socket(fileno=options.also_fd)
    for one in (listener, relay):
        one.set_inheritable(False)
    try:
        if namespaces.interfaces() != {"lo"} or namespaces.is_up("lo"):
            raise InvalidArgument("the ingress runs in a network namespace of its own, with nothing in it")
        tls = context(options.tls_fd)
        keep_memory_private()  # not before: after it not even we may open what /proc has of us
        check_address(listener, tls)
        settings = load_effective(instance)
        # Before there is a loop: that of libuv would have an io_uring, and does without where it may not.
        syscalls.load_filter(filters.strangers())
        uvloop.run(run(instance, settings, listener, relay, tls, frozenset({0, instance.control_uid}), options.ready_fd))
    except SpaceError as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
