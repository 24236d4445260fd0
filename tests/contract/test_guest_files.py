"""One contract for files, watches and ports: the fake guest's, and the daemon's in a real guest (marker `machine`)."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from space.bench import bare
from space.core.wire import files, guest
from space.model.errors import InvalidArgument, SpaceError
from space.rpc.session import Session
from space.testing.filecalls import HERE, call, connected, exchange, page, read, remove, until, watching, word, write
from space.testing.guest import FakeGuest

BOOT = 90.0
Test = Callable[[Session], Awaitable[None]]
Run = Callable[[Test], None]
NAMES = [b" a  b ", "ü\u4e2d".encode(), b"a\nb", b"-rf", b"\xff\xfe", b"x" * 255, b"'\"$(x)"]


def on_fake(test: Test) -> None:
    async def main() -> None:
        fake = FakeGuest()
        (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
        await fake.serve(theirs, their_bulk)
        session = await Session.open_guest(control, bulk, 1, reconnect=False)
        try:
            async with asyncio.timeout(20):
                await test(session)
        finally:
            await session.aclose()
            fake.kill()

    asyncio.run(main())


@pytest.fixture(scope="module")
def real() -> Iterator[Run]:
    """One guest for all of them."""
    with bare.running("tcg") as machine:

        def run(test: Test) -> None:
            async def main() -> None:
                async with asyncio.timeout(BOOT):
                    session = await Session.open_guest(*machine.connect(), 1, reconnect=True)
                try:
                    request = guest.Configure(time.time_ns(), os.urandom(64), "files", [], 1)
                    guest.expect(guest.Configured, await session.call("configure", request))
                    async with asyncio.timeout(60):
                        await test(session)
                finally:
                    await session.aclose()

            asyncio.run(main())

        yield run


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.machine)])
def run(request: pytest.FixtureRequest) -> Run:
    return on_fake if request.param == "fake" else request.getfixturevalue("real")


@contextmanager
def refused(code: str, words: str = "") -> Iterator[None]:
    with pytest.raises(SpaceError) as error:
        yield
    assert error.value.code == code, error.value
    assert words in error.value.message


def link(path: bytes, target: bytes, *, replace: bool = False) -> files.FileSymlink:
    return files.FileSymlink(path, None, target, replace)


def test_a_file_comes_back_as_it_went_whatever_it_is_called(run: Run) -> None:
    async def test(session: Session) -> None:
        for name in NAMES:
            path = b"/tmp/odd/" + name
            sent = os.urandom(18 << 10)
            file = await write(session, path, sent, mode=0o600, parents=True)
            assert (file.name, file.kind, file.size, file.mode, file.owner) == (name, "file", len(sent), 0o600, "user")
            assert await call(session, "file_stat", files.FileStat(path, None, follow=False)) == file
            assert await read(session, path) == sent
            assert await read(session, path, 3, 5) == sent[3:8]
            assert await read(session, path, 1 << 40) == b""
        listed, more = await page(session, b"/tmp/odd")
        assert ([file.name for file in listed], more) == (sorted(NAMES), False)
        await remove(session, b"/tmp/odd", recursive=True)

    run(test)


def test_empty_and_large_files_are_whole(run: Run) -> None:
    async def test(session: Session) -> None:
        for size in (0, 1, 262_144, 16 << 20):
            sent = os.urandom(size)
            assert (await write(session, b"sized", sent)).size == size
            assert await read(session, b"/home/user/sized") == sent
        await remove(session, b"sized")

    run(test)


def test_a_file_that_is_replaced_keeps_its_mode_and_more_goes_to_its_end(run: Run) -> None:
    async def test(session: Session) -> None:
        await write(session, b"/tmp/kept", b"old", mode=0o640)
        assert (await write(session, b"/tmp/kept", b"new")).mode == 0o640
        assert (await write(session, b"/tmp/kept", b"er", append=True)).size == 5
        assert await read(session, b"/tmp/kept") == b"newer"
        assert (await write(session, b"/tmp/fresh", b"", append=True)).mode == 0o644

    run(test)


def test_what_cannot_be_written_changes_nothing(run: Run) -> None:
    async def test(session: Session) -> None:
        await write(session, b"/tmp/d/old", b"old", parents=True)
        for path, code, options in (
            (b"/tmp/d/old", "conflict", {"exclusive": True}),
            (b"/tmp/d/no/old", "not_found", {}),
            (b"/tmp/d", "conflict", {}),
            (b"/tmp/d/old", "invalid_argument", {"user": "nobody-of-this-name"}),
            (b"", "invalid_argument", {}),
        ):
            with refused(code):
                await write(session, path, b"new", **options)
        for content in (files.Content(3, 1), files.Content(4, 0), None):
            request = msgspec.structs.replace(HERE, path=b"/tmp/d/old")
            async with await session.open("file_write", request, bulk=True) as stream:
                await stream.send(b"new")
                if content is not None:
                    await stream.send_message(content)
                await stream.close()
                with pytest.raises(InvalidArgument):
                    await anext(stream)
        assert await read(session, b"/tmp/d/old") == b"old"
        assert [file.name for file in (await page(session, b"/tmp/d"))[0]] == [b"old"]
        with refused("conflict", "directory"):
            await read(session, b"/tmp/d")
        with refused("not_found"):
            await read(session, b"/tmp/d/no")

    run(test)


def test_links_are_followed_within_the_guest(run: Run) -> None:
    async def test(session: Session) -> None:
        await write(session, b"/tmp/real", b"1")
        made = await call(session, "file_symlink", link(b"link", b"/tmp/real"))
        assert (made.kind, made.target, made.name) == ("symlink", b"/tmp/real", b"link")
        await write(session, b"link", b"22")
        assert await read(session, b"/tmp/real") == b"22"
        assert (await call(session, "file_stat", files.FileStat(b"link", None, follow=True))).kind == "file"
        with refused("conflict"):
            await call(session, "file_symlink", link(b"link", b"x"))
        await call(session, "file_symlink", link(b"link", b"../../../../../nowhere", replace=True))
        with refused("not_found"):
            await read(session, b"link")
        await remove(session, b"link")

    run(test)


def test_a_listing_goes_on_behind_its_last_name(run: Run) -> None:
    async def test(session: Session) -> None:
        names = [b"a", b"a/b", b"a/b/c", b"a-b", b"b", b"\xff"]
        for name in (b"a/b/c", b"a-b", b"b", b"\xff"):
            await write(session, b"/tmp/x/" + name, b"", parents=True)
        assert [file.name for file in (await page(session, b"/tmp/x", 9))[0]] == names
        for limit in (1, 2, 5):
            found: list[bytes] = []
            more = True
            while more:
                listed, more = await page(session, b"/tmp/x", 9, found[-1] if found else None, limit)
                found += [file.name for file in listed]
            assert found == names
        with refused("conflict"):
            await page(session, b"/tmp/x/b")
        with refused("not_found"):
            await page(session, b"/tmp/x/c")

    run(test)


def test_directories_are_made_moved_changed_and_removed(run: Run) -> None:
    async def test(session: Session) -> None:
        made = await call(session, "file_mkdir", files.FileMkdir(b"d/e", None, 0o700, parents=True))
        assert (made.kind, made.mode) == ("directory", 0o700)
        for to in (b"/tmp", b"d/e"):
            with refused("conflict"):
                await call(session, "file_mkdir", files.FileMkdir(to, None, None, parents=False))
        with refused("conflict"):
            await call(session, "file_move", files.FileMove(b"d", None, b"/tmp", replace=False))
        assert (await call(session, "file_move", files.FileMove(b"d", None, b"f", replace=False))).name == b"f"
        with refused("conflict"):
            await remove(session, b"f")
        await remove(session, b"f", recursive=True)
        await remove(session, b"f", missing_ok=True)
        with refused("not_found"):
            await remove(session, b"f", recursive=True)

    run(test)


def test_modes_and_owners_are_changed_below(run: Run) -> None:
    async def test(session: Session) -> None:
        await write(session, b"/tmp/o/p/q", b"", parents=True)
        assert (await call(session, "file_chmod", files.FileChmod(b"/tmp/o", None, 0o755, recursive=True))).mode == 0o755
        assert [file.mode for file in (await page(session, b"/tmp/o", 9))[0]] == [0o755, 0o755]
        await call(session, "file_chown", files.FileChown(b"/tmp/o", "root", "root", "7", recursive=True))
        assert [(file.owner, file.gid) for file in (await page(session, b"/tmp/o", 9))[0]] == [("root", 7)] * 2
        with refused("invalid_argument"):
            await call(session, "file_chown", files.FileChown(b"/tmp/o", "root", "nobody-of-this-name", None, recursive=False))

    run(test)


def test_a_watch_hears_of_what_happens_below_it(run: Run) -> None:
    async def test(session: Session) -> None:
        await call(session, "file_mkdir", files.FileMkdir(b"/tmp/w/in", None, None, parents=True))
        async with watching(session, b"/tmp/w") as stream:
            await write(session, b"/tmp/w/in/a", b"")
            await write(session, b"/tmp/w/in/a", b"1")
            await call(session, "file_move", files.FileMove(b"/tmp/w/in/a", None, b"/tmp/w/b", replace=False))
            await call(session, "file_move", files.FileMove(b"/tmp/w/b", None, b"/tmp/b", replace=False))
            found = await until(stream, "deleted b")
            unlike = [one for one in found if not one.startswith("attributes")]
            assert unlike == ["created in/a", "modified in/a", "moved in/a b", "deleted b"]
            await remove(session, b"/tmp/w", recursive=True)
            last = [change async for event in stream for change in guest.expect(files.Changes, event.payload).changes]
            assert word(last[-1]) == "deleted/ ", "and then it is over"
        with refused("not_found"):
            async with watching(session, b"/tmp/w"):
                pass

    run(test)


def test_nothing_listens_on_a_port_of_nobody(run: Run) -> None:
    async def test(session: Session) -> None:
        with refused("not_found", "port 81"):
            async with connected(session, 81):
                pass

    run(test)


def test_the_fakes_port_echoes_until_both_have_ended() -> None:
    async def test(session: Session) -> None:
        async with connected(session, 7) as stream:
            assert await exchange(stream, b"x" * 3_000_000) == b"x" * 3_000_000

    on_fake(test)
