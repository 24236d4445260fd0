"""The edge of a slot with egress, on the real kernel: what a guest of raw frames gets through it, and what of it is counted as what."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from random import Random

import pytest

from space.core.plan import ruleset
from space.core.plan.edge import Plan, parse_range
from space.host import namespaces, process
from space.model.errors import Conflict, Internal, NotFound
from space.rootd import edge
from space.rpc.rootd_client import Listeners
from space.testing import rawguest
from space.testing.hostileframes import ATTACKS
from space.testing.rawguest import (
    ACK,
    ARP,
    BROADCAST,
    GATEWAY,
    GUEST,
    GUEST_MAC,
    HOST_MAC,
    RST,
    SYN,
    TCP,
    UDP,
    RawGuest,
    arp,
    frame,
    raw_guest,
    tcp,
    udp,
)
from space.testing.roothost import RootHost

RANGE = "198.18.0.0/15"
NAMED, OTHER_NAME, PUBLIC = "198.18.0.9", "198.19.255.254", "203.0.113.7"
_OTHER_MAC = bytes.fromhex("525400000099")


def _inside(host: RootHost, work: Callable[[], bytes], slot: int = 0) -> bytes:
    def entered() -> bytes:
        namespaces.enter_network(host.instance.netns(slot))
        return work()

    return process.forked(entered)


@contextmanager
def _edge(host: RootHost, slot: int = 0, *, literal: bool = False) -> Iterator[tuple[RawGuest, dict[str, socket.socket]]]:
    """A slot with an edge, a guest at its TAP, and its listeners."""
    listeners = _listeners(host.ask(lambda client: client.create_edge(slot, RANGE, literal=literal)))
    try:
        with raw_guest(host.instance.netns(slot)) as guest:
            yield guest, listeners
    finally:
        for one in listeners.values():
            one.close()


def _listeners(handed: Listeners) -> dict[str, socket.socket]:
    named = {"tcp": handed.transparent, "dns": handed.dns, "dns_tcp": handed.dns_tcp}
    found = {name: socket.socket(fileno=descriptor) for name, descriptor in named.items()}
    for one in found.values():
        one.settimeout(2)
    return found


def _counters(host: RootHost, slot: int = 0) -> dict[str, int]:
    return {name: count for name, count in host.ask(lambda client: client.slot_counters(slot)).items() if count}


@pytest.mark.parametrize(("target", "port"), [(NAMED, 443), (NAMED, 80), (NAMED, 53), (OTHER_NAME, 65535), (NAMED, 15001)])
def test_connection_to_a_name_arrives_with_the_address_and_port_that_were_dialled(host: RootHost, target: str, port: int) -> None:
    with _edge(host) as (guest, listeners):
        answer = guest.connect(target, port, from_port=40001)
        assert (answer.source, answer.source_port, answer.flags) == (target, port, SYN | ACK)
        accepted, peer = listeners["tcp"].accept()
        with accepted:
            assert accepted.getsockname() == (target, port)
            assert peer == (GUEST, 40001)
            guest.send_ip(tcp(target, port, flags=ACK, from_port=40001, seq=1001, ack=answer.seq + 1, data=b"hello"))
            accepted.settimeout(2)
            assert accepted.recv(100) == b"hello"
            accepted.sendall(b"world")
            heard = [rawguest.parse(one) for one in guest.drain()]
            assert [one.data for one in heard if one is not None and one.data] == [b"world"]
        assert set(_counters(host)) == {"admitted_tcp"}


def test_any_address_reaches_the_listener_only_while_the_plan_says_so(host: RootHost) -> None:
    with _edge(host) as (guest, listeners):
        assert guest.connect(PUBLIC, 22, from_port=40001).flags & RST
        for again in (True, False, True):  # it changes under the guest, and the slot and its listeners stay
            before = host.instance.netns(0).stat().st_ino
            for one in _listeners(host.ask(lambda client, again=again: client.create_edge(0, RANGE, literal=again))).values():  # type: ignore[misc]
                one.close()
            assert host.instance.netns(0).stat().st_ino == before
            answer = guest.connect(PUBLIC, 22, from_port=40002 + again)
            assert bool(answer.flags & RST) is not again
            if again:
                accepted, _ = listeners["tcp"].accept()
                assert accepted.getsockname() == (PUBLIC, 22)
                accepted.close()
            guest.drain()
            guest.send_ip(tcp(PUBLIC, 22, flags=RST, from_port=40003, seq=1001))
        for never in ("127.0.0.1", "10.0.0.2", "0.0.0.1"):
            guest.send_ip(tcp(never, 22, from_port=40010))
            assert all(segment.flags & RST for segment in guest.segments())
        listeners["tcp"].settimeout(0.05)
        with pytest.raises(TimeoutError):
            listeners["tcp"].accept()


def test_dns_arrives_over_udp_and_tcp_and_its_answers_leave(host: RootHost) -> None:
    with _edge(host) as (guest, listeners):
        guest.send_ip(udp(b"query", port=53, from_port=41000))
        query, peer = listeners["dns"].recvfrom(100)
        assert (query, peer) == (b"query", (GUEST, 41000))
        listeners["dns"].sendto(b"answer", peer)
        answer = guest.segment()
        assert answer is not None
        assert (answer.source, answer.source_port, answer.port, answer.data) == (GATEWAY, 53, 41000, b"answer")
        assert guest.connect(GATEWAY, 53, from_port=41001).flags == SYN | ACK
        accepted, peer = listeners["dns_tcp"].accept()
        with accepted:
            assert (accepted.getsockname(), peer) == ((GATEWAY, 53), (GUEST, 41001))
        assert set(_counters(host)) == {"admitted_dns"}


def test_arp_of_the_guest_for_the_gateway_is_answered_and_no_other(host: RootHost) -> None:
    with _edge(host) as (guest, _):
        guest.send(frame(arp(), kind=ARP, target=BROADCAST))
        (answer,) = guest.drain()
        assert answer[:14] == GUEST_MAC + HOST_MAC + ARP.to_bytes(2, "big")
        assert answer[20:32] == (2).to_bytes(2, "big") + HOST_MAC + bytes((10, 0, 0, 1))
        assert _counters(host) == {"admitted_arp": 1}


def test_every_attack_is_dropped_and_counted_as_what_it_is(host: RootHost) -> None:
    with _edge(host) as (guest, listeners):
        wrong, before = {}, _counters(host)
        for name, (counter, attack) in ATTACKS.items():
            guest.send(attack)
            after = _counters(host)
            moved = {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)}
            if moved != {counter: 1}:
                wrong[name] = moved
            before = after
        assert wrong == {}
        assert guest.drain() == []
        for one in listeners.values():
            one.setblocking(False)
        with pytest.raises(BlockingIOError):
            listeners["dns"].recv(1)
        for name in ("tcp", "dns_tcp"):
            with pytest.raises(BlockingIOError):
                listeners[name].accept()
        assert guest.connect(NAMED, 443, from_port=42000).flags == SYN | ACK  # and who is honest is still served


def _mutated(random: Random, number: int) -> tuple[bytes, bytes]:
    """A frame that is right, with up to three bytes of its headers changed (the sum made right again or not), and its virtio-net header."""
    data = number.to_bytes(4, "big")
    whole = bytearray(frame(random.choice([udp(data, port=53), tcp(NAMED, 443, from_port=1024 + number, data=data)])))
    for _ in range(random.randrange(4)):
        whole[random.randrange(14 + 20 + 8)] = random.choice([0, 1, 53, 255, random.randrange(256)])
    if random.random() < 0.8:
        whole[24:26] = b"\0\0"
        whole[24:26] = rawguest.checksum(bytes(whole[14:34])).to_bytes(2, "big")
    offload = bytes(10) if random.random() < 0.7 else random.randbytes(2) + bytes(random.choice([0, 1, 8, 14, 34, 60]) for _ in range(8))
    return offload, bytes(whole)


def _is_admitted(got: bytes) -> bool:
    """The whitelist once more, from the bytes."""
    source, target, port = got[26:30], IPv4Address(got[30:34]), int.from_bytes(got[36:38], "big")
    plain = got[:14] == HOST_MAC + GUEST_MAC + b"\x08\0" and got[14] == 0x45 and got[20:22] in (b"\0\0", b"\x40\0")
    has_ports = 20 <= int.from_bytes(got[16:18], "big") <= len(got) - 14  # nft looks for ports only where the length can be
    dns = got[23] in (UDP, TCP) and str(target) == GATEWAY and port == 53 and has_ports
    return plain and source == IPv4Address(GUEST).packed and (dns or (got[23] == TCP and target in IPv4Network(RANGE)))


@pytest.mark.parametrize("seed", range(3))
def test_changed_frame_arrives_only_where_the_whitelist_admits_it(host: RootHost, seed: int) -> None:
    random = Random(seed)
    with _edge(host) as (guest, listeners):
        listeners["dns"].setblocking(False)
        sent: dict[int, bytes] = {}
        arrived = 0
        for number in range(3000):
            offload, whole = _mutated(random, number)
            try:
                os.write(guest.tap, offload + whole)
            except OSError:
                continue  # the kernel refuses that virtio-net header
            sent[number] = whole
            with suppress(BlockingIOError):
                data = listeners["dns"].recv(2048)
                arrived += 1
                if len(data) == 4:  # a changed length cuts the number off; the counters tell all the same
                    assert _is_admitted(sent[int.from_bytes(data, "big")])
            guest.drain(0)
        counted = _counters(host)
        assert sum(count for name, count in counted.items() if name.startswith("admitted_")) == sum(map(_is_admitted, sent.values()))
        assert sum(count for name, count in counted.items() if not name.startswith("host_")) == len(sent)
        assert arrived > 300
        assert all(one is None or one.flags & (ACK | RST) for one in map(rawguest.parse, guest.heard))


def test_every_other_port_of_the_gateway_is_reset_and_none_answers_udp(host: RootHost) -> None:
    with _edge(host) as (guest, _):
        refused = 0
        for start in range(0, 65536, 256):
            ports = [port for port in range(start, start + 256) if port != 53]
            guest.send_ip(*(tcp(GATEWAY, port, from_port=43000) for port in ports), *(udp(b"q", port=port) for port in ports))
            for _ in ports:
                answer = guest.segment()
                assert answer is not None
                assert answer.flags & RST
                refused += 1
        assert refused == 65535
        assert guest.drain() == []
        assert _counters(host) == {"gateway_port": 2 * 65535}


@pytest.mark.parametrize("target", [PUBLIC, "169.254.169.254", "10.0.0.6", "192.168.1.1", "198.20.0.1", GUEST])
def test_straight_to_an_address_is_reset_at_once(host: RootHost, target: str) -> None:
    with _edge(host) as (guest, _):
        assert guest.connect(target, 80, from_port=40001).flags & RST
        guest.send_ip(tcp(target, 80, flags=RST, from_port=40001))  # a reset is not answered
        assert guest.drain() == []
        assert _counters(host) == {"guest_tcp": 2}


def test_an_address_from_which_nothing_can_come_is_refused_in_silence(host: RootHost) -> None:
    with _edge(host) as (guest, _):
        guest.send_ip(tcp("127.0.0.1", 80, from_port=40001))
        assert guest.drain() == []
        assert _counters(host) == {"guest_tcp": 1}


def test_flood_of_syns_does_not_keep_an_honest_connection_out(host: RootHost) -> None:
    with _edge(host) as (guest, listeners):
        flood = [frame(tcp(NAMED, 1 + count % 60000, from_port=1024 + count % 30000, seq=count)) for count in range(10_000)]
        for start in range(0, len(flood), 500):
            guest.send(*flood[start : start + 500])
            guest.drain(0)
            guest.heard.clear()
        assert guest.connect(OTHER_NAME, 443, from_port=50001, seconds=5).flags == SYN | ACK
        guest.send(*flood[:500])
        accepted, peer = listeners["tcp"].accept()
        with accepted:
            assert (accepted.getsockname(), peer) == ((OTHER_NAME, 443), (GUEST, 50001))


def test_frames_before_the_filter_reach_nobody(host: RootHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that is at the TAP before it is up: the kernel takes nothing of it, and the filter is there when it does."""
    seen: list[str] = []

    def attack(what: str) -> None:
        tap = namespaces.open_tap("tap0")
        try:
            os.write(tap, bytes(10) + frame(udp(b"q", port=53)))
            seen.append(f"{what}: taken")
        except OSError as error:
            seen.append(f"{what}: {errno.errorcode[error.errno or 0]}")
        finally:
            os.close(tap)

    def load(argv: list[str], *, data: bytes | None = None) -> process.Completed:
        attack(" ".join(argv))
        return real(argv, data=data)

    real = process.run
    monkeypatch.setattr(process, "run", load)

    def build() -> bytes:
        # nobody takes the listeners, so that it stops just before the TAP would come up
        with socket.socketpair()[0] as channel, pytest.raises(OSError, match="Broken pipe"):
            edge._build(host.instance.netns(9), Plan(parse_range(RANGE)), channel)
        assert not namespaces.is_up("tap0")
        attack("at last")
        return "\n".join(seen).encode()

    told = process.forked(build).decode()
    assert told.splitlines() == ["nft -f -: EIO", "nft -j -p list ruleset: EIO", "at last: EIO"]
    host.ask(lambda client: client.destroy_slot(9))


