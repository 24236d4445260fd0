"""Processes and a node that is killed: what they wrote meanwhile is read without gap or repetition; a disk that is full loses nothing."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import msgspec
import pytest

from space.model.errors import Conflict, NoCapacity, NotFound, SpaceError
from space.node import limits
from space.rpc import node_api as api
from space.testing.processlab import Heard, drain, expected, lab, until


async def test_a_node_that_is_killed_in_the_middle_reads_on_without_gap_or_repetition(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("count", "3000")
        late = await one.start("cat", stdin=True)
        given = os.urandom(3 << 20)
        for at in range(0, len(given), 1 << 19):
            await one.input(late, given[at : at + (1 << 19)])
            await one.crash()
        await one.input(late, api.Eof())
        heard = await one.output(process)
        assert ([bytes(lane) for lane in heard.lanes], heard.gaps) == (expected(3000), [])
        assert isinstance(heard.end, api.Exited)
        heard = await one.output(late)
        assert bytes(heard.lanes[0]) == given
        info = await one.info(late)
        assert (info.state, info.stdin_bytes, info.stdin) == ("exited", len(given), "closed")
        await until(lambda: not one.guest.processes.kept)


async def test_kills_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        rest = random.Random(3)
        process = await one.start("yes-bytes", str(8 << 20))
        for _ in range(8):
            for _ in range(rest.randrange(200)):
                await asyncio.sleep(0)
            await one.crash()
        heard = await one.output(process)
        assert bytes(heard.lanes[0]) == b"y\n" * (4 << 20)
        assert isinstance(heard.end, api.Exited)
        assert heard.end.code == 0


async def test_a_torn_tail_is_asked_for_again(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        await one.input(process, b"a" * 5000)
        await until(lambda: one.find(process).spool.lanes[0] == 5000)
        one.node.crash()
        (path,) = (tmp_path / "spool" / one.sandbox).iterdir()
        os.truncate(path, path.stat().st_size - 17)
        await one.session.aclose()
        await one.node.start()
        one.session = await one.session.connect(one.node.path)
        await one.input(process, b"b", api.Eof())
        assert bytes((await one.output(process)).lanes[0]) == b"a" * 5000 + b"b"


async def test_a_restart_kills_what_is_tied_to_a_client_and_what_nobody_knows(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        tied = await one.open("sleep", "60")
        loud = await one.open("yes-bytes", str(64 << 20))
        loose = await one.open("sleep", "61", kill_on_disconnect=False)
        for stream in (tied, loud, loose):
            await anext(stream)
        written = one.node.node.around.archive.find(one.sandbox)
        await until(lambda: any(each.stdout_bytes > 1 << 20 for each in written.infos()))
        await one.crash()
        await until(lambda: len(one.guest.running) == 1)
        assert list(one.guest.running.values()) == [[b"sleep", b"61"]]
        await until(lambda: len(one.guest.processes.kept) == 1)
        states = {each.argv[0]: (each.state, each.signal) for each in await one.list()}
        assert states == {"yes-bytes": ("exited", 9), "sleep": ("running", None)}
        assert (await one.state()).busy


async def test_what_the_machine_has_no_more_is_lost(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60")
        one.node.crash()
        one.guest.processes.kill()
        await one.session.aclose()
        await one.node.start()
        one.session = await one.session.connect(one.node.path)
        end = (await one.output(process)).end
        assert isinstance(end, api.Lost)
        assert "does not have it" in end.reason


async def test_a_paused_sandbox_is_adopted_with_its_processes(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        await one.session.call("pause", api.Target(one.sandbox))
        await one.crash()
        assert (await one.state()).phase == "paused"
        assert (await one.info(process)).state == "running"
        await one.session.call("resume", api.Target(one.sandbox))
        await one.input(process, b"there", api.Eof())
        assert bytes((await one.output(process)).lanes[0]) == b"there"


async def test_a_pause_in_the_middle_of_output_and_a_node_that_is_killed_then_lose_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("yes-bytes", str(8 << 20))
        await until(lambda: one.find(process).spool.lanes[0] > 1 << 20)
        await one.session.call("pause", api.Target(one.sandbox))
        for _ in range(3):
            await one.crash()
            assert (await one.state()).phase == "paused"
        await one.session.call("resume", api.Target(one.sandbox))
        assert bytes((await one.output(process)).lanes[0]) == b"y\n" * (4 << 20)


async def test_what_has_ended_is_there_after_a_restart_for_the_rest_of_its_time(tmp_path: Path) -> None:
    async with lab(tmp_path, retention=3.0) as one:
        process = await one.start("echo", "kept")
        await one.output(process)
        running = await one.start("sleep", "60")
        await one.delete()
        begin = asyncio.get_running_loop().time()
        await one.crash()
        assert bytes((await one.output(process)).lanes[0]) == b"kept\n"
        assert [each.state for each in await one.list()] == ["exited", "lost"]
        assert (await one.output(running)).end == api.Lost("the sandbox was deleted")
        await until(lambda: not (tmp_path / "spool" / one.sandbox).exists())
        assert asyncio.get_running_loop().time() - begin < 3.5, "the time began anew"
        with pytest.raises(NotFound):
            await one.list()


async def test_a_sandbox_that_ended_while_the_node_was_down_keeps_its_output(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        await one.input(process, b"before")
        await until(lambda: one.find(process).spool.lanes[0] == 6)
        one.node.crash()
        vmm = one.node.host.vmm(one.sandbox)
        assert vmm is not None
        vmm.die("power")
        await one.session.aclose()
        await one.node.start()
        one.session = await one.session.connect(one.node.path)
        await until(lambda: not one.running)
        heard = await one.output(process)
        assert (bytes(heard.lanes[0]), type(heard.end)) == (b"before", api.Lost)


class FullDisk:
    """pwrite that takes nothing while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        self.refused = 0
        self._real = os.pwrite
        monkeypatch.setattr(os, "pwrite", self)
        monkeypatch.setattr(limits, "DISK_PAUSE_FIRST", 0.005)
        monkeypatch.setattr(limits, "DISK_PAUSE_LAST", 0.02)

    def __call__(self, descriptor: int, data: bytes, at: int) -> int:
        if self.full:
            self.refused += 1
            raise OSError(28, "No space left on device")
        return self._real(descriptor, data, at)


