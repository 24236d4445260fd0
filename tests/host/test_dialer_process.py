"""The dialer as a process under its uid, behind the packet filter that rootd loads, on a machine that is a namespace of its own.

Real DNS servers and real listeners stand in another namespace. Each forbidden address is listened at, so that nothing seen there is proof.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from space.audit.files import export
from space.config.instance import Instance
from space.config.settings import Settings, save_effective
from space.core.plan import outbound, ruleset
from space.core.policy.document import compose, digest
from space.core.wire.dialing import Answer
from space.host import nftables, process
from space.model.errors import Unavailable
from space.rpc.audit_client import AuditControl
from space.rpc.dialer_client import DialerControl, DialSocket
from space.rpc.packets import pair
from space.testing.brokerprocess import AuditProcess
from space.testing.dialerprocess import DialerProcess
from space.testing.dnslab import Zone, bound, run, serve_on
from space.testing.machine import isolated_python
from space.testing.roothost import RootHost
from space.testing.twohosts import TwoHosts, two_hosts

BOX, NAME, PORT = "sb-" + "a" * 20, "a.example.com", 443
PUBLIC, LISTED, ALONE = "8.8.8.8", "10.20.0.1", "10.9.0.2"
# works in a chroot as well, where `unshare` refuses
APART = (isolated_python(), "-I", "-m", "space.testing.mountns")
RESOLVERS = ("10.53.0.53", "10.53.0.54")
PRIVATE, SHARED, METADATA, OWN = "10.21.0.1", "100.64.0.9", "169.254.169.254", "8.8.4.4"
FORBIDDEN = (PRIVATE, SHARED, METADATA, "192.168.7.7", "198.18.0.1", "168.63.129.16")
SETTINGS = Settings(port=0, egress_resolvers=RESOLVERS, egress_reachable=("10.20.0.0/16", "127.9.0.1/32"))

_UNGUARDED = """
import functools, runpy, sys
import space.core.policy.addresses as addresses
import space.dialer.vet as vet
import space.dialer.server as server
from space.dialer.connect import Haste, connect
vet.judge_all = lambda answers, ranges: addresses.Dialable(listed=True)
server.connect = functools.partial(connect, haste=Haste(attempt=0.7, total=1.0))
raise SystemExit(server.main())
"""


@dataclass
class Machine:
    """What stands for a machine, with rootd and its filter in it."""

    hosts: TwoHosts
    root: RootHost
    instance: Instance
    listeners: dict[tuple[str, int], socket.socket] = field(default_factory=dict)

    def listen(self, namespace: int, address: str, port: int = PORT) -> None:
        self.listeners[address, port] = self.hosts.listener(namespace, address, port)

    def came(self, address: str) -> int:
        """How many connections came there since it was last asked."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                self.listeners[address, PORT].accept()[0].close()
                count += 1
        return count


@pytest.fixture
def machine(unserved: RootHost) -> Iterator[Machine]:
    with two_hosts([PUBLIC, LISTED, *RESOLVERS, *FORBIDDEN, OWN, "8.8.4.5"]) as hosts:
        save_effective(unserved.instance, SETTINGS)
        made = Machine(hosts, unserved, unserved.instance)
        with hosts.within(hosts.here):
            unserved.start_rootd()
        for address in (PUBLIC, LISTED, *FORBIDDEN, OWN, "8.8.4.5"):
            made.listen(hosts.there, address)
        for address in ("127.0.0.1", "127.9.0.1", ALONE):
            made.listen(hosts.here, address)
        yield made
        for listener in made.listeners.values():
            listener.close()
        unserved.stop_rootd()


@dataclass
class Running:
    """A dialer, whom it asks, and one worker of a sandbox whose policy allows NAME and `*.any.example.com`."""

    machine: Machine
    dialer: DialerProcess
    control: DialerControl
    zones: tuple[Zone, Zone]
    worker: DialSocket
    audit: AuditControl
    number: int = 1

    async def dial(self, name: str = NAME, port: int = PORT, number: int = 1) -> Answer:
        """The answer; a socket that came with it is closed."""
        answer, sock = await self.worker.dial(name, port, number)
        if sock is not None:
            assert sock.getpeername()[:2] == (answer.address, port)
            sock.close()
        return answer

    def leads(self, name: str, *addresses: str, ttl: int = 0) -> None:
        for zone in self.zones:
            zone.address(name, *addresses, ttl=ttl)

    async def bind(self) -> None:
        data = compose({"sandbox": {"version": 1, "rule": [{"tcp": f"{NAME}:{PORT}"}, {"tcp": f"*.any.example.com:{PORT}"}]}})
        await self.control.put_policy(digest(data), data)
        theirs, ours = pair()
        await self.control.bind(theirs, BOX, 1, digest(data), 1)
        self.worker = DialSocket(ours)
        theirs, ours = pair()
        await self.audit.bind_source(theirs, "dialer", "", 0)
        await self.control.bind_audit(ours)


