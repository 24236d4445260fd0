"""Files, watches and ports of a real guest, where the fake has nothing to say: size, a full disk, who is killed, what others see."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from space.bench import bare
from space.core.wire import files, guest
from space.core.wire.events import Data
from space.model.errors import GuestError, SpaceError
from space.rpc.session import Session
from space.testing.filecalls import HERE, connected, exchange, page, read, read_pieces, until, watching, write

BOOT = 90.0
Test = Callable[["Place"], Awaitable[None]]
Run = Callable[[Test], None]


class Place:
    """A guest and a session with it; `again` ends that and begins another."""

    def __init__(self, machine: bare.Running) -> None:
        self._machine = machine
        self.session: Session

    async def again(self) -> None:
        if hasattr(self, "session"):
            await self.session.aclose()
        async with asyncio.timeout(BOOT):
            self.session = await Session.open_guest(*self._machine.connect(), 1, reconnect=True)
        request = guest.Configure(time.time_ns(), os.urandom(64), "files", [], 1)
        guest.expect(guest.Configured, await self.session.call("configure", request))

    async def sh(self, text: str, *, user: str = "user", check: bool = True) -> str:
        """Run a shell command; its output."""
        argv = [word.encode() for word in ("sh", "-c", text)]
        request = guest.Exec(argv, None, [], user, 60_000, False)
        output = b""
        async with await self.session.open("exec", request, finish=True) as stream:
            async for event in stream:
                if isinstance(event, Data):
                    output += event.payload
                else:
                    last = guest.decode(event.payload)
        assert not check or (isinstance(last, guest.Exited) and last.code == 0), (text, output, last)
        return output.decode()

    async def appears(self, path: bytes) -> None:
        """Wait until it is there: a watch tells."""
        parent, _, name = path.rpartition(b"/")
        async with watching(self.session, parent, recursive=False) as stream:
            if name not in await self.names(parent):
                await until(stream, f"created {name.decode()}")

    async def processes(self) -> int:
        return guest.expect(guest.Metrics, await self.session.call("metrics", guest.Empty())).processes

    async def names(self, path: bytes) -> list[bytes]:
        return [file.name for file in (await page(self.session, path))[0]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """One guest for all of them."""
    with bare.running("tcg") as machine:
        yield lambda test: asyncio.run(on(machine, test))


async def settled(place: Place) -> None:
    """Wait until no process of the host's is left; the guest announces that to nobody."""
    while await place.processes():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)


async def on(machine: bare.Running, test: Test) -> None:
    place = Place(machine)
    await place.again()
    try:
        async with asyncio.timeout(120):
            await test(place)
    finally:
        await place.session.aclose()


@contextmanager
def refused(code: str, words: str = "") -> Iterator[None]:
    with pytest.raises(SpaceError) as error:
        yield
    assert error.value.code == code, error.value
    assert words in error.value.message


def test_two_gigabytes_of_hole_come_in_bounded_time(run: Run) -> None:
    async def test(place: Place) -> None:
        await place.sh("truncate -s 2100000000 /tmp/sparse && printf end >> /tmp/sparse")
        await place.sh("printf mid | dd of=/tmp/sparse bs=1 seek=1000000000 conv=notrunc")
        begun = time.monotonic()
        count = crc = 0
        async for piece in read_pieces(place.session, b"/tmp/sparse"):
            count += len(piece)
            crc = zlib.crc32(piece, crc)
        took = time.monotonic() - begun
        print(f"2.1 GB of hole in {took:.1f} s, {count / took / 1e6:.0f} MB/s")
        assert count == 2_100_000_003
        assert took < 90
        assert await read(place.session, b"/tmp/sparse", 999_999_999, 5) == b"\0mid\0"
        await place.sh("rm /tmp/sparse")

    run(test)


def test_large_files_go_at_the_channels_rate(run: Run) -> None:
    async def test(place: Place) -> None:
        sent = os.urandom(64 << 20)
        begun = time.monotonic()
        await write(place.session, b"/tmp/large", sent)
        written = time.monotonic()
        assert await read(place.session, b"/tmp/large") == sent
        done = time.monotonic()
        print(f"64 MiB in {written - begun:.2f} s, out {done - written:.2f} s")
        assert await place.sh("sha1sum < /tmp/large | wc -c; rm /tmp/large") == "44\n"

    run(test)


