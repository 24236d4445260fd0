"""The composition root: one thread, one loop, a listening socket that serve bound, and no state that is not on the host.

    python -I -m space.rootd.server --instance NAME --listen-fd N [--ready-fd N]

A message is one operation; answers come in order. Every call is one line of the log. Everything is looked up on the host
anew with each call, so that a rootd that died is simply followed by the next one.
"""

from __future__ import annotations

import argparse
import array
import functools
import os
import resource
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, assert_never

from space.config import instance as instances
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.config.ready import say_ready
from space.config.snapshots import SnapshotManifest
from space.core.plan.edge import Plan, parse_range
from space.host import cgroups, namespaces, process, syscalls
from space.model.errors import Conflict, NotFound, SpaceError
from space.model.rootd import (
    BeginSnapshot,
    CreateSandbox,
    Describe,
    DropTemplate,
    EdgeOp,
    KeepTemplate,
    ListSnapshots,
    OpenTemplate,
    Operation,
    RebaseTemplate,
    RenewSandbox,
    SandboxOp,
    SealSnapshot,
    SealTemplate,
    SlotOp,
    SnapshotOp,
    StageSnapshot,
    StageTemplate,
    StartVmm,
    TemplateOp,
)
from space.rootd import arrivals, edge, memory, outbound, records, roots, sandboxes, slots, snapshots, taking, templates, vmm, workers
from space.rootd.faults import fault
from space.rootd.log import configure, log

_MAX_PEERS = 16
_SO_SNDBUFFORCE = 32
_ANSWER_BYTES = 4 << 20  # describe of a full instance


