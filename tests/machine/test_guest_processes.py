"""Kept processes of the daemon in a real guest, straight over its session: what dies, what is heard, what is spared.

(What a fake guest can promise as well is in tests/contract/test_kept_processes.py.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from space.bench import bare
from space.bench.bare import Running
from space.core.wire import guest
from space.model.errors import NotFound
from space.testing.kept import Kept, forget, kept_now
from space.testing.keptplace import Place, on, sh


@pytest.fixture(scope="module")
def machine() -> Iterator[Running]:
    """A guest for the tests of this module, each of which forgets what it keeps."""
    with bare.running("tcg") as found:
        yield found


def test_output_is_whole_though_its_session_is_broken_off_twenty_times(machine: Running) -> None:
    """Both lanes; the host hangs up at random moments, in the middle of frames, with whatever it has stored by then."""
    count = 1_000_000

    async def test(place: Place) -> None:
        dice = random.Random(4)
        kept = Kept("seq")
        stream = await kept.start(place.session, sh(f"seq 1 {count} & seq 1 2 {count} >&2; wait"))
        for _ in range(20):
            for _ in range(dice.randrange(60)):
                if not await kept.step(stream):
                    break
            stream = await kept.attach(await place.again())
            kept.exited = None
        exited = await kept.finish(stream)
        assert exited.code == 0
        assert bytes(kept.output[0]) == b"".join(b"%d\n" % number for number in range(1, count + 1))
        assert bytes(kept.output[1]) == b"".join(b"%d\n" % number for number in range(1, count + 1, 2))

    on(machine, test)


def test_a_process_that_nobody_reads_is_held_back_and_goes_on(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("dd")
        stream = await kept.start(place.session, sh("head -c 3000000 /dev/zero; echo over > /tmp/over; exit 5"))
        await kept.step(stream)
        await place.again()
        await place.run("sh", "-c", "sleep 0.5")
        assert await place.run("sh", "-c", "cat /tmp/over 2>/dev/null || true") == ""
        exited = await kept.finish(await kept.attach(place.session))
        assert (exited.code, len(kept.output[0])) == (5, 3_000_000)
        assert await place.run("cat", "/tmp/over") == "over\n"

    on(machine, test)


def test_input_goes_on_across_sessions_and_ends_when_told(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("sum")
        stream = await kept.start(place.session, sh("sleep 1; cksum"), stdin=True)
        text = random.Random(1).randbytes(250_000)
        await stream.send(text[:100_000])  # less than a pipe and a window: it is with the guest when the noop is answered
        guest.expect(guest.Done, await place.session.call("noop", guest.Empty()))
        stream = await kept.attach(await place.again())
        await stream.send(text[100_000:])
        await stream.send_message(guest.Eof())
        await kept.finish(stream)
        (place_of_bytes,) = kept.output[0].split()[1:2]
        assert place_of_bytes == b"250000"

    on(machine, test)


def test_input_that_waited_through_many_sessions_breaks_no_credit(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("late")
        stream = await kept.start(place.session, sh("while [ ! -e /tmp/go ]; do sleep 0.1; done; wc -c"), stdin=True)
        for _ in range(3):
            await stream.send(bytes(200_000))
            guest.expect(guest.Done, await place.session.call("noop", guest.Empty()))
            stream = await kept.attach(await place.again())
        await place.run("touch", "/tmp/go")
        for _ in range(10):
            await stream.send(bytes(200_000))
        await stream.send_message(guest.Eof())
        await kept.finish(stream)
        assert kept.output[0].strip() == b"2600000"

    on(machine, test)


def test_a_closed_stdin_takes_everything_and_is_told_once_on_a_stream(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("closed")
        stream = await kept.start(place.session, sh("exec <&-; echo closed; sleep 1; echo over"), stdin=True)
        await kept.until(stream, lambda out: out == b"closed\n")
        for _ in range(40):
            await stream.send(bytes(65_536))
        await kept.finish(stream)
        assert kept.output[0] == b"closed\nover\n"
        assert kept.refused == 1

    on(machine, test)


# What dies and what is spared


def test_the_end_of_a_session_spares_what_is_kept_and_nothing_else(machine: Running) -> None:
    """Not kept: a command, what it setsid'ed, root's strays in the root cgroup (which fork all the time) and in a cgroup of their own."""
    stray = """
import os, sys, time
os.makedirs('/sys/fs/cgroup/' + sys.argv[2], exist_ok=True) if sys.argv[2] else None
with open('/sys/fs/cgroup/' + sys.argv[2] + '/cgroup.procs', 'w') as group: group.write('0')
if os.fork(): time.sleep(600)
os.setsid()
while True:
    if os.fork(): time.sleep(0.02); os._exit(0)
    with open('/tmp/beat' + sys.argv[2], 'a') as beat: beat.write('x')