async def test_a_full_disk_holds_a_process_back_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("yes-bytes", str(8 << 20))
        disk = FullDisk(monkeypatch)
        await until(lambda: disk.refused > 5)
        info = await one.info(process)
        assert "No space left" in (info.reason or "")
        assert one.guest.running, "it waits"
        with pytest.raises(NoCapacity, match="disk"):
            await one.start("true")
        ran = await drain(await one.open("echo", "small"))
        assert bytes(ran.lanes[0]) == b"small\n", "a run whose client is there does not need the disk"
        disk.full = False
        heard = await one.output(process)
        assert bytes(heard.lanes[0]) == b"y\n" * (4 << 20)
        assert (await one.info(process)).reason is None
        await until(lambda: not one.guest.processes.kept)


async def test_a_node_that_is_killed_on_a_full_disk_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("yes-bytes", str(8 << 20))
        await until(lambda: one.find(process).spool.lanes[0] > 1 << 20)
        disk = FullDisk(monkeypatch)
        await until(lambda: disk.refused > 3)
        await one.crash()
        await until(lambda: disk.refused > 20)
        disk.full = False
        assert bytes((await one.output(process)).lanes[0]) == b"y\n" * (4 << 20)


async def test_a_deletion_on_a_full_disk_is_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("yes-bytes", str(64 << 20))
        disk = FullDisk(monkeypatch)
        await until(lambda: disk.refused > 3)
        await one.delete()
        assert isinstance((await one.output(process)).end, api.Lost)
        assert one.node.host.vmm(one.sandbox) is None


async def test_history_asks_what_runs_and_lets_a_paused_sandbox_be(tmp_path: Path) -> None:
    async with lab(tmp_path, interval=0.05) as one:

        async def samples(since: int = 0) -> list[api.Sample]:
            found = await one.session.call("history", api.History(one.sandbox, since))
            return msgspec.msgpack.decode(found, type=api.MetricsHistory).samples

        async def more_than(number: int) -> bool:
            return len(await samples()) > number

        await until(lambda: more_than(2))
        found = await samples()
        assert found[0].at_us < found[1].at_us
        assert (found[0].memory_total, found[0].host_cpu_ms) == (512 << 20, 1500)
        assert await samples(found[-2].at_us) != []
        await one.session.call("pause", api.Target(one.sandbox))
        await asyncio.sleep(0.1)
        before = await samples()
        assert one.node.node.around.history._timer is None, "nothing runs, so nothing wakes"
        await one.session.call("resume", api.Target(one.sandbox))
        await until(lambda: more_than(len(before)))
        await one.delete()
        assert one.node.node.around.history._timer is None
        assert not one.node.node.around.history._rings


async def test_a_reader_of_a_forgotten_process_is_told(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60")
        stream = await one.attach(process)
        heard = Heard()
        await heard.take(stream)
        await one.forget(process)
        with pytest.raises(NotFound, match="forgotten"):
            await heard.take(stream)
        await until(lambda: not one.guest.running)
        assert not list((tmp_path / "spool" / one.sandbox).iterdir())


async def test_a_process_that_two_ask_for_under_one_name_is_there_once(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        name = "pr-00000000000000ff"
        results = await asyncio.gather(*(one.start("sleep", "60", process=name) for _ in range(3)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in results) == ["Conflict", "Conflict", "str"]
        assert all(isinstance(each, str | Conflict) for each in results)
        assert len(one.guest.running) == 1
        with pytest.raises(SpaceError):
            await one.start("sleep", "60", process=name)