@pytest.mark.parametrize("missing", ["nothing", "output", "prerouting"])
@pytest.mark.parametrize("bound", [False, True])
def test_namespace_itself_reaches_no_listener(host: RootHost, missing: str, bound: bool) -> None:
    """What a VMM that was taken over could try from inside, here with more rights than it has: `lo` is up, and one of two chains is gone.

    The binding to the TAP is no third layer: the kernel takes the gateway's address, looped back, for one that came over the TAP.
    """
    with _edge(host) as (guest, listeners):

        def attack() -> bytes:
            process.run(["ip", "link", "set", "lo", "up"])
            if missing != "nothing":
                process.run(["nft", "delete", "chain", "inet", "space", missing])
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                for target in ((GATEWAY, 53), (GATEWAY, 15001), (NAMED, 443)):
                    with socket.socket(socket.AF_INET, kind) as one, suppress(OSError):
                        one.settimeout(0.2)
                        if bound:
                            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
                        one.connect(target)
                        one.send(b"inside")
            return b""

        _inside(host, attack)
        for name, one in listeners.items():
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                raise AssertionError(f"{name}: {one.recvfrom(9) if name == 'dns' else one.accept()}")
        if missing != "output":
            assert guest.drain() == []


def test_namespace_sends_the_guest_answers_only(host: RootHost) -> None:
    with _edge(host) as (guest, _):

        def attack() -> bytes:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                one.settimeout(0.2)
                with suppress(OSError):
                    one.connect((GUEST, 80))
                with suppress(OSError):
                    other.sendto(b"x", (GUEST, 80))
            return b""

        _inside(host, attack)
        assert guest.drain() == []
        assert set(_counters(host)) == {"host_output"}