"""

    async def test(place: Place) -> None:
        await Kept("spared").start(place.session, sh("setsid sleep 1234.5 & sleep 1234.5; true"))
        moved = "echo 0 > /sys/fs/cgroup/cgroup.procs; exec sleep 1234.6"
        await Kept("moved").start(place.session, sh(moved), user="root")
        for argv in (["sleep", "1234.7"], sh("setsid sleep 1234.7 & sleep 1234.7")):
            await place.session.open("exec", guest.Exec([word.encode() for word in argv], None, [], None, None, False), finish=True)
        for group in ("", "own"):
            words = [b"python3", b"-c", stray.encode(), b"stray-9", group.encode()]
            await place.session.open("exec", guest.Exec(words, None, [], "root", None, False), finish=True)
        await place.until_count("1234.7", 3)

        async def beats() -> list[str]:
            return (await place.run("sh", "-c", "stat -c %s /tmp/beat /tmp/beatown 2>/dev/null || true")).split()

        async def both_beat() -> bool:
            return len(await beats()) == 2

        await place.until(both_beat)
        await place.again()
        await place.until_count("1234.7", 0)
        await place.until_count("stray-9", 0)
        before = await beats()
        await place.run("sleep", "0.5")
        assert await beats() == before, "what forks all the time was ended too"
        assert (await place.count("1234.5"), await place.count("1234.6")) == (2, 1)
        assert [(one.process, one.ended) for one in await kept_now(place.session)] == [("spared", False), ("moved", False)]
        await forget(place.session, "spared")
        await forget(place.session, "moved")
        await place.until_count("1234.5", 0)
        await place.until_count("1234.6", 0)

    on(machine, test)


def test_a_session_without_anything_kept_ends_everything(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("ended")
        await kept.until_exit(await kept.start(place.session, ["true"]))
        command = [b"sh", b"-c", b"setsid sleep 1235.1 & sleep 1235.1"]
        await place.session.open("exec", guest.Exec(command, None, [], None, None, False), finish=True)
        await place.until_count("1235.1", 2)
        await place.again()
        await place.until_count("1235.1", 0)
        await forget(place.session, "ended")

    on(machine, test)


def test_forgetting_kills_everything_of_a_process(machine: Running) -> None:
    async def test(place: Place) -> None:
        await Kept("one").start(place.session, sh("setsid setsid sleep 1236.1 & sleep 1236.1"))
        await place.until_count("1236.1", 2)
        await forget(place.session, "one")
        await place.until_count("1236.1", 0)
        with pytest.raises(NotFound):
            await forget(place.session, "one")

    on(machine, test)


def test_signals_reach_the_group_or_everything(machine: Running) -> None:
    trap = "trap 'echo \\$0 heard' TERM; echo \\$0 up; while true; do sleep 0.1; done"

    async def test(place: Place) -> None:
        kept = Kept("one")
        stream = await kept.start(place.session, sh(f'setsid sh -c "{trap}" other & exec sh -c "{trap}" leader'))
        await kept.until(stream, lambda out: b"other up" in out and b"leader up" in out)
        await stream.send_message(guest.Signal(15, all=False))
        await kept.until(stream, lambda out: b"leader heard" in out)
        assert b"other heard" not in kept.output[0]
        await stream.send_message(guest.Signal(15, all=True))
        await kept.until(stream, lambda out: b"other heard" in out and out.count(b"leader heard") == 2)
        await stream.send_message(guest.Signal(9, all=False))
        assert (await kept.finish(stream)).signal == 9

    on(machine, test)


def test_a_stopped_process_goes_on_when_told(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("one")
        stream = await kept.start(place.session, ["cat"], stdin=True)

        async def state() -> str:
            return (await place.run("sh", "-c", f"cut -d' ' -f3 /proc/{kept.pid}/stat")).strip()

        await stream.send_message(guest.Signal(19, all=False))
        await stream.send(b"x")
        assert await state() == "T"
        assert kept.output[0] == b""
        await stream.send_message(guest.Signal(18, all=False))
        await kept.until(stream, lambda out: out == b"x")
        await stream.send_message(guest.Eof())
        await kept.finish(stream)

    on(machine, test)


def test_three_hundred_are_kept_at_once_and_the_daemon_stays_small_and_quick(machine: Running) -> None:
    count = 300

    async def taken(place: Place) -> int:
        status = dict(line.split(":", 1) for line in (await place.run("cat", "/proc/1/status", user="root")).splitlines())
        return sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))

    async def test(place: Place) -> None:
        before = await taken(place)
        names = [f"many-{number}" for number in range(count)]
        for name in names:
            await Kept(name).start(place.session, ["sleep", "600"])
        await place.again()
        assert [one.process for one in await kept_now(place.session)] == names
        spent = await taken(place) - before
        begun = time.monotonic()
        for _ in range(50):
            guest.expect(guest.Done, await place.session.call("noop", guest.Empty()))
        slowest = (time.monotonic() - begun) / 50
        print(f"{spent} KiB for {count} kept processes; a noop took {slowest * 1000:.2f} ms")
        assert spent < 2 * count
        for name in names:
            await forget(place.session, name)
        await place.until_count("600", 0)

    on(machine, test)
