"""Processes that outlive their client: output from any offset, readers that hold up nobody, input of many, and what kills what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from space.model.errors import Conflict, Gone, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.ids import new_process_id
from space.node import limits
from space.node.processes import Quota
from space.rpc import node_api as api
from space.testing.processlab import Heard, drain, expected, lab, until

SMALL = Quota(process=512 << 10, sandbox=256 << 20)


async def test_output_can_be_read_again_from_any_offset(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("count", "3000")
        whole = await one.output(process)
        assert [bytes(lane) for lane in whole.lanes] == expected(3000)
        assert isinstance(whole.end, api.Exited)
        assert (whole.end.code, whole.end.stdout_bytes) == (0, len(whole.lanes[0]))
        rest = random.Random(1)
        for _ in range(40):
            out, err = (rest.randrange(len(lane) + 1) for lane in whole.lanes)
            again = await one.output(process, out, err)
            assert (again.lanes, again.gaps) == ([whole.lanes[0][out:], whole.lanes[1][err:]], [])
        last = await one.output(process, -10, -20)
        assert last.lanes == [whole.lanes[0][-10:], whole.lanes[1][-20:]]
        attached = last.said[0]
        assert isinstance(attached, api.Attached)
        assert (attached.stdout, attached.info.state) == (len(whole.lanes[0]) - 10, "exited")
        assert (await one.output(process, None, None)).lanes == whole.lanes
        with pytest.raises(InvalidArgument, match="begins at"):
            await one.output(process, 1 << 40, 0)


async def test_a_reader_that_does_not_follow_is_told_where_to_go_on(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        await one.input(process, b"first")
        await until(lambda: one.find(process).spool.lanes[0] == 5)
        heard = await one.output(process, follow=False)
        assert (bytes(heard.lanes[0]), heard.end) == (b"first", api.Paused(5, 0))
        assert await one.input(process, b" second", api.Eof()) == 12
        heard = await one.output(process, 5, 0)
        assert bytes(heard.lanes[0]) == b" second"
        assert isinstance(heard.end, api.Exited)


async def test_slow_and_abrupt_readers_hold_up_neither_the_process_nor_others(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("yes-bytes", str(8 << 20))
        slow = [await one.attach(process) for _ in range(10)]
        for stream in slow:
            await anext(stream)
        abrupt = await one.attach(process)
        await anext(abrupt)
        await abrupt.reset("unavailable", "left")
        quick = await one.output(process)
        assert bytes(quick.lanes[0]) == b"y\n" * (4 << 20)
        assert (await one.info(process)).state == "exited"
        for stream in slow:
            assert len((await drain(stream)).lanes[0]) == 8 << 20


async def test_a_process_that_nobody_reads_loses_its_oldest_output_and_says_so(tmp_path: Path) -> None:
    async with lab(tmp_path, quota=SMALL) as one:
        process = await one.start("yes-bytes", str(3 << 20))
        await until(lambda: one.find(process).state == "exited")
        heard = await one.output(process)
        (gap,) = heard.gaps
        assert (gap.lane, gap.offset, gap.bytes + len(heard.lanes[0])) == (0, 0, 3 << 20)
        assert 300 << 10 < len(heard.lanes[0]) <= 512 << 10
        info = await one.info(process)
        assert (info.stdout_bytes, info.stdout_first) == (3 << 20, gap.bytes)
        assert (await one.output(process, None, None)).gaps == [], "from the oldest that there is nothing is missing"
        files = list((tmp_path / "spool" / one.sandbox).iterdir())
        assert sum(each.stat().st_size for each in files) <= 512 << 10


async def test_a_reader_that_falls_behind_is_told_the_gap_in_its_place(tmp_path: Path) -> None:
    async with lab(tmp_path, quota=SMALL) as one:
        process = await one.start("cat", stdin=True)
        reader = await one.attach(process)
        heard = Heard()
        await heard.take(reader)
        sent = os.urandom(12 << 20)
        await one.input(process, sent, api.Eof())
        await until(lambda: one.find(process).state == "exited")
        while await heard.take(reader):
            pass
        at, data = 0, bytes(heard.lanes[0])
        assert heard.gaps, "2 MiB of credit and 512 KiB of spool are less than 12 MiB"
        first = heard.gaps[0].offset
        assert data[:first] == sent[:first]
        at = sum(gap.bytes for gap in heard.gaps) + len(data)
        assert at == len(sent)
        tail = len(sent) - heard.gaps[-1].offset - heard.gaps[-1].bytes
        assert data[-tail:] == sent[-tail:]


async def test_block_holds_the_process_for_its_reader_and_loses_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path, quota=SMALL) as one:
        stream = await one.open("yes-bytes", str(16 << 20), overflow="block")
        heard = Heard()
        await heard.take(stream)
        for _ in range(30):
            await one.session.call("noop", api.Target(one.sandbox))
        assert one.guest.running, "16 MiB went nowhere"
        while await heard.take(stream):
            pass
        assert (len(heard.lanes[0]), heard.gaps) == (16 << 20, [])
        assert bytes(heard.lanes[0]) == b"y\n" * (8 << 20)


async def test_block_does_not_wait_for_somebody_who_is_not_there(tmp_path: Path) -> None:
    async with lab(tmp_path, quota=SMALL) as one:
        stream = await one.open("yes-bytes", str(16 << 20), overflow="block", kill_on_disconnect=False)
        await anext(stream)
        await stream.reset("unavailable", "left")
        await until(lambda: not one.running)
        (info,) = await one.list()
        assert (info.state, info.stdout_bytes, info.code) == ("exited", 16 << 20, 0)


async def test_kill_on_disconnect_kills_everything_of_it_and_only_when_asked(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        tied = await one.open("sleep", "60")
        loose = await one.open("sleep", "61", kill_on_disconnect=False)
        detached = await one.start("sleep", "62")
        later = await one.attach(detached, kill_on_disconnect=True)
        for stream in (tied, loose, later):
            await anext(stream)
        await one.session.aclose()
        await until(lambda: len(one.guest.running) == 1)
        assert list(one.guest.running.values()) == [[b"sleep", b"61"]]
        one.session = await one.session.connect(one.node.path)
        await until(lambda: len(one.node.node.around.archive.find(one.sandbox)._ended) == 2)
        killed = [each for each in await one.list() if each.state == "exited"]
        assert [each.signal for each in killed] == [9, 9]


async def test_a_kill_reaches_a_process_that_does_not_read_its_input(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        stream = await one.open("sleep", "60", stdin=True)
        await anext(stream)
        sending = asyncio.create_task(stream.send(bytes(8 << 20)))
        await until(lambda: one.node.node.around.archive.find(one.sandbox).infos()[0].stdin_bytes >= 1 << 20)
        sending.cancel()
        await asyncio.wait({sending})
        await until(lambda: not one.running)
        (info,) = await one.list()
        assert (info.state, info.signal, info.reason) == ("exited", 9, None)


async def test_sixteen_megabytes_of_input_arrive_whole_at_a_slow_reader(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True, spool_bytes=64 << 20)
        sent = os.urandom(16 << 20)
        reading = asyncio.create_task(one.output(process))
        assert await one.input(process, sent) == len(sent)
        assert await one.input(process, api.Eof()) == len(sent)
        heard = await reading
        assert bytes(heard.lanes[0]) == sent
        info = await one.info(process)
        assert (info.stdin, info.stdin_bytes) == ("closed", len(sent))


async def test_who_writes_to_a_process_that_has_closed_its_stdin_is_told(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("deaf", stdin=True)
        reader = await one.attach(process)
        heard = Heard()
        while heard.lanes[0] != b"closed\n":
            await heard.take(reader)
        await one.input(process, b"nobody reads this")
        node = one.node.node.around.archive.find(one.sandbox)
        await until(lambda: node.infos()[0].stdin == "closed")
        with pytest.raises(Conflict, match="standard input"):
            await one.input(process, b"nor this")
        assert (await one.info(process)).state == "running"


async def test_input_of_many_is_taken_piece_by_piece(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        pieces = [bytes([65 + index]) * 1000 for index in range(20)]
        await asyncio.gather(*(one.input(process, piece) for piece in pieces))
        await one.input(process, api.Eof())
        out = bytes((await one.output(process)).lanes[0])
        assert sorted(out[at : at + 1000] for at in range(0, len(out), 1000)) == pieces


async def test_clients_that_leave_before_their_input_is_taken_leave_nothing_behind(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60", stdin=True)
        before = one.find(process).spool.size
        for _ in range(8):
            stream = await one.session.open("input", api.ProcessTarget(one.sandbox, process))
            for _ in range(4):  # more than the guest takes
                await stream.send(bytes(256 << 10))
            await stream.reset("unavailable", "left")
        house = one.node.node.around.archive.find(one.sandbox)
        await until(lambda: len(house._tasks) <= 1)
        assert one.find(process).spool.size == before
        await one.forget(process)


async def test_input_of_nothing_adds_nothing_to_the_record(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        before = one.find(process).spool.size
        for _ in range(20):
            assert await one.input(process) == 0
        assert one.find(process).spool.size == before
        assert await one.input(process, b"x", api.Eof()) == 1


async def test_input_after_its_end_or_the_process_is_a_conflict(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60", stdin=True)
        await one.input(process, api.Eof())
        with pytest.raises(Conflict, match="closed"):
            await one.input(process, b"more")
        with pytest.raises(Conflict, match="terminal"):
            await one.input(process, api.Resize(3, 4))
        await one.input(process, api.Signal(15))
        await one.output(process)
        for what in (b"x", api.Eof(), api.Signal(15), api.Signal(9, all=True)):
            with pytest.raises(Conflict, match="has ended"):
                await one.input(process, what)
        silent = await one.start("sleep", "60")
        with pytest.raises(Conflict, match="no standard input"):
            await one.input(silent, b"x")
        for wrong in (api.Signal(65), api.Signal(0), api.Done()):
            with pytest.raises(InvalidArgument):
                await one.input(silent, wrong)
        assert [each.stdin for each in await one.list()] == ["closed", "none"]


async def test_a_terminal_has_its_size_and_its_end_of_input(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sizes", stdin=True, pty=api.Window(24, 80))
        reader = await one.attach(process)
        heard = Heard()
        while b"24 80" not in heard.lanes[0]:
            await heard.take(reader)
        await one.input(process, api.Resize(50, 120))
        while b"50 120" not in heard.lanes[0]:
            await heard.take(reader)
        await one.input(process, api.Eof())
        while await heard.take(reader):
            pass
        assert isinstance(heard.end, api.Exited)
        with pytest.raises(InvalidArgument, match="pty needs stdin"):
            await one.start("sizes", pty=api.Window(24, 80))
        with pytest.raises(InvalidArgument, match="rows and cols"):
            await one.start("sizes", stdin=True, pty=api.Window(0, 80))


async def test_an_attachment_may_carry_input_and_signals(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        stream = await one.attach(process, input=True)
        await stream.send(b"ping")
        heard = Heard()
        while heard.lanes[0] != b"ping":
            await heard.take(stream)
        await stream.send_message(api.Signal(15))
        while await heard.take(stream):
            pass
        assert isinstance(heard.end, api.Exited)
        assert heard.end.signal == 15


async def test_too_many_processes_are_refused_by_name_and_ended_ones_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROCESSES", 5)
    monkeypatch.setattr(limits, "ENDED", 3)
    async with lab(tmp_path) as one:
        running = [await one.start("sleep", "60") for _ in range(5)]
        with pytest.raises(NoCapacity, match="5 processes run in sandbox"):
            await one.start("true")
        for process in running[:2]:
            await one.forget(process)
            await one.forget(process)
        assert [each.process for each in await one.list()] == running[2:]
        done = []
        for _ in range(6):
            done.append(await one.start("true"))
            await one.output(done[-1])
        assert [each.process for each in await one.list()] == running[2:] + done[3:]
        with pytest.raises(NotFound):
            await one.info(done[0])
        assert len(list((tmp_path / "spool" / one.sandbox).iterdir())) == 6
        await until(lambda: len(one.guest.processes.kept) == 3)


async def test_what_has_ended_goes_when_the_sandboxs_quota_is_passed(tmp_path: Path) -> None:
    async with lab(tmp_path, quota=Quota(process=512 << 10, sandbox=1 << 20)) as one:
        done = []
        for _ in range(5):
            done.append(await one.start("yes-bytes", str(300 << 10)))
            assert len((await one.output(done[-1])).lanes[0]) == 300 << 10
        left = [each.process for each in await one.list()]
        assert left == done[-len(left) :]
        assert 2 <= len(left) <= 4
        assert one.node.node.around.archive.find(one.sandbox).account.bytes <= (1 << 20) + (64 << 10)


async def test_a_wrong_start_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        taken = await one.start("sleep", "60")
        for error, asked in (
            (InvalidArgument, {"process": "../../etc"}),
            (Conflict, {"process": taken}),
            (InvalidArgument, {"spool_bytes": 1}),
            (InvalidArgument, {"spool_bytes": 1 << 40}),
        ):
            with pytest.raises(error):
                await one.start("true", **asked)
        with pytest.raises(NotFound):
            await one.start("no-such-program")
        with pytest.raises(NotFound):
            await one.info(new_process_id())
        assert len(await one.list()) == 1
        assert len(one.guest.processes.kept) == 1


async def test_a_start_with_an_id_of_the_clients_own_is_done_once_also_over_a_restart(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        name = new_process_id()
        asked: dict[str, Any] = {"stdin": True, "process": name, "named": True, "env": {"A": "1", "B": "2"}}
        streams = [await one.open("cat", attach=False, **asked) for _ in range(5)]
        ends = {(await drain(stream)).end for stream in streams}
        assert len(ends) == 1
        assert len(one.guest.processes.kept) == 1
        await one.crash()
        assert await one.start("cat", overflow="block", **asked | {"env": {}}) == name, "what the record does not hold is not compared"
        for other in ({"stdin": False}, {"user": "root"}, {"attach": True}, {"named": False}):
            stream = await one.open("cat", **{"attach": False} | asked | other)
            with pytest.raises(Conflict, match="of another request"):
                await drain(stream)
        await one.forget(name)
        with pytest.raises(Conflict, match="was deleted"):
            await one.start("cat", **asked)


async def test_a_start_is_compared_with_the_first_one_whole(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        name = await one.start("cat", process=new_process_id(), named=True, env={"A": "1"}, stdin=True)
        asked: dict[str, Any] = {"process": name, "named": True, "env": {"A": "1"}, "stdin": True}
        for other in ({"env": {"A": "2"}}, {"timeout_ms": 5}, {"spool_bytes": 1 << 20}):
            with pytest.raises(Conflict, match="of another request"):
                await one.start("cat", **asked | other)


async def test_a_deletion_that_overtakes_the_start_is_the_last_word(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        late = new_process_id()
        await one.forget(late)
        with pytest.raises(Conflict, match="was deleted"):
            await one.start("sleep", "60", process=late, named=True)
        on_its_way = new_process_id()
        stream = await one.open("sleep", "60", process=on_its_way, named=True, attach=False)
        await one.forget(on_its_way)
        with contextlib.suppress(SpaceError):
            await drain(stream)
        assert await one.list() == []
        await until(lambda: not one.guest.processes.kept)


async def test_a_start_with_an_id_of_the_clients_own_outlives_whoever_asked(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        name = new_process_id()
        stream = await one.open("sleep", "60", process=name, named=True, attach=False)
        house = one.node.node.around.archive.find(one.sandbox)
        await until(lambda: name in house._all)
        await stream.reset("unavailable", "left")
        await until(lambda: one.guest.processes.kept)
        assert await one.start("sleep", "60", overflow="block", process=name, named=True) == name
        assert (await one.info(name)).state == "running"
        await one.forget(name)


async def test_a_thousand_reattachments(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        sent, read = b"", b""
        for index in range(1000):
            piece = b"%d," % index
            sent += piece
            await one.input(process, piece)
            stream = await one.attach(process, len(read), 0)
            heard = Heard()
            while len(read) + len(heard.lanes[0]) < len(sent):
                await heard.take(stream)
            read += heard.lanes[0]
            await stream.reset("unavailable", "left")
        assert read == sent
        await until(lambda: not one.find(process).readers)


async def test_a_sandbox_is_busy_with_what_nobody_is_attached_to(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        before = (await one.state()).revision
        await drain(await one.open("true"))
        first = await one.state()
        assert (first.revision, list(first.stages_ms)[-1]) == (before + 1, "first_exec"), "how long the first command took is told"
        before = first.revision
        for _ in range(5):
            await drain(await one.open("true"))
        assert ((await one.state()).revision, (await one.state()).busy) == (before, False), "an attached run publishes nothing"
        detached = await one.start("sleep", "60")
        assert (await one.state()).busy
        await one.start("true")
        await one.forget(detached)
        await until(lambda: not one.guest.running)
        await asyncio.sleep(0.05)
        assert not (await one.state()).busy
        survivor = await one.open("sleep", "61", kill_on_disconnect=False)
        await anext(survivor)
        assert not (await one.state()).busy
        await survivor.reset("unavailable", "left")

        async def busy() -> bool:
            return (await one.state()).busy

        await until(busy)


async def test_a_deletion_loses_what_runs_and_its_output_stays_until_the_retention_ends(tmp_path: Path) -> None:
    async with lab(tmp_path, retention=0.6) as one:
        done = await one.start("echo", "kept")
        await one.output(done)
        running = await one.start("sleep", "60")
        attached = await one.open("sleep", "61")
        await anext(attached)
        reader = asyncio.create_task(one.output(running))
        await one.attach(running)
        await one.delete()
        with pytest.raises(Gone, match="deleted"):
            await drain(attached)
        assert (await reader).end == api.Lost("the sandbox was deleted")
        assert bytes((await one.output(done)).lanes[0]) == b"kept\n"
        assert (await one.output(running)).end == api.Lost("the sandbox was deleted")
        assert [each.state for each in await one.list()] == ["exited", "lost", "lost"]
        with pytest.raises(Conflict, match="has ended"):
            await one.input(running, api.Signal(15))
        await until(lambda: not (tmp_path / "spool" / one.sandbox).exists())
        with pytest.raises(NotFound):
            await one.list()


async def test_a_machine_that_dies_loses_its_processes_with_its_reason(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60")
        vmm = one.node.host.vmm(one.sandbox)
        assert vmm is not None
        vmm.die("a bit flipped")
        end = (await one.output(process)).end
        assert isinstance(end, api.Lost)
        assert "a bit flipped" in end.reason
        with pytest.raises(SpaceError):
            await one.start("true")


async def test_a_pause_keeps_processes_and_their_readers_waiting(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        reader = await one.attach(process)
        heard = Heard()
        await heard.take(reader)
        await one.session.call("pause", api.Target(one.sandbox))
        assert (await one.output(process, follow=False)).end == api.Paused(0, 0)
        with pytest.raises(Conflict):
            await one.start("true")
        with pytest.raises(Conflict):
            await one.forget(process)
        await one.session.call("resume", api.Target(one.sandbox))
        await one.input(process, b"after", api.Eof())
        while await heard.take(reader):
            pass
        assert bytes(heard.lanes[0]) == b"after"


async def test_the_list_is_cut_to_what_fits_a_frame(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        for _ in range(8):
            await one.start("true", "x" * 50_000)
        found = await one.list()
        assert [len(each.argv[1]) for each in found] == [50_000] * 8
        assert len(msgspec.msgpack.encode(found)) > 262_144
