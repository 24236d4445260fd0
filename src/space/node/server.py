"""The composition root of the node process.

    python -I -m space.node.server --instance NAME --listen-fd N [--ready-fd N]

serve binds the socket and starts this under the node's uid. Nothing but control (and root) may connect. SIGTERM stops the process and
leaves running sandboxes running: the next node adopts them, by the same code that follows a crash.
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
from collections.abc import Callable
from pathlib import Path

import uvloop

from space.config import firecracker, logs
from space.config import instance as instances
from space.config.artefacts import Store
from space.config.hold import hold
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.config.ready import say_ready
from space.config.settings import Settings, load_effective
from space.core.lifecycle.admission import Capacity, memory_budget
from space.host.files import free_bytes
from space.model.errors import SpaceError
from space.model.sandbox import MIB
from space.node import limits, parcels
from space.node.archive import Archive
from space.node.board import Board
from space.node.egress import Egress
from space.node.egress_log import EgressLog
from space.node.gate import Gate
from space.node.history import History
from space.node.ledger import Ledger
from space.node.node import Node
from space.node.policies import Policies
from space.node.processes import Quota
from space.node.release import Releases
from space.node.services import Link, Services
from space.node.slots import Slots
from space.node.stages import Trace, no_trace
from space.node.surroundings import Surroundings
from space.node.verbs import Verbs
from space.node.vmm.accelerator import Accelerators, host_boot_id, kvm_is_there
from space.node.vmm.drivers import Drivers
from space.node.vmm.firecracker import FirecrackerVmm
from space.node.vmm.qemu import QemuVmm
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl
from space.rpc.dialer_client import DialerControl
from space.rpc.gateway_api import Unasked
from space.rpc.gateway_client import GatewayClient
from space.rpc.minter_client import MinterControl
from space.rpc.rootd_client import RootdClient
from space.rpc.session import Door

log = logging.getLogger("space.node")

_STOPPING = 5.0  # seconds that half-made sandboxes get to be undone; the next node does the rest


def capacity(settings: Settings, *, memory_total_mib: int, processors: int) -> Capacity:
    """What this machine takes."""
    return Capacity(
        memory_mib=memory_budget(settings.memory_mib, memory_total_mib),
        sandboxes=settings.max_sandboxes,
        boots=settings.concurrent_boots or max(processors, 2),
        queue=limits.QUEUE_LENGTH,
        disk_reserve_mib=settings.disk_reserve_mib,
    )


def compose_egress(instance: Instance, settings: Settings, rootd: RootdClient) -> Egress:
    """Its links begin with `Egress.start`."""

    def services(heard: Callable[[Unasked], None]) -> Services:
        return Services(
            gateway=Link("gateway", lambda ended: GatewayClient.connect(instance.gateway_socket, heard, ended), GatewayClient.describe),
            broker=Link("broker", connect_broker, BrokerControl.head_key),
            audit=Link("audit", lambda ended: AuditControl.connect(instance.audit_socket, ended), AuditControl.status),
            minter=Link("minter", lambda ended: MinterControl.connect(instance.minter_socket, ended), MinterControl.describe),
            dialer=Link("dialer", lambda ended: DialerControl.connect(instance.dialer_socket, ended), DialerControl.describe),
        )

    def connect_broker(ended: Callable[[], None]) -> BrokerControl:
        return BrokerControl.connect(instance.broker_socket, ended, egress.services.unasked)

    egress = Egress(services, rootd, Policies(instance.node_data / "policies"), settings.egress_synthetic)
    return egress


def compose(instance: Instance, settings: Settings, trace: Trace = no_trace) -> Node:
    """The node with everything it stands on, within the event loop."""
    ledger = Ledger(instance.node_data / "ledger.db")
    rootd = RootdClient(instance.rootd_socket)
    egress = compose_egress(instance, settings, rootd)
    releases = Releases(rootd, ledger, egress)
    store = Store(instance.artefacts, instance.templates)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    around = Surroundings(
        rootd=rootd,
        vmm=Drivers(QemuVmm(rootd, instance), FirecrackerVmm(rootd, instance)),
        ledger=ledger,
        gate=Gate(
            capacity(settings, memory_total_mib=memory, processors=len(os.sched_getaffinity(0))),
            disk_free_mib=lambda: free_bytes(instance.data) >> 20,
        ),
        slots=Slots(ledger, rootd, releases, settings.egress_synthetic),
        egress=egress,
        releases=releases,
        # milliseconds since 1970, so that revisions also grow from one node's life to the next
        board=Board(time.time_ns() // 1_000_000),
        accelerators=Accelerators(
            settings.accelerator,
            instance.node_data,
            device_is_there=kvm_is_there(),
            boot_id=host_boot_id(),
            jailed=lambda: firecracker.current(store),
        ),
        archive=Archive(
            instance.node_data / "spool",
            Quota(settings.spool_mib_per_process * MIB, settings.spool_mib_per_sandbox * MIB),
            settings.retention_seconds,
        ),
        history=History(settings.metrics_interval_seconds),
        disk_of=lambda sandbox: instance.sandboxes / sandbox / "disk.img",
        export_key=parcels.key(instance.node_data / "export.key"),
        warm_templates=settings.warm_templates,
        clones_ahead=settings.clones_ahead,
        trace=trace,
    )
    return Node(around, store)


async def run(instance: Instance, settings: Settings, listener: socket.socket, ready_fd: int | None, trace: Trace = no_trace) -> None:
    """Recover, serve, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = compose(instance, settings, trace)
    await node.recover()
    door = Door(listener, frozenset({0, instance.control_uid}), Verbs(node, EgressLog(instance.audit_socket).verbs))
    door.open()
    log.info("ready: instance %s, %d sandboxes", instance.name, len(node.around.board.states()))
    say_ready(ready_fd)
    await stop.wait()
    door.close()
    await node.stop(_STOPPING)
    log.info("stopped; running sandboxes are left running")


def main(trace: Trace = no_trace) -> int:
    """The process. trace: for tests, which call this from a program of theirs."""
    parser = argparse.ArgumentParser(prog="space.node", description="the sandboxes of one machine")
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
    logs.configure("node", options.log_format)
    # per sandbox: monitor, console, two pipes, a pidfd
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = socket.socket(fileno=options.listen_fd)
    listener.set_inheritable(False)
    try:
        hold(instance.node_data, "node")
        uvloop.run(run(instance, load_effective(instance), listener, options.ready_fd, trace))
    except SpaceError as error:
        log.error("%s", error)  # noqa: TRY400 (its words are enough)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
