"""The composition root of the gateway: the zygote, from which a worker is forked for each sandbox that has traffic.

    python -I -m space.gateway.server --instance NAME --listen-fd N [--ready-fd N] [--log-format F]

serve starts it under the gateway's uid, in a network namespace of its own with nothing in it, with CAP_SETUID and CAP_SETGID and no other
capability; it refuses to start otherwise. Everything that workers need of code and authorities is loaded here once and shared with them;
after that neither it nor they open a file or a socket (`space.gateway.filters`). Requests: `space.rpc.gateway_api`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

from space.config import authorities, logs
from space.config import instance as instances
from space.config.instance import DATA_ROOT, RUN_ROOT, SLOTS, Instance
from space.config.ready import say_ready
from space.config.settings import load_effective
from space.core.policy import document
from space.gateway import chains, filters, tls, workerprocess
from space.gateway.bindings import Bound
from space.gateway.zygote import Zygote
from space.host import namespaces, process, syscalls
from space.model.errors import InvalidArgument, SpaceError, Unavailable

log = logging.getLogger("space.gateway")

CAPABILITIES = (6, 7)  # CAP_SETGID, CAP_SETUID


class Forker:
    """Workers by fork. A worker is of another uid, and this process has no capability to signal it: it takes that uid for the moment."""

    def __init__(self, instance: Instance, roots: str) -> None:
        self._instance = instance
        self._roots = roots
        self._own = os.getuid()
        self._pid = os.getpid()

    def start(self, bound: Bound, channel: int) -> int:
        """The pid of a worker."""
        listener, dns, dns_tcp, signer, audit, dialer, memory, *cgroups = bound.held
        start = workerprocess.Start(
            sandbox=bound.sandbox,
            uid=self._instance.worker_uid(bound.slot),
            synthetic=bound.synthetic,
            roots=self._roots,
            zygote=channel,
            listener=listener,
            dns=dns,
            dns_tcp=dns_tcp,
            signer=signer,
            audit=audit,
            dialer=dialer,
            memory=memory,
            cgroups=tuple(cgroups),
            policy=bound.policy,
            policy_generation=bound.policy_generation,
        )
        pid = os.fork()
        if pid == 0:
            workerprocess.become(start, self._pid)
        return pid

    def signal(self, bound: Bound, pidfd: int, number: int) -> None:
        """As the worker's uid, who alone may."""
        os.setresuid(-1, self._instance.worker_uid(bound.slot), -1)
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass
        finally:
            os.setresuid(-1, self._own, -1)


def check_place(instance: Instance) -> None:
    """InvalidArgument unless this process is as serve starts it."""
    if {os.getuid(), os.geteuid(), os.getgid(), os.getegid()} != {instance.gateway_uid} or os.getgroups():
        raise InvalidArgument(f"the gateway runs under uid and gid {instance.gateway_uid}, not {os.geteuid()} and {os.getegid()}")
    held = {line.split()[0]: int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if line[:3] == "Cap"}
    wanted = sum(1 << one for one in CAPABILITIES)
    if any(held[f"Cap{kind}:"] != wanted for kind in ("Prm", "Eff", "Bnd")):
        raise InvalidArgument("the gateway has CAP_SETUID and CAP_SETGID, in its bounding set as well, and no other capability")
    if namespaces.interfaces() != {"lo"} or namespaces.is_up("lo"):
        raise InvalidArgument("the gateway runs in a network namespace of its own, with nothing in it")


def warm(roots: str) -> None:
    """Make once what every worker would make for itself."""
    try:
        tls.prepare(roots)
    except ssl.SSLError as error:
        raise Unavailable(f"the authorities of upstreams cannot be loaded: {error}", hint="is egress_ca_file PEM?") from error
    made = process.forked(_trial_leaf)  # whoever makes it brings a library along that neither zygote nor workers need
    chain, _, key = made.partition(b"\0")
    chains.verify(chain, key, "warm.example.com", chain.decode())
    "warm.example.com".encode("idna")
    document.read(document.compose({"sandbox": {"version": 1, "rule": [{"host": "warm.example.com", "paths": ["/a/**"]}]}}))
    gc.collect()
    _filled.extend(_fill())
    gc.freeze()  # what is here stays here, and no worker's collector writes to its pages


# Of workers, in nanoseconds: one that a flood keeps busy makes way for one that has a request to answer, which runs no longer than that.
_SLICE = 200_000
_filled: list[bytes] = []  # for the life of this process, and of every worker
_POOL = 16_384  # of the interpreter's allocator for up to 512 bytes
_MOST_GAPS = 20_000  # of a class
_HEADER = sys.getsizeof(b"")


def _fill() -> Iterator[bytes]:
    """Objects in every gap that loading has left between others.

    Without them a worker's own objects would go there, a few to a page, and each such page would become its own: 0.4 MiB, measured.
    A class of sizes has no gap any more when a pool's worth of objects lies side by side.
    """
    for size in range(48, 513, 16):
        last, run = 0, 1
        for _ in range(_MOST_GAPS):
            one = bytes(size - _HEADER)
            run = run + 1 if id(one) - last == size else 1
            last = id(one)
            yield one
            if run >= (_POOL - 64) // size:
                break


def _trial_leaf() -> bytes:
    from space.gateway.trial import leaf

    chain, key = leaf("warm.example.com")
    return chain + b"\0" + key


def main() -> int:
    """The process."""
    parser = argparse.ArgumentParser(prog="space.gateway", description="one worker for each sandbox with traffic")
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
    logs.configure("gateway", options.log_format)
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    reader.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        check_place(instance)
        serve(instance, socket.socket(fileno=options.listen_fd), reader, options.ready_fd)
    except (SpaceError, RuntimeError, process.ProcessFailed) as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


def serve(instance: Instance, listener: socket.socket, wake: socket.socket, ready_fd: int | None) -> None:
    """Until a signal comes on `wake`."""
    listener.set_inheritable(False)
    file = load_effective(instance).egress_ca_file
    roots = authorities.text(None if file is None else Path(file))
    warm(roots)
    zygote = Zygote(listener, frozenset({0, instance.node_uid}), Forker(instance, roots))
    syscalls.set_slice(_SLICE)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.load_filter(filters.zygote(os.getuid(), range(instance.worker_uid(0), instance.worker_uid(SLOTS - 1) + 1)))
    log.info("ready")
    say_ready(ready_fd)
    zygote.run(wake.fileno())
    log.info("stopped; workers end with it")


if __name__ == "__main__":
    raise SystemExit(main())
