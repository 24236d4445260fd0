"""Promises about output, readers and watches, on a real guest: byte for byte, from any offset, and nobody holds up another."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing

import pytest

import space
from space import AsyncClient, AsyncSandbox, Gap, Output
from space.model.errors import Conflict
from space.model.files import FileChange
from space.sdk import OutputLost
from space.serve.private import Served
from space.testing.simcontrol import until

MIB = 1 << 20
LINES = 100_000
# A log as a program writes it: in bursts, for some seconds. argv[1]: how many lines.
LOG = """
import sys, time
for number in range(int(sys.argv[1])):
    sys.stdout.write(f"{number:06d} the quick brown fox jumps over the lazy dog\\n")
    if number % 2000 == 0:
        sys.stdout.flush()
        time.sleep(0.02)
"""
# Numbers without end, then as many bytes as were said.
COUNTER = """
import signal, sys, time
going = True
def stop(*_):
    global going
    going = False
signal.signal(signal.SIGTERM, stop)
number = 0
while going:
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
    time.sleep(0.002)
"""
# A line a second for so many seconds, into a file that the others follow: a hundred programs that computed would starve each other.
TICKS = "for number in $(seq {seconds}); do echo $number; sleep 1; done > ticks; echo end >> ticks"


# What was typed and how large the screen is, in its last line, drawn anew with every key and every change of the size.
SCREEN = """
import curses
def main(screen):
    typed = ""
    screen.timeout(500)  # a signal just before it waits for a key does not wake curses
    while True:
        rows, columns = screen.getmaxyx()
        screen.clear()
        screen.addstr(rows - 1, 0, f"[{rows}x{columns}:{typed}]")
        screen.refresh()
        key = screen.getch()
        if key == 10:
            return
        if key not in (curses.KEY_RESIZE, -1):
            typed += chr(key)