@asynccontextmanager
async def running(machine: Machine, directory: Path, program: tuple[str, ...] = ("-m", "space.dialer.server")) -> AsyncIterator[Running]:
    hosts, zones = machine.hosts, (Zone(), Zone())
    for zone, address in zip(zones, RESOLVERS, strict=True):
        with hosts.within(hosts.there):
            tcp, udp = socket.create_server((address, 53)), bound(address, 53)
        await serve_on(zone, tcp, udp)
    keeper, dialer = AuditProcess(directory), DialerProcess(machine.instance, program)
    keeper.start()
    try:
        with hosts.within(hosts.here):
            dialer.start()
        control, audit = DialerControl.connect(machine.instance.dialer_socket), AuditControl.connect(keeper.socket)
        one = Running(machine, dialer, control, zones, DialSocket(pair()[0]), audit)
        await one.bind()
        yield one
        one.control.close()
        audit.close()
    finally:
        status = dialer.stop()
        keeper.stop()
        print(dialer.log.read_text())
    assert status == 0
    assert "Traceback" not in dialer.log.read_text()


def tried(machine: Machine, directory: Path, work: Callable[[Running], Awaitable[None]], *program: str) -> None:
    async def main() -> None:
        async with running(machine, directory, *([program] if program else [])) as one:
            await work(one)

    run(main())


def records(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in export(directory / "auditd", "dialer")]


def test_an_allowed_name_is_dialled_at_a_checked_address_and_every_dial_is_in_the_file(machine: Machine, tmp_path: Path) -> None:
    async def work(one: Running) -> None:
        one.leads(NAME, PUBLIC)
        for _ in range(2):
            assert (await one.dial()).address == PUBLIC
        assert machine.came(PUBLIC) == 2
        one.leads("x.any.example.com", LISTED)
        assert (await one.dial("x.any.example.com")).address == LISTED
        one.leads("own.any.example.com", "127.9.0.1")  # of this machine, and listed by itself
        assert (await one.dial("own.any.example.com")).address == "127.9.0.1"
        assert (await one.dial("b.example.com")).reason == "name_not_allowed"
        assert (await one.dial(number=2)).reason == "policy_generation"
        assert not [name for _, name, _ in one.zones[0].asked if name == "b.example.com"]

    tried(machine, tmp_path, work)
    told = [(one["name"], one.get("address", ""), one.get("reason", "")) for one in records(tmp_path) if one["type"] == "dial"]
    assert told == [
        (NAME, PUBLIC, ""), (NAME, PUBLIC, ""), ("x.any.example.com", LISTED, ""), ("own.any.example.com", "127.9.0.1", ""),
        ("b.example.com", "", "name_not_allowed"), (NAME, "", "policy_generation"),
    ]  # fmt: skip


def test_private_mixed_aliased_and_changing_answers_are_refused_whole_and_nobody_is_called(machine: Machine, tmp_path: Path) -> None:
    async def work(one: Running) -> None:
        for address in (*FORBIDDEN, "127.0.0.1", ALONE):
            one.leads(NAME, address)
            answer = await one.dial()
            assert answer.denied, address
            assert answer.reason.startswith("address_")
            one.leads(NAME, PUBLIC, address)
            assert (await one.dial()).denied, f"mixed with {address}"
        one.leads(NAME, PUBLIC, "::1")
        assert (await one.dial()).reason == "address_own"
        for zone in one.zones:
            zone.alias("c.any.example.com", "inner.example.org", address=PRIVATE, ttl=0)
        assert (await one.dial("c.any.example.com")).reason == "address_private"
        one.leads("r.any.example.com", PUBLIC)
        assert (await one.dial("r.any.example.com")).address == PUBLIC
        one.leads("r.any.example.com", METADATA)  # rebinding
        assert (await one.dial("r.any.example.com")).reason == "address_metadata"
        assert machine.came(PUBLIC) == 1
        assert all(machine.came(address) == 0 for address in (*FORBIDDEN, "127.0.0.1", ALONE))

    tried(machine, tmp_path, work)


def test_an_address_is_own_from_the_moment_it_is_bound_until_it_goes(machine: Machine, tmp_path: Path) -> None:
    async def work(one: Running) -> None:
        one.leads(NAME, OWN)
        assert (await one.dial()).address == OWN
        machine.hosts.add(machine.hosts.here, OWN)
        assert (await one.dial()).reason == "address_own"
        machine.hosts.remove(machine.hosts.here, OWN)
        assert (await one.dial()).address == OWN

    tried(machine, tmp_path, work)


def test_another_resolver_answers_for_one_that_is_down_and_without_any_nothing_is_dialled(machine: Machine, tmp_path: Path) -> None:
    async def work(one: Running) -> None:
        one.leads(NAME, PUBLIC)
        one.zones[0].silent = True
        begun = time.monotonic()
        assert (await one.dial()).address == PUBLIC
        assert time.monotonic() - begun < 5
        begun = time.monotonic()
        assert (await one.dial()).address == PUBLIC  # the one that answered is asked first
        assert time.monotonic() - begun < 1
        one.zones[1].silent = True
        assert (await one.dial()).reason == "resolver_failed"

    tried(machine, tmp_path, work)


