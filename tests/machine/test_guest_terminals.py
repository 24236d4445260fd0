"""Terminals of the daemon in a real guest, straight over its session: sizes, job control, what ends with them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from space.bench import bare
from space.bench.bare import Running
from space.core.wire import guest
from space.model.errors import InvalidArgument
from space.testing.kept import Kept, forget
from space.testing.keptplace import SIZE, Place, on, sh


@pytest.fixture(scope="module")
def machine() -> Iterator[Running]:
    """A guest for the tests of this module, each of which forgets what it keeps."""
    with bare.running("tcg") as found:
        yield found


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
