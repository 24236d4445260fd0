"""Processes of real guests through the node: they outlive clients, the node and a pause; readers hold up nobody; what is gone is told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from space.model.errors import NoCapacity, NotFound
from space.model.ids import new_sandbox_id
from space.node import limits
from space.rpc import node_api as api
from space.rpc.session import Session
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance
from space.testing.processlab import Client, Heard, drain, until

MIB = 1 << 20


@pytest.fixture
def bare() -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node") as one:
        yield one


def run(bare: BareInstance, work: Callable[[Client], Awaitable[None]], *, memory_mib: int = 256) -> None:
    """Control's part, played by root, with one sandbox."""

    async def with_sandbox() -> None:
        one = Client(await Session.connect(bare.instance.node_socket), new_sandbox_id())
        try:
            asked = api.Create(one.sandbox, "acme", 1, "base", 1, memory_mib, 2048, {})
            async with await one.session.open("create", asked, finish=True) as stream:
                seen = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream]
            assert seen[-1].phase == "running", seen[-1].reason
            await work(one)
        finally:
            await one.session.aclose()

    uvloop.run(with_sandbox())


async def ran(one: Client, *argv: str) -> bytes:
    """An attached command's output; it must do well."""
    heard = await drain(await one.open(*argv))
    assert isinstance(heard.end, api.Exited)
    assert heard.end.code == 0, heard
    return bytes(heard.lanes[0])


async def restarted(bare: BareInstance, one: Client) -> None:
    """SIGKILL to the node, the next one, and control connected again."""
    bare.kill("node")
    await one.session.aclose()
    await asyncio.to_thread(bare.start, "node")
    one.session = await Session.connect(bare.instance.node_socket)


def resident_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 // MIB