def test_after_kill_9_nothing_is_dialled_until_the_node_has_bound_again(machine: Machine, tmp_path: Path) -> None:
    async def work(one: Running) -> None:
        one.leads(NAME, PUBLIC)
        assert (await one.dial()).address == PUBLIC
        one.dialer.kill()
        with pytest.raises(Unavailable):
            await one.dial()
        with pytest.raises(Unavailable):
            await one.control.describe()
        with machine.hosts.within(machine.hosts.here):
            one.dialer.start()
        one.control = DialerControl.connect(machine.instance.dialer_socket)
        standing = await one.control.describe()
        assert (standing.bindings, standing.policies, standing.recorded) == ([], 0, False)
        theirs, ours = pair()
        await one.control.bind(theirs, BOX, 1, "", 1)
        unbound = DialSocket(ours)
        assert (await unbound.dial(NAME, PORT, 1))[0].reason in ("no_policy", "record_failed")
        unbound.close()
        await one.control.end(BOX, 1)
        await one.bind()
        assert (await one.dial()).address == PUBLIC

    tried(machine, tmp_path, work)


def test_a_dialer_without_its_address_table_reaches_nothing_that_the_filter_forbids(machine: Machine, tmp_path: Path) -> None:
    """The program of this test takes the first layer out; the second, on the uid, holds alone."""

    async def work(one: Running) -> None:
        forbidden = (*FORBIDDEN, "127.0.0.1", ALONE)
        for number, address in enumerate((PUBLIC, LISTED, "127.9.0.1", *forbidden)):
            one.leads(f"n{number}.any.example.com", address)
        for number in range(3):
            assert not (await one.dial(f"n{number}.any.example.com")).reason
        answers = await asyncio.gather(*(one.dial(f"n{number}.any.example.com") for number in range(3, 3 + len(forbidden))))
        assert {answer.reason for answer in answers} <= {"connect_timeout", "connect_filtered"}
        assert [machine.came(address) for address in (PUBLIC, LISTED, "127.9.0.1")] == [1, 1, 1]
        assert [machine.came(address) for address in forbidden] == [0] * len(forbidden)
        with machine.hosts.within(machine.hosts.here):
            counts = ruleset.counters(nftables.table(outbound.table_of(machine.instance.dialer_uid)))
        assert counts["not_public"] > 0
        assert counts["own"] > 0

    program = tmp_path / "unguarded.py"
    program.write_text(_UNGUARDED)
    for path in (program, *program.parents):
        with suppress(PermissionError):
            path.chmod(path.stat().st_mode | 0o055)
    tried(machine, tmp_path, work, str(program))


def test_rootd_loads_the_filter_before_it_is_ready_and_does_not_start_without(unserved: RootHost) -> None:
    uid = unserved.instance.dialer_uid
    unserved.start_rootd()
    wanted = outbound.canonical(nftables.table(outbound.table_of(uid)))
    assert {"table": {"family": "inet", "name": outbound.table_of(uid)}} in wanted
    unserved.stop_rootd()
    assert outbound.canonical(nftables.table(outbound.table_of(uid))) == wanted  # the dialer may outlive it
    for prefix in (
        [*APART, "sh", "-c", 'mount --bind /bin/false "$(readlink -f /usr/sbin/nft)" && exec "$@"', "sh"],
        [*APART, "sh", "-c", f'mount -t tmpfs none {unserved.instance.run} && exec "$@"', "sh"],
    ):
        with pytest.raises(AssertionError):
            unserved.start_rootd(*prefix)
        assert unserved.rootd is not None
        assert unserved.rootd.wait(10) == 1
        unserved.rootd = None


def test_rootd_follows_the_machines_resolvers_and_nobody_asks_it_to(unserved: RootHost, tmp_path: Path) -> None:
    save_effective(unserved.instance, Settings(port=0))
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 192.0.2.53\n")
    unserved.start_rootd(*APART, "sh", "-c", f'mount --bind {conf} "$(readlink -f /etc/resolv.conf)" && exec "$@"', "sh")
    table = outbound.table_of(unserved.instance.dialer_uid)
    assert "192.0.2.53" in json.dumps(nftables.table(table))
    conf.write_text("nameserver 192.0.2.54\nnameserver 2001:db8::53\n")
    deadline = time.monotonic() + 10
    while "192.0.2.54" not in (text := json.dumps(nftables.table(table))):
        assert time.monotonic() < deadline, unserved.log.read_text()
        time.sleep(0.02)
    assert "2001:db8::53" in text
    assert "192.0.2.53" not in text
    assert process.run(["nft", "list", "table", "inet", table]).stdout.count(b"accept") == 8 + 1  # two each, four of listed, the policy
