"""The gateway as processes: zygote and workers as they are in the product, at real slots, with real broker and keeper of records."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from space.core.wire import workertalk as talk
from space.host import namespaces, process
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.ids import new_sandbox_id
from space.rpc import gateway_api as api
from space.testing import leaks
from space.testing.gatewaylab import GatewayLab, Place, gateway_lab
from space.testing.roothost import RootHost

ALLOWED, OTHER, REFUSED = "allowed.example.com", "other.example.com", "refused.example.com"
Work = Callable[[GatewayLab], Coroutine[Any, Any, None]]


def run(host: RootHost, root: Path, work: Work, module: str = "space.gateway.server") -> None:
    async def main() -> None:
        async with asyncio.timeout(120), gateway_lab(host, root, module) as lab:
            await work(lab)

    asyncio.run(main())


def rules(port: int, *names: str) -> dict[str, Any]:
    return {"rule": [{"host": name, "port": port} for name in names or (ALLOWED, OTHER)]}


def test_a_request_goes_through_and_a_refused_name_does_not(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy=rules(port))
        assert lab.pid(place) == 0
        answer = await lab.get(place, ALLOWED, port, "/a?token=s3cret")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert await lab.ask(place, REFUSED) == (5, None)
        assert lab.pid(place) > 0
        assert lab.upstreams[ALLOWED].heads[0].startswith(b"GET /a?token=s3cret HTTP/1.1\r\nhost: ")

    run(host, root, work)


# -- what a worker is ------------------------------------------------------------------------------------------------


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def owner(pid: int, name: str) -> int:
    return Path(f"/proc/{pid}/{name}").stat().st_uid


def network(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def status(pid: int) -> dict[str, str]:
    lines = proc(pid, "status").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_worker_is_confined_in_every_way_that_proc_tells(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(slot=3, policy=rules(port))
        reader, writer = await lab.tls(place, ALLOWED, port)
        pid, uid = lab.pid(place), lab.instance.worker_uid(3)
        assert lab.zygote is not None
        zygote = lab.zygote.pid
        told = status(pid)
        assert told["Uid"].split() == told["Gid"].split() == [str(uid)] * 4
        assert told["Groups"] == ""
        assert [told[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Amb")] == ["0" * 16] * 4
        assert (told["NoNewPrivs"], told["Seccomp"], told["Seccomp_filters"], told["Threads"]) == ("1", "2", "2", "1")
        assert owner(pid, "mem") == 0, "not dumpable: even its own uid does not read it"
        assert network(pid) == network(zygote) != network(os.getpid())
        interfaces = proc(pid, "net/dev").splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
        assert f"/{lab.instance.cgroup}/worker-3" in proc(pid, "cgroup")
        kinds = Counter(re.sub(r":\[\d+\]", "", one) for one in leaks.descriptors(pid))
        assert kinds.pop("socket") == 3 + 4 + 2 + 1, "listeners, other processes, a pair within the loop, the guest's connection"
        memory = "/memfd:space-names (deleted)"
        assert kinds == {"/dev/null": 3, memory: 1, "pipe": 4, "anon_inode:[eventpoll]": 1, "anon_inode:[eventfd]": 1}
        limits = proc(pid, "limits")
        assert re.search(r"Max open files +2048 ", limits)
        assert re.search(r"Max core file size +0 ", limits)
        told = status(zygote)
        assert told["Uid"].split() == told["Gid"].split() == [str(lab.instance.gateway_uid)] * 4
        assert [told[f"Cap{kind}"] for kind in ("Prm", "Eff", "Bnd")] == ["00000000000000c0"] * 3
        assert (told["CapAmb"], told["NoNewPrivs"], told["Seccomp"]) == ("0" * 16, "1", "2")
        writer.close()
        assert reader

    run(host, root, work)


async def obeyed(lab: GatewayLab, place: Place, expression: str) -> str:
    """What an expression gives in a worker that was taken."""
    before = len(lab.heard)
    await lab.gateway.say(place.sandbox, place.generation, b"!" + expression.encode())
    async with asyncio.timeout(5):
        while True:
            for one in lab.heard[before:]:
                if isinstance(one, api.Heard) and one.sandbox == place.sandbox and one.message[:1] != b"\x89":
                    return one.message.decode()
            await asyncio.sleep(0.005)


NOT_PERMITTED = "PermissionError: [Errno 1] Operation not permitted"
REFUSED_TO_CODE = {
    "a socket": "socket.socket()",
    "a socket of UNIX": "socket.socket(socket.AF_UNIX)",
    "a pair": "socket.socketpair()",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a file": "open('/etc/hostname')",
    "its own memory as a file": "os.open('/proc/self/mem', os.O_RDONLY)",
    "a directory": "os.listdir('/')",
    "whether a file is there": "os.stat('/etc/hostname')",
    "a memfd": "os.memfd_create('x')",
    "a fork": "os.fork()",
    "a thread": "__import__('_thread').start_new_thread(print, ())",
    "root": "os.setuid(0)",
    "another worker's uid": "os.setresuid(os.getuid() + 1, os.getuid() + 1, os.getuid() + 1)",
    "a signal": "os.kill(os.getppid(), 9)",
    "a connection from a socket that it has": "socket.socket(fileno=os.dup(outside._zygote._sock.fileno())).connect('/x')",
    "a pidfd": "os.pidfd_open(os.getppid())",
    "io_uring": "call(425, 8, 0)",
    "memory that can be executed": "call(9, 0, 4096, 7, 0x22, -1, 0)",
}


def test_code_in_a_worker_opens_no_socket_and_no_file_and_becomes_nobody(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy=rules(port))
        await lab.ask(place, ALLOWED)
        got = {what: await obeyed(lab, place, expression) for what, expression in REFUSED_TO_CODE.items()}
        wrong = {what: said for what, said in got.items() if "Errno 1]" not in said and "can't start new thread" not in said}
        assert wrong == {}
        assert await obeyed(lab, place, "1 + 1") == "2", "the oracle itself works"
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")

    run(host, root, work, "space.testing.takenworker")


FATAL = {"ptrace": 101, "execve": 59, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "unshare": 272, "setns": 308}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of that machine")
@pytest.mark.parametrize("number", FATAL.values(), ids=FATAL)
def test_code_in_a_worker_that_reaches_for_another_process_ends_it_alone(host: RootHost, root: Path, number: int) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        one, other = await lab.sandbox(0, rules(port)), await lab.sandbox(1, rules(port))
        await lab.ask(one, ALLOWED)
        await lab.ask(other, ALLOWED)
        victim = lab.pid(other)
        assert "Errno 1]" in await obeyed(lab, one, f"open('/proc/{victim}/mem', 'rb')")
        assert "Errno 1]" in await obeyed(lab, one, f"os.kill({victim}, 9)")
        await lab.gateway.say(one.sandbox, one.generation, f"!call({number}, {victim}, 0, 0, 0)".encode())
        await lab.until(lambda: not lab.pid(one))
        ended = [event for event in lab.heard if isinstance(event, api.WorkerEnded)]
        assert [(event.sandbox, event.crashed, event.detail) for event in ended] == [(one.sandbox, True, "ended by SIGSYS")]
        assert lab.pid(other) == victim
        for place in (one, other):
            assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")

    run(host, root, work, "space.testing.takenworker")


# -- what happens to it ----------------------------------------------------------------------------------------------


def test_crash_of_a_worker_cuts_one_sandbox_and_heals(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        one, other = await lab.sandbox(0, rules(port)), await lab.sandbox(1, rules(port))
        address = await lab.ask(one, ALLOWED)
        reader, writer = await lab.tls(one, ALLOWED, port)
        theirs, toward = await lab.tls(other, ALLOWED, port)
        os.kill(lab.pid(one), signal.SIGKILL)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()
        toward.write(f"GET / HTTP/1.1\r\nHost: {ALLOWED}:{port}\r\n\r\n".encode())
        assert (await asyncio.wait_for(theirs.readline(), 5)).startswith(b"HTTP/1.1 200")
        toward.close()
        assert await lab.ask(one, ALLOWED) == address, "an address that a guest holds means the name that it meant"
        assert (await lab.get(one, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
        ended = [event for event in lab.heard if isinstance(event, api.WorkerEnded)]
        assert [(event.sandbox, event.crashed, event.detail) for event in ended] == [(one.sandbox, True, "ended by SIGKILL")]

    run(host, root, work)


def test_workers_die_with_the_zygote_and_nothing_gets_out_until_the_next_one_has_everything_again(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy=rules(port))
        address = await lab.ask(place, ALLOWED)
        reader, writer = await lab.tls(place, ALLOWED, port)
        worker = os.pidfd_open(lab.pid(place))
        lab.end_zygote(signal.SIGKILL)
        assert namespaces.wait_ended(worker, 5.0)
        os.close(worker)
        seen = lab.upstreams[ALLOWED].connections
        with contextlib.suppress(ConnectionError):
            writer.write(f"GET / HTTP/1.1\r\nHost: {ALLOWED}:{port}\r\n\r\n".encode())
            assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()
        with pytest.raises(TimeoutError):
            await lab.ask(place, ALLOWED, seconds=1.0)
        assert lab.upstreams[ALLOWED].connections == seen
        lab.heard.clear()
        lab.start_zygote()
        waiting = asyncio.ensure_future(lab.ask(place, ALLOWED))
        await lab.bind(place)
        await lab.policy(place, rules(port))
        assert await waiting in (address, (5, None)), "what waited is served, or was refused before there was a policy"
        assert await lab.ask(place, ALLOWED) == address
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")

    run(host, root, work)


async def fails(lab: GatewayLab, place: Place, name: str, port: int) -> None:
    """A request does not succeed, and the upstream sees none of it."""
    before = len(lab.upstreams[name].heads)
    with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError):
        assert b" 200 " not in (await lab.get(place, name, port))[:20]
    assert len(lab.upstreams[name].heads) == before


def test_without_broker_keeper_or_dialer_nothing_gets_out_and_a_new_socket_heals_the_same_worker(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED, OTHER)
        place = await lab.sandbox(policy=rules(port))
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
        pid = lab.pid(place)

        lab.broker.kill()
        await fails(lab, place, OTHER, port)
        lab.broker.start()
        await lab.meet_broker()
        await lab.gateway.reconnect(place.sandbox, place.generation, "signer", await lab.channel(place, "signer"))
        assert (await lab.get(place, OTHER, port)).startswith(b"HTTP/1.1 200 OK")

        lab.audit.kill()
        await fails(lab, place, ALLOWED, port)
        lab.audit.start()
        await lab.meet_broker()
        await lab.gateway.reconnect(place.sandbox, place.generation, "audit", await lab.channel(place, "audit"))
        await lab.gateway.reconnect(place.sandbox, place.generation, "signer", await lab.channel(place, "signer"))
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")

        lab.dialer.bound[place.sandbox].end.close()
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 502 ")
        await lab.gateway.reconnect(place.sandbox, place.generation, "dialer", await lab.channel(place, "dialer"))
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
        assert lab.pid(place) == pid

    run(host, root, work)


def test_without_a_policy_or_with_one_that_cannot_be_read_nothing_is_allowed_until_the_next_one(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox()
        assert await lab.ask(place, ALLOWED) == (5, None), "without a policy"
        pid = lab.pid(place)
        await lab.policy(place, rules(port))
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
        place.policies += 1
        with pytest.raises(InvalidArgument, match="nothing is allowed"):
            await lab.document(place, b'{"version":1}')
        assert await lab.ask(place, ALLOWED) == (5, None), "one that cannot be read"
        assert (await lab.gateway.describe())[0].refused
        await lab.policy(place, rules(port))
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
        place.policies += 1
        memfd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.write(memfd, b"{}")
        with pytest.raises(InvalidArgument, match="sealed"):
            await lab.gateway.set_policy(place.sandbox, place.generation, place.policies, memfd)
        os.close(memfd)
        assert await lab.ask(place, ALLOWED) == (5, None), "one that could still be changed"
        await lab.policy(place, rules(port))
        assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
        assert lab.pid(place) == pid
        with pytest.raises(Conflict):
            await lab.gateway.set_policy(place.sandbox, place.generation, 1, place.memory)

    run(host, root, work)


def test_policy_that_allows_less_closes_what_stands_when_it_is_said_to_hold(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED, OTHER)
        place = await lab.sandbox(policy=rules(port))
        kept, keeping = await lab.tls(place, OTHER, port)
        cut, cutting = await lab.tls(place, ALLOWED, port)
        began = time.monotonic()
        await lab.policy(place, rules(port, OTHER))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert await asyncio.wait_for(cut.read(1), 1.0) == b""
        assert time.monotonic() - began < 1.0
        keeping.write(f"GET / HTTP/1.1\r\nHost: {OTHER}:{port}\r\n\r\n".encode())
        assert (await asyncio.wait_for(kept.readline(), 5)).startswith(b"HTTP/1.1 200")
        keeping.close()
        cutting.close()

    run(host, root, work)


def test_worker_that_does_not_take_its_policy_is_killed_within_a_second_and_the_next_one_has_it(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy=rules(port))
        assert (await lab.ask(place, ALLOWED))[1] is not None
        await lab.gateway.say(place.sandbox, place.generation, b"!time.sleep(60)")
        began = time.monotonic()
        await lab.policy(place, rules(port, OTHER))
        assert 0.5 < time.monotonic() - began < 2.5
        assert await lab.ask(place, ALLOWED) == (5, None)
        assert any(isinstance(one, api.WorkerEnded) and "policy" in one.detail for one in lab.heard)

    run(host, root, work, "space.testing.takenworker")


def test_worker_without_work_ends_and_what_comes_at_that_moment_is_served_by_the_next(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy=rules(port))
        for number in range(12):
            assert (await lab.get(place, ALLOWED, port)).startswith(b"HTTP/1.1 200 OK")
            await asyncio.sleep(0.85 + number * 0.05)  # before, at and after the end of a worker
        ended = [one for one in lab.heard if isinstance(one, api.WorkerEnded)]
        assert len(ended) >= 3
        assert {(one.crashed, one.detail) for one in ended} == {(False, "idle")}
        counted = [talk.from_worker(one.message) for one in lab.heard if isinstance(one, api.Heard)]
        assert all(isinstance(one, talk.Counted) for one in counted)
        assert sum(1 for one in lab.upstreams[ALLOWED].heads) == 12
        await lab.until(lambda: not lab.pid(place))
        await lab.gateway.end(place.sandbox, place.generation)

    run(host, root, work, "space.testing.takenworker")


def test_end_returns_when_the_worker_is_dead_and_the_zygote_holds_nothing_of_it(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        assert lab.zygote is not None
        await lab.gateway.describe()  # it has taken our connection
        before = leaks.descriptors(lab.zygote.pid)
        place = await lab.sandbox(policy=rules(port))
        await lab.get(place, ALLOWED, port)
        worker = os.pidfd_open(lab.pid(place))
        await lab.gateway.end(place.sandbox, place.generation)
        assert namespaces.has_ended(worker)
        os.close(worker)
        assert leaks.descriptors(lab.zygote.pid) == before
        assert await lab.gateway.describe() == []
        await lab.gateway.end(place.sandbox, place.generation)
        with pytest.raises(NotFound):
            await lab.gateway.say(place.sandbox, place.generation, b"x")
        with pytest.raises(TimeoutError):
            await lab.ask(place, ALLOWED, seconds=0.7)

    run(host, root, work)


def test_nobody_but_the_node_and_root_is_heard(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        lab.instance.gateway_socket.chmod(0o666)

        def connect(uid: int) -> bytes:
            def child() -> bytes:
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                    sock.settimeout(5)
                    sock.connect(str(lab.instance.gateway_socket))
                    with contextlib.suppress(OSError):
                        sock.send(api.encode(api.Describe(1)))
                    with contextlib.suppress(ConnectionError):
                        return sock.recv(4096)
                    return b""

            return process.forked(child)

        assert b"Standing" in connect(lab.instance.node_uid)
        for stranger in (lab.instance.control_uid, lab.instance.worker_uid(0), lab.instance.vm_uid(0), 65534):
            assert connect(stranger) == b""

    run(host, root, work)


def private_bytes(pid: int) -> int:
    found = [line.split()[1] for line in proc(pid, "smaps_rollup").splitlines() if line.startswith(("Private_Dirty", "Private_Hugetlb"))]
    return sum(map(int, found)) * 1024


def test_worker_that_has_served_holds_less_than_8_mib_and_a_thousand_bindings_cost_little(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED, OTHER)
        place, other = await lab.sandbox(0, rules(port)), await lab.sandbox(1001, rules(port))
        for _ in range(20):
            await lab.get(place, ALLOWED, port)
            await lab.get(place, OTHER, port)
        pid = lab.pid(place)
        holds = private_bytes(pid)  # at once: connections that have ended hold nothing
        assert lab.zygote is not None
        before = leaks.resident_bytes(lab.zygote.pid)
        for slot in range(1, 1001):
            await lab.bind(replace(place, sandbox=new_sandbox_id(), slot=slot), edge_of=place)
        grown = leaks.resident_bytes(lab.zygote.pid) - before
        assert len(await lab.gateway.describe()) == 1002
        began = time.perf_counter()
        await lab.ask(other, ALLOWED)
        first = time.perf_counter() - began
        print(
            f"a worker after 40 requests: {holds / 2**20:.1f} MiB private; 1,000 bindings: "
            f"{grown / 2**20:.1f} MiB of the zygote; the first answer of a worker forked among them: {first * 1000:.0f} ms"
        )
        assert holds < 8 << 20
        assert grown < 16 << 20
        assert first < 2

    run(host, root, work)


def test_request_that_a_person_has_to_allow_waits_for_the_answer_and_a_question_that_nobody_waits_for_is_taken_back(
    host: RootHost, root: Path
) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy={"rule": [{"host": ALLOWED, "port": port, "ask": True, "name": "careful"}]})

        def asks() -> list[talk.Up]:
            found = [talk.from_worker(one.message) for one in lab.heard if isinstance(one, api.Heard)]
            return [one for one in found if not isinstance(one, talk.Counted)]

        for number, allow in enumerate((True, False)):
            waiting = asyncio.ensure_future(lab.get(place, ALLOWED, port, "/a?token=s3cret"))
            await lab.until(lambda number=number: len(asks()) > number)  # type: ignore[misc]
            asked = asks()[number]
            assert isinstance(asked, talk.Ask)
            assert (asked.host, asked.port, asked.scheme, asked.method) == (ALLOWED, port, "https", "GET")
            assert (asked.path, asked.rule) == ("/a?token", "careful")
            await lab.gateway.say(place.sandbox, 1, talk.encode(talk.Answer(asked.ask, allow=not allow)) + b"?")  # no message: dropped
            await lab.gateway.say(place.sandbox, 1, talk.encode(talk.Answer(asked.ask % 1000 + 1, allow=not allow)))  # of nobody
            await lab.gateway.say(place.sandbox, 1, talk.encode(talk.Answer(asked.ask, allow=allow)))
            assert (await waiting).startswith(b"HTTP/1.1 200 OK" if allow else b"HTTP/1.1 403 ")
        _, writer = await lab.tls(place, ALLOWED, port)
        writer.write(f"GET / HTTP/1.1\r\nHost: {ALLOWED}:{port}\r\n\r\n".encode())
        await lab.until(lambda: len(asks()) == 3)
        writer.transport.abort()
        await lab.until(lambda: len(asks()) == 4)
        asked = asks()[2]
        assert isinstance(asked, talk.Ask)
        assert asks()[3] == talk.AskOver(asked.ask)
        assert len(lab.upstreams[ALLOWED].heads) == 1

    run(host, root, work)


def test_budget_that_a_worker_has_used_up_is_used_up_for_the_next(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy={"rule": [{"host": ALLOWED, "port": port, "received_limit": 150, "name": "small"}]})
        said = b"GET / HTTP/1.1 got 0"  # with its head some 85 bytes: one answer is within the budget, and a second one is not
        assert (await lab.get(place, ALLOWED, port)).endswith(said)
        os.kill(lab.pid(place), signal.SIGKILL)
        assert not (await lab.get(place, ALLOWED, port)).endswith(said)

    run(host, root, work)
