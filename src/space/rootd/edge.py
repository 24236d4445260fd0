"""The edge of a slot with egress: a slot whose filter admits what the gateway serves, and the three sockets that the guest reaches.

    absent --create--> built, listeners held --destroy--> TAP gone, flows aborted, listeners closed, namespace let go --> absent

rootd holds the listeners, so that a guest's connections wait (as many as the backlog) while no worker accepts, and answers every
create with fresh duplicates. A mark beside the namespace says that the slot has an edge; it outlives rootd, the held listeners do
not: the next rootd opens them again where nobody has them any more. No interface leads out of the namespace; `lo` stays down.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from space.config.instance import Instance
from space.core.plan import edge, machine, ruleset
from space.core.plan.ruleset import GUEST_MAC, TAP
from space.host import namespaces, nftables, process, routing
from space.model.errors import Conflict, Internal
from space.rootd import slots
from space.rootd.log import log

BACKLOG, DNS_BACKLOG = 256, 16  # connections that wait for a worker; beyond them the kernel drops and the guest asks again
_WHOLE, _BROKEN, _TAKEN = b"whole", b"broken", b"taken"
_IP_TRANSPARENT = 19

Descriptors = tuple[int, ...]  # the transparent listener, DNS over UDP, DNS over TCP; or none


@dataclass(slots=True)
class Edges:
    """The listeners of every slot that has them, by slot."""

    instance: Instance
    held: dict[int, Descriptors] = field(default_factory=dict)

    def is_edge(self, slot: int) -> bool:
        """Whether the slot was made with an edge, by whichever rootd."""
        return self._mark(slot).exists()

    def create(self, slot: int, plan: edge.Plan, tenant: str | None) -> Descriptors:
        """Make the slot, or make sure of it; duplicates of its listeners, which the caller owns.

        tenant: whose VMM lives in it. Then nothing but the plan's destinations can change: Conflict where it had to be built anew.
        """
        path = self.instance.netns(slot)
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        if namespaces.is_kept(path):
            if self.is_edge(slot) and self._make_sure(slot, path, plan):
                return self._duplicates(slot)
            if tenant is not None:
                raise Conflict(f"slot {slot} has no edge of this plan, and the VMM of {tenant} lives in it", hint="destroy it first")
            self.destroy(slot)
        elif tenant is not None:  # its TAP is in a namespace that nothing here leads to: one made now would be another
            hint = "serve runs in another mount namespace than the one that started it; go back to that one, or delete the sandbox"
            raise Conflict(f"the namespace of slot {slot} is not here, and the VMM of {tenant} lives in it", hint=hint)
        self._mark(slot).touch(mode=0o600)
        try:
            _, self.held[slot] = _in_child(lambda channel: _build(path, plan, channel))
        except BaseException:
            self.destroy(slot)
            raise
        return self._duplicates(slot)

    def destroy(self, slot: int) -> None:
        """Let the slot go, and everything that speaks through it; one without edge goes as it always did. Nothing there is fine."""
        path = self.instance.netns(slot)
        if self.is_edge(slot):
            for descriptor in self.held.pop(slot, ()):
                os.close(descriptor)
            if namespaces.is_kept(path):
                process.forked(lambda: _end(path))
        slots.destroy(self.instance, slot)
        self._mark(slot).unlink(missing_ok=True)

    def _make_sure(self, slot: int, path: Path, plan: edge.Plan) -> bool:
        held = self.held.get(slot, ())
        found, opened = _in_child(lambda channel: _inspect(path, plan, None if held else channel))
        if opened:
            self.held[slot] = opened
        if found == _TAKEN:
            log(f"the listeners of slot {slot} are held by a process that outlived the rootd that made them", level="warning")
        return found == _WHOLE

    def _duplicates(self, slot: int) -> Descriptors:
        copies: list[int] = []
        try:
            for descriptor in self.held[slot]:
                copies.append(os.dup(descriptor))  # noqa: PERF401 (those made so far are closed when one fails)
        except OSError:
            for copy in copies:
                os.close(copy)
            raise
        return tuple(copies)

    def _mark(self, slot: int) -> Path:
        path = self.instance.netns(slot)
        return path.with_name(f"{path.name}.edge")


def counters(instance: Instance, slot: int) -> dict[str, int]:
    """Packets by counter of a slot, with edge or without."""

    def read() -> bytes:
        namespaces.enter_network(instance.netns(slot))
        return json.dumps(ruleset.counters(nftables.ruleset())).encode()

    found: dict[str, int] = json.loads(process.forked(read))
    return found


# -- in a child that has the namespace -------------------------------------------------------------------------------


def _in_child(work: Callable[[socket.socket], bytes]) -> tuple[bytes, Descriptors]:
    """Do `work` in a forked child: what it returns, and the descriptors that it sent over the channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        found = process.forked(lambda: work(theirs))
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 3)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return found, tuple(descriptors)