def test_a_full_disk_is_told_and_leaves_the_old_file(run: Run) -> None:
    async def test(place: Place) -> None:
        await place.sh("mkdir /mnt/full && mount -t tmpfs -o size=4m,mode=777 none /mnt/full", user="root")
        await write(place.session, b"/mnt/full/old", b"old")
        for path in (b"/mnt/full/old", b"/mnt/full/new"):
            with refused("no_capacity", "disk is full"):
                await write(place.session, path, [bytes(1 << 20)] * 8)
        with refused("no_capacity"):
            await write(place.session, b"/mnt/full/log", bytes(8 << 20), append=True)
        assert await read(place.session, b"/mnt/full/old") == b"old"
        await place.sh("rm /mnt/full/log")
        assert await place.names(b"/mnt/full") == [b"old"]
        await write(place.session, b"/mnt/full/old", b"newer")
        with refused("unsupported"):
            await place.session.call("file_move", files.FileMove(b"/mnt/full/old", None, b"/tmp/old", replace=False))
        with refused("conflict", "mounted"):
            await place.session.call("file_remove", files.FileRemove(b"/mnt", "root", recursive=True, missing_ok=False))
        assert await read(place.session, b"/mnt/full/old") == b"newer"
        await place.sh("umount /mnt/full && rmdir /mnt/full", user="root")

    run(test)


def test_a_reader_sees_the_old_or_the_new_file_never_a_part(run: Run) -> None:
    reader = """
import os, sys
seen, times = set(), 0
open('/tmp/atomic-ready', 'w').close()
while not os.path.exists('/tmp/atomic-stop'):
    with open('/tmp/atomic', 'rb') as file: data = file.read()
    seen.add((len(data), len(set(data))))
    times += 1
print(sorted(seen), times > 3)
"""

    async def test(place: Place) -> None:
        await write(place.session, b"/tmp/atomic", b"0" * 500_000)
        looking = asyncio.create_task(place.sh(f'python3 -c "{reader}"'))
        await place.appears(b"/tmp/atomic-ready")
        for number in range(1, 25):
            await write(place.session, b"/tmp/atomic", b"%d" % (number % 10) * 500_000)
        await write(place.session, b"/tmp/atomic-stop", b"")
        assert await looking == "[(500000, 1)] True\n"
        await place.sh("rm /tmp/atomic*")

    run(test)


# The daemon's children that have become the user, by name.
_CHILDREN = '/^Name:/ {name = $2} /^Pid:/ {pid = $2} /^Uid:/ {if ($2 == 1000 && (name == "init" || name == "space")) print pid}'


@pytest.mark.parametrize("how", ["reset", "session", "killed"])
def test_a_write_that_is_cut_off_leaves_nothing(run: Run, how: str) -> None:
    async def test(place: Place) -> None:
        await place.sh("mkdir -p /tmp/cut")
        await write(place.session, b"/tmp/cut/old", b"old")
        used = await place.sh("df --output=used / | tail -1")
        for path in (b"/tmp/cut/old", b"/tmp/cut/new"):
            stream = await place.session.open("file_write", msgspec.structs.replace(HERE, path=path), bulk=True)
            await stream.send(os.urandom(8 << 20))
            if how == "reset":
                await stream.reset("unavailable", "the test")
            elif how == "session":
                await place.again()
            else:
                await place.sh(f"kill -9 $(awk '{_CHILDREN}' /proc/[0-9]*/status)")
                with pytest.raises(GuestError, match="killed"):
                    await anext(stream)
        assert await place.names(b"/tmp/cut") == [b"old"]
        assert await read(place.session, b"/tmp/cut/old") == b"old"
        for _ in range(50):
            if await place.sh("df --output=used / | tail -1") <= used:
                break
            await asyncio.sleep(0.1)
        assert int(await place.sh("df --output=used / | tail -1")) <= int(used) + 1024, "its blocks are free again"
        await place.sh("rm -r /tmp/cut")

    run(test)


def test_ten_thousand_files_come_in_pages(run: Run) -> None:
    many_files_come_in_pages(run, 10_000, 3000)


@pytest.mark.full
def test_a_hundred_thousand_files_come_in_pages(run: Run) -> None:
    many_files_come_in_pages(run, 100_000, 10_000)


def many_files_come_in_pages(run: Run, count: int, limit: int) -> None:
    async def test(place: Place) -> None:
        await place.sh(f"mkdir /tmp/many && cd /tmp/many && seq -f 'n%06g' 1 {count} | xargs touch")
        begun = time.monotonic()
        first, _ = await page(place.session, b"/tmp/many")
        took = time.monotonic() - begun
        print(f"{len(first)} of {count} files in {took:.2f} s")
        assert len(first) == 10_000
        found: list[bytes] = []
        more = True
        while more:
            listed, more = await page(place.session, b"/tmp/many", 1, found[-1] if found else None, limit)
            found += [file.name for file in listed]
        assert found == [b"n%06d" % number for number in range(1, count + 1)]
        begun = time.monotonic()
        await place.session.call("file_remove", files.FileRemove(b"/tmp/many", None, recursive=True, missing_ok=False))
        print(f"removed in {time.monotonic() - begun:.2f} s")

    run(test)