def test_two_slots_see_nothing_of_each_other(host: RootHost) -> None:
    with _edge(host, 1) as (one, first), _edge(host, 2) as (other, second):
        assert one.connect(NAMED, 443, from_port=40001).flags == SYN | ACK
        one.send_ip(udp(b"one", port=53), udp(b"for the other", port=53, source="10.0.0.6"), udp(b"x", port=53, target="10.0.0.5"))
        accepted, _ = first["tcp"].accept()
        accepted.close()
        assert first["dns"].recv(10) == b"one"
        for name, listener in second.items():
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                _ = listener.recv(1) if name == "dns" else listener.accept()
        assert other.drain() == []
        assert _counters(host, 2) == {}


def test_connections_wait_while_nobody_accepts_and_each_create_answers_the_same_listeners(host: RootHost) -> None:
    with _edge(host) as (guest, first):
        for one in first.values():
            one.close()
        assert guest.connect(NAMED, 443, from_port=40001).flags == SYN | ACK
        guest.send_ip(udp(b"waits", port=53))
        again = _listeners(host.ask(lambda client: client.create_edge(0, RANGE, literal=False)))
        accepted, _ = again["tcp"].accept()
        assert accepted.getsockname() == (NAMED, 443)
        assert again["dns"].recv(10) == b"waits"
        for one in (accepted, *again.values()):
            one.close()


