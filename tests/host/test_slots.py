"""Slots: what is in the namespace, what gets through it, and what happens to one that is not as it should be."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from space.core.plan import ruleset
from space.host import namespaces, process
from space.model.errors import Conflict, Internal
from space.model.rootd import SandboxOp
from space.rootd import slots
from space.testing.machine import isolated_python
from space.testing.roothost import RootHost

_GUEST, _HOST, _OTHER = bytes.fromhex("525400000002"), bytes.fromhex("525400000001"), bytes.fromhex("525400000099")
_NO_OFFLOAD = bytes(10)  # the virtio-net header before each frame


def _inside(host: RootHost, slot: int, work: Callable[[], bytes]) -> bytes:
    def entered() -> bytes:
        namespaces.enter_network(host.instance.netns(slot))
        return work()

    return process.forked(entered)


def _counters(host: RootHost, slot: int) -> dict[str, int]:
    listing = _inside(host, slot, lambda: process.run(["nft", "-j", "list", "ruleset"]).stdout)
    return ruleset.counters(json.loads(listing))


def test_slot_holds_a_tap_and_loopback_and_nothing_else(host: RootHost) -> None:
    host.ask(lambda client: client.create_slot(5))
    seen = _inside(host, 5, lambda: process.run(["ip", "-j", "addr"]).stdout)
    links = {link["ifname"]: link for link in json.loads(seen)}
    assert set(links) == {"lo", "tap0"}
    assert links["tap0"]["address"] == "52:54:00:00:00:01"
    assert "UP" in links["tap0"]["flags"]
    assert "UP" not in links["lo"]["flags"]
    assert [link["addr_info"] for link in links.values()] == [[], []]
    assert _inside(host, 5, lambda: process.run(["ip", "-4", "route", "show", "table", "all"]).stdout.strip()) == b""
    assert _inside(host, 5, lambda: process.run(["ip", "-6", "route", "show", "table", "all"]).stdout.strip()) == b""


@pytest.mark.parametrize(
    ("source", "kind", "counter"),
    [
        (_GUEST, 0x0806, "guest_arp"),
        (_GUEST, 0x0800, "guest_ipv4"),
        (_GUEST, 0x86DD, "guest_ipv6"),
        (_GUEST, 0x8035, "guest_other"),
        (_GUEST, 0x8100, "guest_other"),
        (_OTHER, 0x0800, "foreign_mac"),
        (_OTHER, 0x0806, "foreign_mac"),
    ],
)
def test_frame_of_the_guest_is_counted_by_kind_and_dropped(host: RootHost, source: bytes, kind: int, counter: str) -> None:
    host.ask(lambda client: client.create_slot(0))

    def send() -> bytes:
        tap = namespaces.open_tap("tap0")
        os.write(tap, _NO_OFFLOAD + _HOST + source + struct.pack("!H", kind) + bytes(46))
        os.close(tap)
        return b""

    _inside(host, 0, send)
    after = _counters(host, 0)
    assert {name: count for name, count in after.items() if count and name != "host_output"} == {counter: 1}


def test_namespace_itself_sends_nothing(host: RootHost) -> None:
    host.ask(lambda client: client.create_slot(0))

    def try_to_send() -> bytes:
        tap = namespaces.open_tap("tap0")
        process.run(["ip", "addr", "add", "10.0.0.1/30", "dev", "tap0"])
        process.run(["ip", "neigh", "add", "10.0.0.2", "lladdr", "52:54:00:00:00:02", "dev", "tap0"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel, suppress(PermissionError):  # how a drop in the output hook shows
            channel.sendto(b"out", ("10.0.0.2", 9))
        try:
            return os.read(tap, 2048)
        except BlockingIOError:
            return b""
        finally:
            os.close(tap)

    assert _inside(host, 0, try_to_send) == b""
    assert _counters(host, 0)["host_output"] == 1


def test_creating_a_slot_again_keeps_it(host: RootHost) -> None:
    host.ask(lambda client: client.create_slot(1))
    before = host.instance.netns(1).stat().st_ino
    host.ask(lambda client: client.create_slot(1))
    assert host.instance.netns(1).stat().st_ino == before
    assert host.ask(lambda client: client.describe()).slots == (1,)


@pytest.mark.parametrize(
    "damage",
    [
        ["nft", "flush", "ruleset"],
        ["nft", "add", "rule", "inet", "space", "output", "accept"],
        ["nft", "add", "chain", "netdev", "space", "from_guest", "{ policy accept; }"],
        ["ip", "link", "del", "tap0"],
        ["ip", "link", "set", "tap0", "down"],
        ["ip", "tuntap", "add", "more0", "mode", "tap"],
    ],
    ids=" ".join,
)
def test_damaged_slot_is_built_anew(host: RootHost, damage: list[str]) -> None:
    host.ask(lambda client: client.create_slot(1))
    before = host.instance.netns(1).stat().st_ino
    _inside(host, 1, lambda: process.run(damage).stdout)
    host.ask(lambda client: client.create_slot(1))
    assert host.instance.netns(1).stat().st_ino != before
    assert _inside(host, 1, lambda: b" ".join(sorted(name.encode() for name in namespaces.interfaces()))) == b"lo tap0"


def test_file_that_a_crash_left_is_no_slot(host: RootHost) -> None:
    host.instance.netns(2).touch()
    assert host.ask(lambda client: client.describe()).slots == ()
    host.ask(lambda client: client.create_slot(2))
    assert host.ask(lambda client: client.describe()).slots == (2,)


def test_destroyed_slot_is_gone_and_destroying_it_again_is_fine(host: RootHost) -> None:
    host.ask(lambda client: client.create_slot(2))
    for _ in range(2):
        host.ask(lambda client: client.destroy_slot(2))
        assert not host.instance.netns(2).exists()


def test_slot_stays_while_its_vmm_lives(host: RootHost) -> None:
    request = host.prepare(slot=4)
    pidfd = host.start(request)
    with pytest.raises(Conflict, match=f"the VMM of {request.sandbox} lives in slot 4"):
        host.ask(lambda client: client.destroy_slot(4))
    assert namespaces.is_kept(host.instance.netns(4))
    op = SandboxOp(request.sandbox, 1)
    host.ask(lambda client: client.kill_vmm(op.sandbox, op.generation))
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)
    host.ask(lambda client: client.destroy_slot(4))
    assert not Path(host.instance.netns(4)).exists()


def test_slot_that_cannot_be_built_leaves_nothing(unserved: RootHost) -> None:
    unserved.start_rootd(
        isolated_python(), "-I", "-m", "space.testing.mountns", "sh", "-c", 'mount --bind /dev/null /dev/net/tun && exec "$@"', "sh"
    )
    with pytest.raises(Internal, match="rootd failed; its log says why"):
        unserved.ask(lambda client: client.create_slot(0))
    assert "Inappropriate ioctl for device" in unserved.log.read_text()
    assert not unserved.instance.netns(0).exists()
    assert unserved.ask(lambda client: client.describe()).slots == ()
    unserved.log.write_text("")


def test_ruleset_that_reads_back_otherwise_is_no_slot(unserved: RootHost, monkeypatch: pytest.MonkeyPatch) -> None:
    weaker = ruleset.ruleset().replace("policy drop", "policy accept", 1)
    monkeypatch.setattr(ruleset, "ruleset", lambda: weaker)
    (unserved.instance.run / "netns").mkdir()
    with pytest.raises(process.ProcessFailed, match="reads back otherwise than it was written"):
        slots.create(unserved.instance, 0)
    assert not unserved.instance.netns(0).exists()