def test_a_reader_that_takes_nothing_holds_back_only_itself(run: Run) -> None:
    async def test(place: Place) -> None:
        await place.sh("mkdir -p /tmp/slow && cd /tmp/slow && seq -f 'n%05g' 1 10000 | xargs touch; truncate -s 300000000 /tmp/slow/big")
        stalled = [
            await place.session.open("file_list", files.FileList(b"/tmp/slow", None, 1, None, 10_000), bulk=True, finish=True),
            await place.session.open("file_read", files.FileRead(b"/tmp/slow/big", None, 0, None), bulk=True, finish=True),
        ]
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        assert await read(place.session, b"/etc/hostname")
        await place.session.call("noop", guest.Empty())
        assert time.monotonic() - begun < 10
        listed = [event async for event in stalled[0]]
        assert sum(len(one.files) for event in listed if isinstance(one := guest.decode(event.payload), files.Files)) == 10_000
        await stalled[1].reset("unavailable", "enough")
        await place.sh("rm -r /tmp/slow")

    run(test)


def test_what_programs_do_is_watched_recursively(run: Run) -> None:
    async def test(place: Place) -> None:
        await place.sh("mkdir -p /tmp/watched/here")
        async with watching(place.session, b"/tmp/watched") as stream:
            await place.sh("cd /tmp/watched && echo 1 > a && mv a here/b && chmod 600 here/b && rm here/b")
            assert await until(stream, "deleted here/b") == [
                "created a",
                "modified a",
                "moved a here/b",
                "attributes here/b",
                "deleted here/b",
            ]
            await place.sh("mkdir -p /tmp/watched/x/y/z && echo > /tmp/watched/x/y/z/f")
            found = await until(stream, "created x/y/z/f")
            assert [one for one in found if one.startswith("created")] == [
                "created/ x",
                "created/ x/y",
                "created/ x/y/z",
                "created x/y/z/f",
            ]
            await place.sh("mv /tmp/watched/x /tmp/watched/w && echo > /tmp/watched/w/y/z/g && mv /tmp/watched/w /tmp/w-out")
            found = await until(stream, "deleted/ w")
            assert [one for one in found if not one.startswith("modified")] == ["moved/ x w", "created w/y/z/g", "deleted/ w"]
            await place.sh("rm -r /tmp/watched /tmp/w-out")
            with suppress(StopAsyncIteration):
                await until(stream, "never")

    run(test)


def test_the_user_may_do_what_the_user_may(run: Run) -> None:
    async def test(place: Place) -> None:
        session = place.session
        for path in (b"/etc/shadow", b"/root/x"):
            with refused("permission_denied"):
                await read(session, path)
        for path in (b"/etc/new", b"/etc/hostname", b"/proc/version"):
            with refused("permission_denied"):
                await write(session, path, b"x")
        await write(session, b"/tmp/fixed", b"old", mode=0o444)
        with refused("permission_denied"):
            await write(session, b"/tmp/fixed", b"new")
        with refused("conflict", "character"):
            await write(session, b"/dev/null", b"x", user="root")
        mine = await write(session, b"/tmp/fixed", b"roots", user="root")
        assert (mine.owner, mine.group, mine.mode, mine.size) == ("user", "user", 0o444, 5), "it is whose it was"
        await place.sh("mkdir -m 777 /tmp/open && echo old > /tmp/open/tool && chmod 6777 /tmp/open/tool", user="root")
        taken = await write(session, b"/tmp/open/tool", b"new")
        assert (taken.owner, taken.mode) == ("user", 0o777), "nobody gives away the rights of another"
        assert (await read(session, b"/proc/version")).startswith(b"Linux version")
        await place.sh("rm -rf /tmp/fixed /tmp/open", user="root")

    run(test)


def test_a_file_that_never_answers_holds_back_only_who_asks_for_it() -> None:
    """A FIFO over the accounts, which every child reads first. The guest is one of its own, for nobody in it can undo that."""

    async def test(place: Place) -> None:
        await place.sh("mkfifo /tmp/fifo && mount --bind /tmp/fifo /etc/passwd", user="root")
        look = files.FileStat(b"/tmp", None, follow=True)
        async with await place.session.open("file_stat", look, finish=True) as stalled:
            await place.session.call("noop", guest.Empty())
            assert await place.processes() == 1, "the child waits"
            await stalled.reset("unavailable", "enough")
        await settled(place)

    with bare.running("tcg") as machine:
        asyncio.run(on(machine, test))