def test_destroyed_edge_ends_its_flows_and_listeners_whoever_holds_them(host: RootHost) -> None:
    with _edge(host) as (guest, listeners):
        guest.connect(NAMED, 443, from_port=40001)
        accepted, _ = listeners["tcp"].accept()
        guest.leave()
        host.ask(lambda client: client.destroy_slot(0))
        accepted.settimeout(2)
        with accepted, pytest.raises(ConnectionAbortedError):
            accepted.recv(1)
        for name in ("tcp", "dns_tcp"):
            with pytest.raises(OSError, match="Invalid argument"):
                listeners[name].accept()
        assert sorted(path.name for path in (host.instance.run / "netns").iterdir()) == []
        host.ask(lambda client: client.destroy_slot(0))


def test_destroyed_edge_waits_for_a_tap_that_is_held(host: RootHost) -> None:
    with _edge(host), pytest.raises(Internal, match="rootd failed"):
        host.ask(lambda client: client.destroy_slot(0))
    host.ask(lambda client: client.destroy_slot(0))
    host.log.write_text("")


@pytest.mark.parametrize(
    "damage",
    [
        ["nft", "flush", "ruleset"],
        ["nft", "insert", "rule", "netdev", "space", "guest_udp", "accept"],
        ["nft", "add", "rule", "inet", "space", "output", "accept"],
        ["nft", "add", "chain", "netdev", "space", "from_guest", "{ policy accept; }"],
        ["nft", "add", "table", "ip", "more"],
        ["ip", "link", "set", "tap0", "down"],
        ["ip", "link", "set", "lo", "up"],
    ],
    ids=" ".join,
)
def test_damaged_edge_is_built_anew(host: RootHost, damage: list[str]) -> None:
    with _edge(host):
        before = host.instance.netns(0).stat().st_ino
        _inside(host, lambda: process.run(damage).stdout)
    with _edge(host) as (guest, listeners):
        assert host.instance.netns(0).stat().st_ino != before
        guest.connect(NAMED, 443, from_port=40001)
        listeners["tcp"].accept()[0].close()


