"""Kept processes and terminals of the daemon in a real guest, straight over its session: what dies, what is heard, what is spared.

(What a fake guest can promise as well is in tests/contract/test_kept_processes.py.)
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from space.bench import bare
from space.bench.bare import Running
from space.core.wire import guest
from space.model.errors import InvalidArgument, NotFound
from space.rpc.session import Data, Session
from space.testing.kept import Kept, forget, kept_now

BOOT = 90.0
SIZE = guest.Window(24, 80)


@pytest.fixture(scope="module")
def machine() -> Iterator[Running]:
    """A guest for the tests of this module, each of which forgets what it keeps."""
    with bare.running("tcg") as found:
        yield found


class Place:
    """That guest, and a session that can be broken off."""

    def __init__(self, machine: Running) -> None:
        self._machine = machine
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "`again` was called"
        return self._session

    async def again(self) -> Session:
        """Hang up, whatever is on its way, and begin another session."""
        if self._session is not None:
            await self._session.aclose()
        async with asyncio.timeout(BOOT):
            self._session = await Session.open_guest(*self._machine.connect(), 1, reconnect=True)
        return self._session

    async def run(self, *argv: str, user: str | None = None) -> str:
        """A command that is not kept; what it wrote."""
        words = [word.encode() for word in argv]
        out = b""
        async with await self.session.open("exec", guest.Exec(words, None, [], user, None, False), finish=True) as stream:
            async for event in stream:
                out += event.payload if isinstance(event, Data) else b""
        return out.decode()

    async def count(self, argument: str) -> int:
        """How many processes have that argument."""
        hidden = f"{argument[:-1]}[{argument[-1]}]"
        return int(await self.run("sh", "-c", f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '{hidden}' || true"))

    async def until(self, claim: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(seconds):
            while not await claim():  # noqa: ASYNC110 - the guest announces none of this
                await asyncio.sleep(0.05)

    async def until_count(self, argument: str, wanted: int) -> None:
        async def right() -> bool:
            return await self.count(argument) == wanted

        await self.until(right)


Test = Callable[[Place], Awaitable[None]]


@asynccontextmanager
async def in_place(machine: Running) -> AsyncIterator[Place]:
    place = Place(machine)
    session = await place.again()
    try:
        request = guest.Configure(time.time_ns(), os.urandom(64), "kept", [], 1)
        guest.expect(guest.Configured, await session.call("configure", request))
        yield place
        assert await kept_now(place.session) == []
    except BaseException:
        for one in await kept_now(place.session):
            await forget(place.session, one.process)
        raise
    finally:
        await place.session.aclose()


def on(machine: Running, test: Test, seconds: float = 120) -> None:
    async def main() -> None:
        async with asyncio.timeout(seconds), in_place(machine) as place:
            await test(place)

    asyncio.run(main())


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


# Retention


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


# Terminals


def test_a_terminal_tells_its_size_and_its_changes(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("pty")
        script = "trap 'stty size' WINCH; stty size; while true; do sleep 0.05; done"
        stream = await kept.start(place.session, ["bash", "-c", script], pty=guest.Window(33, 101))
        await kept.until(stream, lambda out: b"33 101\r\n" in out)
        await stream.send_message(guest.Resize(40, 132))
        await kept.until(stream, lambda out: b"40 132\r\n" in out)
        await stream.send(b"\x03")
        assert (await kept.finish(stream)).signal == 2

    on(machine, test)


def test_a_terminal_is_the_users_and_is_the_controlling_one(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("pty")
        script = "tty; stat -c '%U:%G %a' $(tty); ps -o tty= -p $$; echo $TERM; echo through > /dev/tty; echo err >&2"
        exited = await kept.finish(await kept.start(place.session, sh(script), pty=SIZE))
        lines = kept.output[0].decode().replace("\r\n", "\n").splitlines()
        device = lines[0]
        assert device.startswith("/dev/pts/")
        assert lines[1:] == ["user:tty 620", device.removeprefix("/dev/"), "xterm-256color", "through", "err"]
        assert (exited.code, exited.stderr_bytes, exited.stdout_bytes) == (0, 0, len(kept.output[0]))

    on(machine, test)


def test_bash_has_job_control(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("bash")
        stream = await kept.start(place.session, ["bash", "--norc", "--noediting", "-i"], pty=SIZE, env={b"PS1": b"ready> "})

        async def prompt() -> str:
            seen = len(kept.output[0])
            await kept.until(stream, lambda out: out.endswith(b"ready> "))
            return bytes(kept.output[0][seen:]).decode()

        async def says(line: bytes) -> str:
            await stream.send(line)
            kept.output[0].extend(b" ")
            return await prompt()

        greeting = await prompt()
        assert "job control" not in greeting
        await stream.send(b"sleep 987\r")
        await kept.until(stream, lambda out: out.endswith(b"sleep 987\r\n"))
        await place.until_count("987", 1)
        assert "Stopped" in await says(b"\x1a")
        assert "sleep 987 &" in await says(b"bg\r")
        assert "Running" in await says(b"jobs\r")
        await stream.send(b"fg\r")
        await kept.until(stream, lambda out: out.endswith(b"sleep 987\r\n"))

        async def in_front() -> bool:
            return "+" in await place.run("sh", "-c", "ps -e -o stat=,args= | grep 'slee[p] 987'")

        await place.until(in_front)
        await says(b"\x03")
        await place.until_count("987", 0)
        assert "130" in await says(b"echo $?\r")
        await stream.send_message(guest.Eof())
        kept.output[0].clear()
        while kept.exited is None:
            assert await kept.step(stream)
        assert kept.exited.code == 0
        await kept.step(stream)

    on(machine, test)


def test_a_terminal_goes_on_across_sessions_and_everything_in_it_ends_when_it_is_forgotten(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("pty")
        script = "setsid sleep 1237.1 & (exec > /dev/null < /dev/tty; true); echo up; exec sleep 1237.2"
        stream = await kept.start(place.session, sh(script), pty=SIZE)
        await kept.until(stream, lambda out: b"up\r\n" in out)
        stream = await kept.attach(await place.again())
        await stream.send(b"echoed")
        await kept.until(stream, lambda out: out.endswith(b"echoed"))
        for sleeper in ("1237.1", "1237.2"):
            await place.until_count(sleeper, 1)
        await forget(place.session, "pty")
        for sleeper in ("1237.1", "1237.2"):
            await place.until_count(sleeper, 0)

    on(machine, test)


def test_root_and_user_can_still_be_when_the_file_of_accounts_is_gone(machine: Running) -> None:
    async def test(place: Place) -> None:
        await place.run("mv", "/etc/passwd", "/etc/passwd.away", user="root")
        try:
            assert (await place.run("id", "-u"), await place.run("id", "-u", user="root")) == ("1000\n", "0\n")
            with pytest.raises(InvalidArgument, match="there is no user"):
                await place.run("id", "-u", user="daemon")
        finally:
            await place.run("mv", "/etc/passwd.away", "/etc/passwd", user="root")
        assert await place.run("id", "-un", user="daemon") == "daemon\n"

    on(machine, test)


def test_a_paste_of_a_megabyte_comes_through_a_raw_terminal(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("raw")
        stream = await kept.start(place.session, sh("stty raw -echo; echo go; head -c 1000000 | cksum"), pty=SIZE)
        await kept.until(stream, lambda out: b"go" in out)
        text = random.Random(2).randbytes(1_000_000)
        await stream.send(text)
        await kept.finish(stream)
        want = (await place.run("python3", "-c", _PASTE)).split()
        assert kept.output[0].split()[-2:] == [word.encode() for word in want[:2]]

    on(machine, test)


_PASTE = """
import random, subprocess
print(subprocess.run('cksum', input=random.Random(2).randbytes(1000000), stdout=subprocess.PIPE).stdout.decode())
"""


def test_a_program_that_lets_go_of_its_terminal_can_come_back_to_it(machine: Running) -> None:
    async def test(place: Place) -> None:
        kept = Kept("pty")
        script = "import os, time\nfor n in (0, 1, 2): os.close(n)\ntime.sleep(0.5)\nos.write(os.open('/dev/tty', os.O_WRONLY), b'back')"
        await kept.finish(await kept.start(place.session, ["python3", "-c", script], pty=SIZE))
        assert kept.output[0] == b"back"

    on(machine, test)


def test_a_terminal_without_keep_ends_with_its_stream(machine: Running) -> None:
    async def test(place: Place) -> None:
        words = [b"sh", b"-c", b"stty size; cat; sleep 1238.1"]
        stream = await place.session.open("exec", guest.Exec(words, None, [], None, None, True, SIZE, None))
        guest.expect(guest.Started, (await anext(stream)).payload)
        assert (await anext(stream)).payload.startswith(b"24 80")
        await stream.send_message(guest.Resize(1, 2))
        await stream.close()  # the end-of-file character: cat ends, the rest runs on
        await place.until_count("1238.1", 1)
        await stream.reset("unavailable", "enough")
        await place.until_count("1238.1", 0)

    on(machine, test)


def test_terminals_work_whatever_root_mounts_over_them(machine: Running) -> None:
    async def test(place: Place) -> None:
        await place.run("sh", "-c", "mount -t tmpfs none /dev/pts; rm /dev/ptmx", user="root")
        kept = Kept("pty")
        await kept.finish(await kept.start(place.session, ["stty", "size"], pty=SIZE))
        assert kept.output[0] == b"24 80\r\n"
        await place.run("sh", "-c", "umount /dev/pts; mknod -m 666 /dev/ptmx c 5 2", user="root")
        with pytest.raises(InvalidArgument):
            await anext(await place.session.open("exec", guest.Exec([b"cat"], None, [], None, None, False, SIZE, None)))

    on(machine, test)