def test_who_no_longer_watches_leaves_no_process(run: Run) -> None:
    async def test(place: Place) -> None:
        for _ in range(3):
            async with watching(place.session, b"/tmp"):
                assert await place.sh(f"awk '{_CHILDREN}' /proc/[0-9]*/status") != ""
        await settled(place)

    run(test)


def test_a_watch_that_nobody_reads_tells_that_it_lost_something(run: Run) -> None:
    async def test(place: Place) -> None:
        await place.sh("mkdir -p /tmp/flood")
        async with watching(place.session, b"/tmp/flood") as stream:
            # More than its credit and the kernel's queue hold.
            make = "seq -f 'a-name-that-takes-some-place-%06g' 1 15000 | xargs touch"
            await place.sh(f"cd /tmp/flood && for round in 1 2 3; do {make}; rm -rf /tmp/flood/*; done")
            lost = False
            while not lost:
                message = guest.decode((await anext(stream)).payload)
                lost = isinstance(message, files.Overflow)
            await place.sh("mkdir /tmp/flood/after && sleep 0.1 && touch /tmp/flood/after/all")
            await until(stream, "created after/all")
        await place.sh("rm -r /tmp/flood")

    run(test)


def test_a_kernel_without_more_watches_is_named(run: Run) -> None:
    async def test(place: Place) -> None:
        before = (await place.sh("cat /proc/sys/fs/inotify/max_user_watches")).strip()
        await place.sh("mkdir -p /tmp/narrow/$(seq -s / 1 20) && echo 10 > /proc/sys/fs/inotify/max_user_watches", user="root")
        with refused("no_capacity", "fs.inotify.max_user_watches"):
            async with watching(place.session, b"/tmp/narrow"):
                pass
        await place.sh(f"echo {before} > /proc/sys/fs/inotify/max_user_watches; rm -r /tmp/narrow", user="root")

    run(test)


_SERVER = "python3 -m http.server {port} --bind {host} --directory /tmp >/dev/null 2>&1"
_HALF = """
import socket, struct
server = socket.create_server(('127.0.0.1', 8083))
print('ready', flush=True)
one = server.accept()[0]
count = 0
while data := one.recv(65536): count += len(data)
one.sendall(b'%d' % count)
one.close()
early = server.accept()[0]
early.sendall(b'bye')
early.shutdown(socket.SHUT_WR)
count = 0
while data := early.recv(65536): count += len(data)
print(count, flush=True)
two = server.accept()[0]
two.recv(1)
two.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
two.close()
"""


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 8081), ("::1", 8082)])
def test_a_port_of_the_guest_is_reached(run: Run, host: str, port: int) -> None:
    async def test(place: Place) -> None:
        await write(place.session, b"/tmp/served", b"x" * 3_000_000)
        serving = asyncio.create_task(place.sh(_SERVER.format(host=host, port=port), check=False))
        answer = b""
        while not answer:
            with suppress(SpaceError):
                async with connected(place.session, port) as stream:
                    answer = await exchange(stream, b"GET /served HTTP/1.0\r\n\r\n")
            await asyncio.sleep(0.1)
        assert answer.startswith(b"HTTP/1.0 200")
        assert answer.endswith(b"x" * 3_000_000)
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    run(test)


def test_each_direction_of_a_connection_ends_by_itself_and_a_reset_is_told(run: Run) -> None:
    async def test(place: Place) -> None:
        await write(place.session, b"/tmp/half.py", _HALF.encode())
        serving = asyncio.create_task(place.sh("python3 /tmp/half.py"))
        back = b""
        while not back:
            with suppress(SpaceError):
                async with connected(place.session, 8083) as stream:
                    back = await exchange(stream, bytes(5_000_000))
            await asyncio.sleep(0.1)
        assert back == b"5000000"
        async with connected(place.session, 8083) as stream:
            assert b"".join([event.payload async for event in stream]) == b"bye"
            await stream.send(bytes(4_000_000))
            await stream.close()
        with refused("guest_error", "8083"):
            async with connected(place.session, 8083) as stream:
                await stream.send(b"xx")
                async for _ in stream:
                    pass
        assert await serving == "ready\n4000000\n", "what came behind the other side's end was taken"

    run(test)