def test_slot_in_use_is_neither_built_anew_nor_let_go(host: RootHost) -> None:
    request = host.prepare(slot=4)
    for one in _listeners(host.ask(lambda client: client.create_edge(4, RANGE, literal=False))).values():
        one.close()
    pidfd = host.start(request)
    for one in _listeners(host.ask(lambda client: client.create_edge(4, RANGE, literal=True))).values():  # destinations may change
        one.close()
    with pytest.raises(Conflict, match=f"slot 4 has no edge of this plan, and the VMM of {request.sandbox} lives in it"):
        host.ask(lambda client: client.create_edge(4, "100.64.0.0/10", literal=True))
    for op in (lambda client: client.destroy_slot(4), lambda client: client.create_slot(4)):
        with pytest.raises(Conflict, match=f"the VMM of {request.sandbox} lives in slot 4"):
            host.ask(op)
    host.ask(lambda client: client.kill_vmm(request.sandbox, 1))
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)
    host.ask(lambda client: client.create_slot(4))
    assert set(host.ask(lambda client: client.slot_counters(4))) == {*ruleset.COUNTERS, "host_output"}


def test_next_rootd_opens_the_listeners_again_or_builds_anew_where_others_have_them(host: RootHost) -> None:
    with _edge(host):
        before = host.instance.netns(0).stat().st_ino
    host.stop_rootd(signal.SIGKILL)
    host.start_rootd()
    with _edge(host) as (guest, listeners):
        assert host.instance.netns(0).stat().st_ino == before
        guest.connect(NAMED, 443, from_port=40001)
        listeners["tcp"].accept()[0].close()
        guest.leave()
        host.stop_rootd(signal.SIGKILL)
        host.start_rootd()
        for one in _listeners(host.ask(lambda client: client.create_edge(0, RANGE, literal=False))).values():
            one.close()
        assert host.instance.netns(0).stat().st_ino != before
        with pytest.raises(OSError, match="Invalid argument"):
            listeners["tcp"].accept()


def test_counters_of_a_slot_that_is_not_there_are_not_found(host: RootHost) -> None:
    with pytest.raises(NotFound, match="there is no slot 3 on this host"):
        host.ask(lambda client: client.slot_counters(3))


def test_edge_leads_nowhere(host: RootHost) -> None:
    with _edge(host):
        links = {link["ifname"]: link for link in json.loads(_inside(host, lambda: process.run(["ip", "-j", "addr"]).stdout))}
        assert set(links) == {"lo", "tap0"}
        assert "UP" not in links["lo"]["flags"]
        assert [(one["local"], one["prefixlen"]) for one in links["tap0"]["addr_info"]] == [(GATEWAY, 30)]
        routes = json.loads(_inside(host, lambda: process.run(["ip", "-j", "route"]).stdout))
        assert [(route["dst"], route["dev"]) for route in routes] == [("10.0.0.0/30", "tap0")]
        neighbours = json.loads(_inside(host, lambda: process.run(["ip", "-j", "neigh"]).stdout))
        assert [(one["dst"], one["lladdr"], one["state"]) for one in neighbours] == [(GUEST, "52:54:00:00:00:02", ["PERMANENT"])]


def _memberships(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_a_worker_puts_itself_into_its_slots_cgroup_without_rights_of_its_own_and_ends_with_the_slot(host: RootHost) -> None:
    def entrances(slot: int) -> tuple[int, ...]:
        return host.ask(lambda client: client.worker_cgroup(slot))

    host.ask(lambda client: client.create_slot(7))
    held = entrances(7)
    assert 1 <= len(held) <= 4
    ready, said = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.setresgid(61234, 61234, 61234)
        os.setresuid(61234, 61234, 61234)
        for descriptor in held:
            os.write(descriptor, b"0")
        os.write(said, b"!")
        signal.pause()
        os._exit(0)
    os.close(said)
    for descriptor in (*held, *entrances(7)):  # asked again: the same cgroup, with whoever is in it
        os.close(descriptor)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    ours = [line for line in _memberships(worker).splitlines() if line.endswith(f"/{host.instance.cgroup}/worker-7")]
    assert len(ours) == len(held)
    host.ask(lambda client: client.destroy_slot(7))
    assert os.waitpid(worker, 0)[1] == signal.SIGKILL
    assert not [path for path in host.tree().child("worker-7").directories() if path.exists()]