@dataclass(slots=True)
class Rootd:
    """What is held: the place on the host, the VMMs that we started, who is connected."""

    instance: Instance
    place: sandboxes.Place
    children: vmm.Children = field(default_factory=vmm.Children)
    peers: dict[int, socket.socket] = field(default_factory=dict)
    fillings: memory.Fillings = field(default_factory=memory.Fillings)
    edges: edge.Edges = field(init=False)

    def __post_init__(self) -> None:
        self.edges = edge.Edges(self.instance)

    def perform(self, op: str, record: Operation) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Do it: the answer's fields, and the descriptors to send with it."""
        match record:
            case Describe():
                return self._describe(), ()
            case SlotOp(slot=slot) if op == "worker_cgroup":
                return {}, workers.entrances(self.place.cgroup, slot)
            case SlotOp(slot=slot):
                return self._slot(op, slot), ()
            case EdgeOp(slot=slot):
                plan = Plan(parse_range(record.synthetic), record.literal)
                return {}, self.edges.create(slot, plan, self._tenant(slot))
            case TemplateOp():
                roots.provide(self.instance, record.template)
                return {}, ()
            case CreateSandbox():
                sandboxes.create(self.place, record)
                return {}, ()
            case RenewSandbox():
                sandboxes.renew(self.place, record)
                return {}, ()
            case StartVmm():
                return {}, (vmm.start(self.place, self.children, record),)
            case BeginSnapshot():
                return {}, taking.begin(self.place, record)
            case ListSnapshots():
                return {"snapshots": [self._snapshot(each) for each in snapshots.existing(self.instance)]}, ()
            case StageSnapshot():
                return {}, arrivals.stage(self.instance, record)
            case SealSnapshot():
                arrivals.seal(self.instance, record)
                return {}, ()
            case SnapshotOp(snapshot=snapshot) if op == "open_snapshot":
                return arrivals.opened(self.instance, snapshot)
            case SnapshotOp(snapshot=snapshot):
                return self._on_snapshot(op, snapshot)
            case SandboxOp():
                return self._sandbox(op, record)
            case OpenTemplate() | KeepTemplate() | RebaseTemplate() | StageTemplate() | SealTemplate() | DropTemplate():
                return {}, templates.perform(self.place, record)
            case _:
                assert_never(record)

    def _describe(self) -> dict[str, Any]:
        snapshots.tidy(self.instance)  # a node begins: what its predecessor was writing is nobody's
        found = [
            {"sandbox": one.sandbox, "generation": one.generation, "slot": one.slot, "alive": sandboxes.is_alive(self.place, one)}
            for one in sandboxes.existing(self.place)
        ]
        return {"slots": slots.existing(self.instance), "sandboxes": found}

    def _slot(self, op: str, slot: int) -> dict[str, Any]:
        if op == "slot_counters":
            if not slots.exists(self.instance, slot):
                raise NotFound(f"there is no slot {slot} on this host")
            return {"counters": edge.counters(self.instance, slot)}
        if op == "create_slot" and not self.edges.is_edge(slot):
            slots.create(self.instance, slot)
            return {}
        if (tenant := self._tenant(slot)) is not None:
            raise Conflict(f"the VMM of {tenant} lives in slot {slot}", hint="kill it and wait for its end first")
        workers.end(self.place, slot)
        self.edges.destroy(slot)
        if op == "create_slot":
            slots.create(self.instance, slot)
        return {}

    def _tenant(self, slot: int) -> str | None:
        """The sandbox whose VMM lives in a slot."""
        ours = (one for one in sandboxes.existing(self.place) if one.slot == slot and sandboxes.is_alive(self.place, one))
        return next((one.sandbox for one in ours), None)

    def _sandbox(self, op: str, record: SandboxOp) -> tuple[dict[str, Any], tuple[int, ...]]:
        if op == "adopt_vmm":
            pidfd = vmm.adopt(self.place, record)
            return {"alive": pidfd is not None}, () if pidfd is None else (pidfd,)
        if op == "kill_vmm":
            vmm.kill(self.place, record)
        elif op == "destroy_sandbox":
            sandboxes.destroy(self.place, record)
        else:
            tree = self.place.tree(sandboxes.get(self.place, record).sandbox)
            return {"memory_bytes": tree.memory_bytes(), "cpu_usec": tree.cpu_usec(), "oom_kills": tree.oom_kills()}, ()
        return {}, ()

    def _snapshot(self, manifest: SnapshotManifest | str) -> dict[str, Any]:
        if isinstance(manifest, str):
            return {"snapshot": manifest}
        names = ("snapshot", "sandbox", "generation", "template", "parent", "shared", "durable", "disk_mib", "private_bytes", "taken_at")
        told = {name: getattr(manifest, name) for name in names}
        told |= {"cpus": manifest.machine.cpus, "memory_mib": manifest.machine.memory_mib, "accelerator": manifest.machine.accelerator}
        return told | {"held": manifest.shared and memory.is_held(self.place, manifest)}

    def _on_snapshot(self, op: str, snapshot: str) -> tuple[dict[str, Any], tuple[int, ...]]:
        if op == "hold_memory":
            return {}, (memory.hold(self.place, self.fillings, snapshot),)
        if op == "discard_snapshot":
            needed = functools.partial(snapshots.is_needed, self.instance, snapshot)
            made = (one.sandbox for one in sandboxes.existing(self.place) if needed(one.snapshot, begun=one.answered))
            if (user := next(made, None)) is not None:
                raise Conflict(f"sandbox {user} is made of snapshot {snapshot}", hint="it can be discarded once no sandbox is")
        memory.release(self.place, self.fillings, snapshot)
        if op == "discard_snapshot":
            snapshots.discard(self.instance, snapshot)
        return {}, ()

    # -- the boundary --------------------------------------------------------------------------------------------
    def serve_message(self, message: bytes) -> tuple[bytes, tuple[int, ...]]:
        """One message in, one answer out, with descriptors that the caller sends and closes. Never raises for what a peer said."""
        began, name, about, sandbox = time.perf_counter(), "?", "", None
        descriptors: tuple[int, ...] = ()
        try:
            name, record = records.decode(message)
            # a template's settings are its author's, and may hold what no log should
            about = " ".join(f"{key}={value}" for key, value in asdict(record).items() if key not in ("settings", "facts"))
            sandbox = getattr(record, "sandbox", None)
            values, descriptors = self.perform(name, record)
            reply, outcome = records.answer(values), "ok"
        except Exception as error:  # noqa: BLE001 (the boundary: whatever it is, the peer gets a code and a sentence)
            found = fault(error)
            reply, outcome = records.refusal(found), f"{found.code}: {error}"
        level = "info" if outcome == "ok" else "warning"
        log(f"{name} {about} {(time.perf_counter() - began) * 1000:.1f}ms {outcome}", level=level, sandbox=sandbox)
        return reply, descriptors

    def accept(self, listener: socket.socket, poll: select.epoll) -> None:
        """Take a connection if it comes from the node (or root)."""
        with suppress(BlockingIOError, ConnectionAbortedError):
            peer, _ = listener.accept()
            pid, uid, _ = struct.unpack("=iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid not in (0, self.instance.node_uid) or len(self.peers) >= _MAX_PEERS:
                log(f"refused a connection of uid {uid}, pid {pid}: {len(self.peers)} are connected")
                peer.close()
                return
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ANSWER_BYTES)
            self.peers[peer.fileno()] = peer
            poll.register(peer, select.EPOLLIN)

    def receive(self, number: int, poll: select.epoll) -> None:
        """Serve one message of a peer; close the connection when it is over, or when it does not take its answers."""
        peer = self.peers[number]
        descriptors: tuple[int, ...] = ()
        try:
            message = peer.recv(records.MESSAGE_LIMIT + 1)  # descriptors that came along are closed by the kernel
            if message:
                reply, descriptors = self.serve_message(message)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
                peer.sendmsg([reply], rights, socket.MSG_NOSIGNAL)
                return
        except BlockingIOError:
            log("closing a connection that does not take its answers")
        except OSError as error:
            log(f"a connection broke: {error.strerror}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        poll.unregister(peer)
        del self.peers[number]
        peer.close()


def run(rootd: Rootd, listener: socket.socket, wake: socket.socket, outward: outbound.Filter) -> None:
    """Serve until SIGTERM or SIGINT."""
    poll = select.epoll()
    for each in (listener, wake, outward):
        poll.register(each, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == wake.fileno():
                arrived = wake.recv(4096)
                if signal.SIGTERM in arrived or signal.SIGINT in arrived:
                    return
                vmm.reap(rootd.children)
            elif number == outward.fileno():
                outward.follow()
            elif number == listener.fileno():
                rootd.accept(listener, poll)
            elif number in rootd.peers:
                rootd.receive(number, poll)


def _wake_on_signals() -> socket.socket:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def main() -> int:
    """Adopt what is on the host, say that we are ready, serve."""
    parser = argparse.ArgumentParser(prog="space.rootd", description="root's operations for one instance")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--listen-fd", required=True, type=int)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="for tests: where instances are")
    parser.add_argument("--run-root", type=Path, default=RUN_ROOT, help="for tests")
    options = parser.parse_args()
    instance = instances.load(options.instance, data_root=options.data_root, run_root=options.run_root)
    if instance is None:
        parser.error(f"there is no instance {options.instance!r} on this host")
    configure(options.log_format)
    wake = _wake_on_signals()
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    listener = socket.socket(fileno=options.listen_fd)
    os.set_inheritable(listener.fileno(), False)
    listener.setblocking(False)
    try:
        rootd = Rootd(instance, sandboxes.open_place(instance))
        outward = outbound.Filter(instance)
    except (cgroups.Missing, process.ProcessFailed, SpaceError) as error:
        parser.exit(1, f"{error}\n")
    sandboxes.tidy(rootd.place)
    for name in templates.tidy(rootd.place):
        log(f"removed {name} of the templates, which an earlier rootd left unfinished")
    snapshots.tidy(instance)
    alive = sum(sandboxes.is_alive(rootd.place, one) for one in sandboxes.existing(rootd.place))
    started = namespaces.start_time(os.getpid())
    (instance.run / "rootd.pid").write_text(f"{os.getpid()} {started}\n")
    log(f"ready: instance {instance.name}, {alive} VMMs adopted")
    say_ready(options.ready_fd)
    run(rootd, listener, wake, outward)
    signal.set_wakeup_fd(-1)  # nobody reads it any more, and a child may still end
    log("stopped; VMMs are left running")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