curses.wrapper(main)
"""


@pytest.fixture(scope="module")
def roomy(client: space.Client) -> Iterator[space.Sandbox]:
    """A sandbox with room for many processes; each test leaves it without any."""
    with space.Sandbox.create(client=client, memory_mib=1024) as found:
        yield found


def within(served: Served, roomy: space.Sandbox, work: Callable[[AsyncSandbox], Awaitable[None]]) -> None:
    """Work on it asynchronously, with a client of its own."""

    async def run() -> None:
        async with AsyncClient(api_url=served.url, api_key=served.api_key) as client:
            try:
                await work(await AsyncSandbox.connect(roomy.id, client=client))
            finally:
                for process in roomy.processes():
                    roomy.process(process.id).delete()

    asyncio.run(run())


def log(lines: int) -> bytes:
    return b"".join(b"%06d the quick brown fox jumps over the lazy dog\n" % number for number in range(lines))


def test_a_log_of_a_hundred_thousand_lines_is_followed_live_to_its_end_byte_for_byte(served: Served, roomy: space.Sandbox) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        process = await sandbox.start(["python3", "-c", LOG, str(LINES)])
        said, live = bytearray(), 0
        async for item in process.output():
            assert isinstance(item, Output)
            assert item.offset == len(said)
            said += item.data
            if live == 0:
                live = len(said)
                assert (await process.info()).state == "running", "it is followed while it runs"
        assert hashlib.sha256(said).digest() == hashlib.sha256(log(LINES)).digest()
        assert (await process.wait()).code == 0

    within(served, roomy, work)


def test_a_thousand_reattachments_within_a_minute_lose_nothing(served: Served, roomy: space.Sandbox) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        process = await sandbox.start(["python3", "-c", COUNTER])
        said = bytearray()
        begun = time.monotonic()
        for _ in range(1000):
            async with aclosing(process.output(stdout=len(said))) as pieces:
                item = await anext(pieces)
                assert isinstance(item, Output)
                assert item.offset == len(said)
                said += item.data
        took = time.monotonic() - begun
        await process.signal("TERM")
        async for item in process.output(stdout=len(said)):
            assert isinstance(item, Output)
            said += item.data
        lines = said.count(b"\n")
        print(f"1,000 re-attachments in {took:.1f} s, {lines} lines")
        assert said == b"".join(b"%d\n" % number for number in range(lines))
        assert took < 60

    within(served, roomy, work)


def stopped_reader(served: Served, roomy: space.Sandbox, seconds: int) -> None:
    """A hundred streams; one reader stops while the others follow theirs for so long, and then reads all that it has missed."""
    slowest = 0.0
    ticks = b"".join(b"%d\n" % number for number in range(1, seconds + 1)) + b"end\n"

    async def follow(process: space.AsyncProcess) -> None:
        nonlocal slowest
        said, last = bytearray(), time.monotonic()
        async with aclosing(process.output()) as pieces:
            async for item in pieces:
                assert isinstance(item, Output)
                said += item.data
                slowest, last = max(slowest, time.monotonic() - last), time.monotonic()
                if said.endswith(b"end\n"):
                    break
        assert said == ticks

    async def work(sandbox: AsyncSandbox) -> None:
        await sandbox.files.write("ticks", b"")
        followed = [await sandbox.start(["tail", "-n", "+1", "-f", "ticks"]) for _ in range(99)]
        torrent = await sandbox.start(["python3", "-c", LOG, str(LINES)])
        async with aclosing(torrent.output()) as stopped:
            first = await anext(stopped)
            stood = time.monotonic()
            assert isinstance(first, Output)
            said = bytearray(first.data)
            ticker = await sandbox.start(TICKS.format(seconds=seconds))
            await asyncio.gather(*map(follow, followed))
            assert (await ticker.wait()).code == 0
            assert (await torrent.wait()).code == 0, "who does not read holds up nobody, not even what it reads"
            stood = time.monotonic() - stood
            async for item in stopped:
                assert isinstance(item, Output)
                assert item.offset == len(said)
                said += item.data
        assert said == log(LINES)
        print(f"one reader stood still for {stood:.0f} s; the longest wait of 99 others was {slowest:.1f} s")
        assert slowest < 15, "they are told something every second, on a machine that has other things to do"

    within(served, roomy, work)


def test_of_a_hundred_streams_one_whose_reader_stops_disturbs_nobody(served: Served, roomy: space.Sandbox) -> None:
    stopped_reader(served, roomy, 10)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_of_a_hundred_streams_one_whose_reader_stops_for_a_minute_disturbs_nobody(served: Served, roomy: space.Sandbox) -> None:
    stopped_reader(served, roomy, 65)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_five_hundred_processes_and_two_hundred_watchers_live_in_one_guest(served: Served, roomy: space.Sandbox) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        begun = time.monotonic()
        await sandbox.run("mkdir -p w && cd w && seq 200 | xargs mkdir", check=True)
        processes = [await sandbox.start(["cat"], stdin=True) for _ in range(500)]
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            watches = [await stack.enter_async_context(sandbox.files.watch(f"w/{number}")) for number in range(1, 201)]
            watched = time.monotonic()
            for number in range(5):
                asked = time.monotonic()
                await sandbox.noop()
                print(f"noop {number}: {(time.monotonic() - asked) * 1000:.0f} ms")
            await sandbox.run("for d in w/*; do : > $d/new; done", check=True)
            changes = await asyncio.gather(*(anext(watch) for watch in watches))
            assert {(change.kind, change.path) for change in changes if isinstance(change, FileChange)} == {("created", "new")}
            for number, process in enumerate(processes):
                await process.write_stdin(str(number), close=True)
            ended = await asyncio.gather(*(process.result() for process in processes[:50]))
            assert [result.text for result in ended] == [str(number) for number in range(50)]
            for process in processes:
                assert (await process.wait()).code == 0
        print(
            f"500 processes in {started - begun:.1f} s, 200 watches in {watched - started:.1f} s, all in {time.monotonic() - begun:.1f} s"
        )
        await sandbox.files.remove("w", recursive=True)

    within(served, roomy, work)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_hundred_megabytes_of_an_attached_run_are_exact(roomy: space.Sandbox) -> None:
    code = "import sys\nfor n in range(100): sys.stdout.buffer.write(bytes((n * 7 + i) & 255 for i in range(256)) * 4096)"
    heard, count, begun = hashlib.sha256(), 0, time.monotonic()

    def hear(piece: bytes) -> None:
        nonlocal count
        heard.update(piece)
        count += len(piece)

    assert roomy.run(["python3", "-c", code], on_stdout_bytes=hear, capture=False).exit_code == 0
    took = time.monotonic() - begun
    said = hashlib.sha256()
    for number in range(100):
        said.update(bytes((number * 7 + at) & 255 for at in range(256)) * 4096)
    assert (count, heard.digest()) == (100 * MIB, said.digest())
    print(f"100 MiB in {took:.1f} s, {100 / took:.0f} MiB/s")


def test_beyond_the_spools_quota_the_oldest_output_is_lost_and_told_by_offset_and_count(roomy: space.Sandbox) -> None:
    whole = log(20_000)
    process = roomy.start(["python3", "-c", LOG, "20000"], spool_bytes=256 << 10)
    assert process.wait().code == 0
    gap, *rest = process.output(stdout=0)
    assert isinstance(gap, Gap)
    assert (gap.stream, gap.offset) == ("stdout", 0)
    kept = b"".join(item.data for item in rest if isinstance(item, Output))
    assert 64 << 10 <= len(kept) <= 256 << 10
    assert kept == whole[gap.bytes :]
    with pytest.raises(OutputLost):
        process.result()
    process.delete()


def test_characters_are_whole_however_their_bytes_were_cut(roomy: space.Sandbox) -> None:
    text = "aß→𝄞" * 200
    code = f"import sys, time\nfor byte in {text.encode()!r}:\n sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush()"
    pieces: list[str] = []
    result = roomy.run(["python3", "-c", code], on_stdout=pieces.append)
    assert "".join(pieces) == text == result.text
    assert len(pieces) > 1
    assert "\ufffd" not in "".join(pieces)
    assert roomy.run(["printf", r"x\377y"], on_stdout=pieces.append).text == "x\ufffdy"


def test_a_client_that_leaves_abruptly_reads_on_from_its_offset_after_a_pause(served: Served, roomy: space.Sandbox) -> None:
    async def work(sandbox: AsyncSandbox) -> None:
        process = await sandbox.start(["python3", "-c", COUNTER])
        said = bytearray()
        async with AsyncClient(api_url=served.url, api_key=served.api_key) as other:
            again = await (await AsyncSandbox.connect(roomy.id, client=other)).process(process.id)
            item = await anext(again.output())  # and its connection is closed under it
            assert isinstance(item, Output)
            said += item.data
        await sandbox.pause()
        await sandbox.resume()
        before = (await process.info()).stdout_bytes

        async def went_on() -> bool:
            return (await process.info()).stdout_bytes > before

        await until(went_on, 20)
        await process.signal("TERM")
        async for item in process.output(stdout=len(said)):
            assert isinstance(item, Output)
            assert item.offset == len(said)
            said += item.data
        assert said == b"".join(b"%d\n" % number for number in range(said.count(b"\n")))

    within(served, roomy, work)


def test_the_end_of_input_and_a_reader_that_has_gone_are_told(roomy: space.Sandbox) -> None:
    assert roomy.run(["wc", "-c"], stdin=b"").text == "0\n"
    process = roomy.start(["head", "-c", "3"], stdin=True)
    process.write_stdin("abc")
    assert process.wait().code == 0
    with pytest.raises(Conflict):
        process.write_stdin("more")
    assert process.result().text == "abc"
    # In the guest, whoever writes to a reader that has gone learns it as ever.
    broken = roomy.run(["bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}"])
    assert broken.text == "y\n141\n"
    process.delete()


def test_a_full_screen_program_draws_and_takes_keys_and_a_new_size(roomy: space.Sandbox) -> None:
    with roomy.shell(["python3", "-c", SCREEN], rows=30, cols=90) as terminal:
        drawn = b""

        def draws(what: bytes) -> None:
            nonlocal drawn
            while what not in drawn:
                piece = next(terminal)
                assert isinstance(piece, Output)
                drawn += piece.data

        draws(b"[30x90:]")
        assert b"\x1b[?1049h" in drawn, "the other screen"
        terminal.send("keys")
        draws(b"[30x90:keys]")
        terminal.resize(40, 120)
        draws(b"[40x120:keys]")
        terminal.send("\r")
        draws(b"\x1b[?1049l")
        assert terminal.wait().code == 0