def test_a_background_process_outlives_its_client_and_is_read_from_any_offset(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        process = await one.start("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; sleep 0.1; done; exit 3")
        assert (await one.state()).busy
        await one.session.aclose()
        one.session = await Session.connect(bare.instance.node_socket)
        heard = await one.output(process)
        assert bytes(heard.lanes[0]) == b"".join(b"out %d\n" % i for i in range(1, 10))
        assert bytes(heard.lanes[1]) == b"".join(b"err %d\n" % i for i in range(1, 10))
        assert isinstance(heard.end, api.Exited)
        assert heard.end.code == 3
        assert not (await one.state()).busy
        again = await one.output(process, 20, -6)
        assert again.lanes == [heard.lanes[0][20:], b"err 9\n"]

    run(bare, work)


def test_twenty_megabytes_are_exact_over_a_node_that_is_killed_again_and_again(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        script = "head -c 20971520 /dev/urandom | tee /tmp/copy; sleep 1; echo done >&2"
        process = await one.start("sh", "-c", script, spool_bytes=64 * MIB)
        for mark in (1, 6, 12):

            async def reached(least: int = mark * MIB) -> bool:
                return (await one.info(process)).stdout_bytes > least

            await until(reached)
            await restarted(bare, one)
        heard = await one.output(process)
        assert (len(heard.lanes[0]), heard.gaps, bytes(heard.lanes[1])) == (20 * MIB, [], b"done\n")
        assert isinstance(heard.end, api.Exited)
        assert (heard.end.code, heard.end.stdout_bytes) == (0, 20 * MIB)
        said = await ran(one, "sha256sum", "/tmp/copy")
        assert said.split()[0].decode() == hashlib.sha256(heard.lanes[0]).hexdigest()

    run(bare, work)


def test_a_node_that_is_killed_takes_what_is_tied_to_its_clients_with_it_and_nothing_else(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        tied = await one.open("sh", "-c", "sleep 1001 & setsid sleep 1002 & echo up; wait")
        heard = Heard()
        while not heard.lanes[0]:
            await heard.take(tied)
        loose = await one.start("sleep", "1003")
        await restarted(bare, one)

        async def left() -> bool:
            return (
                await ran(one, "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 100[0-9]'")
                == b"sleep 1003\n"
            )

        await until(left)
        assert (await one.info(loose)).state == "running"
        stream = await one.open("sh", "-c", "sleep 1004 & setsid sleep 1005 & echo up; wait")
        await anext(stream)
        await anext(stream)
        await stream.reset("unavailable", "the client left")
        await until(left)

    run(bare, work)


def test_a_pause_in_between_changes_nothing_for_processes_and_readers(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        process = await one.start("sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; cat", stdin=True)
        reader = await one.attach(process, input=True)
        heard = Heard()
        while len(heard.lanes[0]) < 100:
            await heard.take(reader)
        await one.session.call("pause", api.Target(one.sandbox))
        paused = await one.output(process, follow=False)
        assert isinstance(paused.end, api.Paused)
        await one.session.call("resume", api.Target(one.sandbox))
        assert await one.input(process, b"after the pause", api.Eof()) == 15
        whole = await one.output(process)
        assert bytes(whole.lanes[0]) == b"".join(b"%d\n" % i for i in range(3000)) + b"after the pause"

    run(bare, work)


def test_a_guest_that_was_stopped_while_it_wrote_is_adopted_and_has_lost_nothing(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        process = await one.start("seq", "1", "400000")
        for _ in range(3):  # once in five it found the port waiting for a socket that was gone
            before = now = await one.output(process, follow=False)
            while now.lanes[0] == before.lanes[0] and isinstance(now.end, api.Paused):
                now = await one.output(process, follow=False)
            await one.session.call("pause", api.Target(one.sandbox))
            await restarted(bare, one)
            await one.session.call("resume", api.Target(one.sandbox))
        whole = await one.output(process)
        assert bytes(whole.lanes[0]) == b"".join(b"%d\n" % i for i in range(1, 400001))

    run(bare, work)


def test_what_it_said_can_be_read_after_the_sandbox_is_gone(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        done = await one.start("sh", "-c", "echo said; exit 4")
        await one.output(done)
        running = await one.start("sh", "-c", "echo begun; sleep 1000")
        reader = await one.attach(running)
        heard = Heard()
        while not heard.lanes[0]:
            await heard.take(reader)
        await one.delete()
        while await heard.take(reader):
            pass
        assert heard.end == api.Lost("the sandbox was deleted")
        await restarted(bare, one)
        assert bytes((await one.output(done)).lanes[0]) == b"said\n"
        assert [(each.state, each.code) for each in await one.list()] == [("exited", 4), ("lost", None)]
        assert bytes((await one.output(running)).lanes[0]) == b"begun\n"
        with pytest.raises(NotFound):
            await one.start("true")

    run(bare, work)


def test_input_of_sixteen_megabytes_waits_for_a_slow_reader(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        process = await one.start("sh", "-c", "sleep 2; exec sha256sum", stdin=True)
        sent = b"0123456789abcdef" * MIB
        assert await one.input(process, sent, api.Eof()) == 16 * MIB
        said = bytes((await one.output(process)).lanes[0])
        assert said.split()[0].decode() == hashlib.sha256(sent).hexdigest()

    run(bare, work)


def test_a_kill_reaches_a_process_that_does_not_read_its_input(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        stream = await one.open("sleep", "1000", stdin=True)
        heard = Heard()
        await heard.take(stream)
        sending = asyncio.create_task(stream.send(bytes(8 * MIB)))
        (info,) = await one.list()

        async def stuck() -> bool:
            return (await one.info(info.process)).stdin_bytes >= 256 << 10

        await until(stuck)
        sending.cancel()
        await asyncio.wait({sending})

        async def killed() -> bool:
            return (await one.info(info.process)).signal == 9

        await until(killed)

    run(bare, work)


def test_a_hundred_readers_of_one_process_and_one_that_stops(bare: BareInstance) -> None:
    async def work(one: Client) -> None:
        process = await one.start("sh", "-c", "head -c 8388608 /dev/urandom | tee /tmp/copy", spool_bytes=32 * MIB)
        stopped = await one.attach(process)
        await anext(stopped)
        digests = set()

        async def read() -> None:
            heard = await one.output(process)
            assert isinstance(heard.end, api.Exited)
            digests.add(hashlib.sha256(heard.lanes[0]).hexdigest())

        await asyncio.gather(*(read() for _ in range(99)))
        said = await ran(one, "sha256sum", "/tmp/copy")
        assert digests == {said.split()[0].decode()}
        late = await drain(stopped)
        assert hashlib.sha256(late.lanes[0]).hexdigest() in digests

    run(bare, work)


@pytest.mark.timeout(600)
def test_five_hundred_processes_in_one_guest_and_a_limit_with_a_name(bare: BareInstance, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(one: Client) -> None:
        begun = asyncio.get_running_loop().time()
        processes = [await one.start("sleep", "100000") for _ in range(500)]
        took = asyncio.get_running_loop().time() - begun
        found = await one.list()
        assert [each.process for each in found] == processes
        assert len({each.pid for each in found}) == 500
        with capsys.disabled():
            print(f"\n500 starts in {took:.1f} s; the node has {resident_mib(bare.pid('node'))} MiB")
        assert await ran(one, "echo", "beside") == b"beside\n"
        await restarted(bare, one)
        assert sum(each.state == "running" for each in await one.list()) == 500
        assert await ran(one, "echo", "beside") == b"beside\n"
        for _ in range(limits.PROCESSES - 500):
            await one.start("sleep", "100000")
        with pytest.raises(NoCapacity, match=f"at most {limits.PROCESSES}"):
            await one.start("sleep", "100000")
        for process in processes:
            await one.forget(process)
        assert await ran(one, "echo", "after") == b"after\n"

    run(bare, work, memory_mib=1024)