def _build(path: Path, plan: edge.Plan, channel: socket.socket) -> bytes:
    namespaces.keep_network(path)
    slots.silence()
    namespaces.make_tap(TAP, namespaces.TAP_MAC)
    nftables.load(edge.ruleset(plan))
    loaded = edge.loaded(nftables.ruleset())
    if loaded != edge.expected(plan):
        raise Internal(f"the ruleset of {path} reads back otherwise than it was written: {json.dumps(loaded)[:2000]}")
    _address()
    _open_listeners(channel)
    namespaces.set_up(TAP)
    return _WHOLE


def _inspect(path: Path, plan: edge.Plan, channel: socket.socket | None) -> bytes:
    """Whether it is as it should be, after its destinations are those of the plan. channel: the listeners are wanted as well."""
    namespaces.enter_network(path)
    if namespaces.interfaces() != {"lo", TAP} or not namespaces.is_up(TAP) or namespaces.is_up("lo"):
        return _BROKEN
    loaded = edge.loaded(nftables.ruleset())
    if loaded == edge.expected(edge.Plan(plan.synthetic, literal=not plan.literal)):
        nftables.load(edge.change(plan))
        loaded = edge.loaded(nftables.ruleset())
    if loaded != edge.expected(plan):
        return _BROKEN
    _address()
    if channel is not None:
        try:
            _open_listeners(channel)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return _TAKEN
    return _WHOLE


def _end(path: Path) -> bytes:
    """First the way in, so that no new flow comes, then the flows: workers that hold one see it end."""
    namespaces.enter_network(path)
    if TAP in namespaces.interfaces():
        namespaces.remove_tap(TAP)
    try:
        left = routing.end_flows()
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return b""  # this kernel cannot abort them; without the TAP they end in a namespace that nobody enters again
    if left:
        raise Internal(f"{left} flows of {path} do not end")
    return b""


def _address() -> None:
    index = socket.if_nametoindex(TAP)
    routing.add_address(index, IPv4Address(machine.GATEWAY), edge.LINK.prefixlen)
    routing.add_neighbour(index, IPv4Address(edge.GUEST), bytes.fromhex(GUEST_MAC.replace(":", "")))
    routing.add_rule(edge.MARK, edge.ROUTES)
    routing.add_local_route(index, edge.ROUTES)


def _open_listeners(channel: socket.socket) -> None:
    """Bound to the TAP. What the namespace sends to itself would pass for the TAP's: the filter refuses it, and `lo` is down."""
    opened: list[socket.socket] = []
    try:
        for kind, port, backlog in (
            (socket.SOCK_STREAM, edge.LISTENER_PORT, BACKLOG),
            (socket.SOCK_DGRAM, edge.DNS_PORT, 0),
            (socket.SOCK_STREAM, edge.DNS_PORT, DNS_BACKLOG),
        ):
            one = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
            opened.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, TAP.encode())
            if kind == socket.SOCK_STREAM:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # flows of an earlier listener may still be here
            if port == edge.LISTENER_PORT:
                one.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
            one.bind((machine.GATEWAY, port))
            if backlog:
                one.listen(backlog)
        socket.send_fds(channel, [b"listeners"], [one.fileno() for one in opened])
    finally:
        for one in opened:
            one.close()
