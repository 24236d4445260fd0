"""Single files over both forms of the SDK: what arrives whole, what a broken connection costs, what a cancelled write leaves."""

from __future__ import annotations

import asyncio
import io
import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from space import AsyncSandbox, Sandbox
from space.model.errors import Conflict, InvalidArgument, NotFound, ProtocolError, StreamCut, Unavailable
from space.model.files import FileChange
from space.sdk import Client
from space.sdk.content import Reading
from space.sdk.testing import MockServer

Opened = Callable[[MockServer], Any]
pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def server() -> MockServer:
    return MockServer()


def test_what_is_written_is_read(server: MockServer, opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"from a file" * 100_000)

    async def scenario() -> None:
        async with opened(server) as sandbox:
            files = sandbox.files
            info = await files.write("/srv/a", "größe", mode=0o640)
            assert (info.name, info.kind, info.size, info.mode) == ("a", "file", 7, 0o640)
            assert await files.read_text("/srv/a") == "größe"
            await files.write("/srv/a", b"!", append=True)
            assert await files.read("/srv/a") == "größe!".encode()
            with (tmp_path / "local").open("rb") as local:
                assert (await files.write("b", local)).size == 1_100_000
            assert await files.read("/home/user/b") == (tmp_path / "local").read_bytes()
            await files.write("c", [b"one ", b"", b"two"])
            await files.write("d", io.BytesIO(b"three"))
            await files.write("e", b"")
            assert [await files.read(name) for name in "cde"] == [b"one two", b"three", b""]
            with pytest.raises(InvalidArgument, match="rb"):
                await files.write("f", io.StringIO("text"))
            assert not await files.exists("f")

    asyncio.run(scenario())


def test_a_part_of_a_file(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            files = sandbox.files
            await files.write("/srv/a", b"0123456789")
            assert await files.read("/srv/a", offset=3) == b"3456789"
            assert await files.read("/srv/a", offset=3, length=4) == b"3456"
            assert await files.read("/srv/a", length=4) == b"0123"
            assert await files.read("/srv/a", offset=8, length=100) == b"89"
            assert await files.read("/srv/a", offset=10) == b""
            assert await files.read("/srv/a", length=0) == b""
            with pytest.raises(NotFound):
                await files.read("/srv/none", length=0)
            with pytest.raises(InvalidArgument, match="negative"):
                await files.read("/srv/a", offset=-1)

    asyncio.run(scenario())


def test_reading_goes_on_after_a_break_where_it_stood(server: MockServer, opened: Opened) -> None:
    data = random.Random(1).randbytes(400_000)

    async def scenario() -> None:
        async with opened(server) as sandbox:
            await sandbox.files.write("/srv/a", data)
            for after in (1, 65_536, 99_999, 7):
                server.cut_next(after, path="/files/content")
            assert await sandbox.files.read("/srv/a") == data
            server.cut_next(10, path="/files/content")
            assert await sandbox.files.read("/srv/a", offset=100, length=1000) == data[100:1100]
            before = len(server.requests)
            for _ in range(10):
                server.cut_next(0, path="/files/content")
            with pytest.raises(StreamCut):
                await sandbox.files.read("/srv/a")
            assert len(server.requests) == before + 4

    asyncio.run(scenario())


def test_a_file_that_changes_while_it_is_read_over_two_connections_is_a_conflict(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            await sandbox.files.write("/srv/a", b"a" * 200_000)
            server.cut_next(70_000, path="/files/content")
            pieces = sandbox.files.stream("/srv/a")
            taken = [await anext(pieces)]
            server.sandboxes[sandbox.id].files["/srv/a"] = b"b" * 200_000
            with pytest.raises(Conflict, match="another"):
                await _rest(pieces, taken)
            assert b"".join(taken) == b"a" * 70_000

    asyncio.run(scenario())


async def _rest(pieces: AsyncIterator[bytes], taken: list[bytes]) -> None:
    async for piece in pieces:
        taken.append(piece)  # noqa: PERF401  # those before the fault are wanted too


def test_a_write_whose_answer_was_lost_is_repeated_only_where_twice_is_once(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            lost = httpx.ReadError("reset")
            server.fail_next(lost, path="/files/content", after=True)
            await sandbox.files.write("/srv/a", b"a" * 300_000)
            for again in ({"append": True}, {"exclusive": True}):
                server.fail_next(lost, path="/files/content", after=True)
                with pytest.raises(StreamCut):
                    await sandbox.files.write("/srv/b", b"b", **again)
                await sandbox.files.remove("/srv/b")
            server.fail_next(lost, path="/files/content", after=True)
            with pytest.raises(StreamCut):
                await sandbox.files.write("/srv/c", io.BytesIO(b"c"))

    asyncio.run(scenario())


def test_a_write_that_arrived_otherwise_is_an_error(server: MockServer) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if request.method == "PUT":
            return httpx.Response(200, json={**response.json(), "crc32": zlib.crc32(b"other")})
        return response

    client = Client(api_url=server.url, api_key=server.key, transport=httpx.MockTransport(handle))
    with Sandbox.create(client=client) as sandbox, pytest.raises(StreamCut, match="write the file again"):
        sandbox.files.write("/srv/a", b"a")


def test_an_error_of_what_is_sent_comes_out_and_writes_nothing(server: MockServer, opened: Opened) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    async def scenario() -> None:
        async with opened(server) as sandbox:
            with pytest.raises(ZeroDivisionError):
                await sandbox.files.write("/srv/a", pieces())
            assert not await sandbox.files.exists("/srv/a")

    asyncio.run(scenario())


def test_what_is_sent_may_itself_be_awaited(server: MockServer) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            await asyncio.sleep(0)
            yield str(number).encode()

    async def scenario() -> None:
        async with server.async_client() as client, await AsyncSandbox.create(client=client) as sandbox:
            assert (await sandbox.files.write("/srv/a", pieces())).size == 3
            assert await sandbox.files.read("/srv/a") == b"012"

    asyncio.run(scenario())


def test_a_file_is_sent_and_read_in_pieces_without_being_held(server: MockServer) -> None:
    sizes: list[int] = []

    class Long(io.RawIOBase):
        left = 64 << 20

        def read(self, size: int = -1) -> bytes:
            some = min(size, self.left)
            self.left -= some
            return bytes(some)

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method != "PUT":
                return await server.transport.handle_async_request(request)
            crc = 0
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for piece in request.stream:
                sizes.append(len(piece))
                crc = zlib.crc32(piece, crc)
            server.sandboxes[request.url.path.split("/")[3]].files["/srv/a"] = b""
            info = (await server.transport.handle_async_request(httpx.Request("GET", _stat(request), headers=request.headers))).json()
            return httpx.Response(200, json={**info, "bytes_written": sum(sizes), "crc32": crc})

    async def scenario() -> None:
        async with await AsyncSandbox.create(api_url=server.url, api_key=server.key, transport=Transport()) as sandbox:
            await sandbox.files.write("/srv/a", Long())

    asyncio.run(scenario())
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 1 << 20


def _stat(request: httpx.Request) -> str:
    return str(request.url).replace("/content", "/stat")


def test_names(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            files = sandbox.files
            assert (await files.mkdir("/srv/d/e", parents=True, mode=0o700)).mode == 0o700
            odd = "/srv/d/-r\n \udcff ü?&#%2f"
            await files.write(odd, b"x")
            await files.symlink("/srv/d/link", odd)
            assert [info.name async for info in files.list("/srv/d")] == [odd[7:], "e", "link"]
            assert await files.read("/srv/d/link") == b"x"
            assert (await files.stat("/srv/d/link")).kind == "file"
            assert (await files.stat("/srv/d/link", follow=False)).target == odd
            assert (await files.chmod(odd, 0o600)).mode == 0o600
            assert (await files.chown(odd, owner="root", group=0)).owner == "root"
            with pytest.raises(Conflict):
                await files.move(odd, "/srv/d/link")
            assert (await files.move(odd, "/srv/d/f", replace=True)).name == "f"
            with pytest.raises(Conflict, match="not empty"):
                await files.remove("/srv/d")
            with pytest.raises(Conflict, match="directory"):
                await files.read("/srv/d")
            await files.remove("/srv/d", recursive=True)
            await files.remove("/srv/d", missing_ok=True)
            with pytest.raises(NotFound):
                await files.remove("/srv/d")
            with pytest.raises(NotFound):
                await files.write("/srv/d/f", b"")
            await files.write("/srv/d/f", b"", parents=True)
            with pytest.raises(Conflict, match="already"):
                await files.write("/srv/d/f", b"", exclusive=True)
            with pytest.raises(InvalidArgument, match="empty"):
                await files.stat("")

    asyncio.run(scenario())


def test_every_page_of_a_directory_is_listed(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            for name in ("b/1", "b/c/2", "a", "z"):
                await sandbox.files.write(f"/srv/{name}", b"", parents=True)
            assert [info.name async for info in sandbox.files.list("/srv")] == ["a", "b", "z"]
            assert [info.name async for info in sandbox.files.list("/srv", depth=3)] == ["a", "b", "b/1", "b/c", "b/c/2", "z"]

    asyncio.run(scenario())


def test_whether_a_file_exists_is_not_said_of_a_sandbox_that_does_not(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            assert not await sandbox.files.exists("/srv/a")
            await sandbox.delete()
            with pytest.raises(NotFound):
                await sandbox.files.exists("/srv/a")

    asyncio.run(scenario())


def test_a_watch_misses_nothing_from_when_it_is_entered(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            files = sandbox.files
            await files.mkdir("/srv/d")
            async with files.watch("/srv/d") as flat, files.watch("/srv/d", recursive=True) as deep:
                await files.write("/srv/d/a", b"")
                await files.write("/srv/d/a", b"1")
                await files.move("/srv/d/a", "/srv/d/b")
                await files.mkdir("/srv/d/e")
                await files.write("/srv/d/e/f", b"")
                await files.move("/srv/d/b", "/srv/c")
                await files.remove("/srv/d", recursive=True)
                top = [FileChange("created", "a"), FileChange("modified", "a"), FileChange("moved", "b", "a")]
                top += [FileChange("created", "e", directory=True)]
                end = [FileChange("deleted", "b"), FileChange("deleted", "", directory=True)]
                assert [change async for change in flat] == [*top, *end]
                assert [change async for change in deep] == [*top, FileChange("created", "e/f"), *end]

    asyncio.run(scenario())


def test_a_watch_that_breaks_off_is_told(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            server.cut_next(30, path="/files/watch")
            async with sandbox.files.watch("/srv") as changes:
                await sandbox.files.write("/srv/a", b"")
                with pytest.raises(StreamCut):
                    await anext(changes)
            with pytest.raises(NotFound):
                await sandbox.files.watch("/srv/x/y").__aenter__()
            server.fail_next(Unavailable("no"), path="/files/watch")
            with pytest.raises(Unavailable):
                await sandbox.files.watch("/srv").__aenter__()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "headers", "fault"),
    [
        (200, {}, ProtocolError),
        (206, {}, ProtocolError),
        (206, {"content-range": "bytes 4-9/10"}, ProtocolError),
        (206, {"content-range": "bytes five-9/10"}, ProtocolError),
    ],
)
def test_another_range_than_was_asked_for_is_no_answer(status: int, headers: dict[str, str], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        Reading(5).begin(status, headers)


def test_without_a_tag_nobody_says_that_it_is_the_same_file() -> None:
    reading = Reading()
    reading.begin(200, {"content-length": "10"})
    reading.take(b"12345")
    with pytest.raises(StreamCut, match="5 bytes early"):
        reading.finish()
    assert reading.wait_after(StreamCut("cut")) is None


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), StreamCut("cut"), httpx.ReadError("reset")])
def test_an_upload_that_fails_leaves_nothing_of_what_was_not_there(server: MockServer, tmp_path: Path, fault: BaseException) -> None:
    (tmp_path / "tree/d").mkdir(parents=True)
    (tmp_path / "tree/d/f").write_bytes(b"new")
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        files = server.sandboxes[sandbox.id].files
        sandbox.files.write("/srv/f", b"old")
        sandbox.files.write("/srv/there/old", b"old", parents=True)
        for source, target, left in (
            ("tree", "/srv/tree", {}),
            ("tree/d/f", "/srv/f", {}),
            ("tree", "/srv/there", {"/srv/there/d/f": b"new"}),
        ):
            server.fail_next(fault, path="/tree", after=True)
            with pytest.raises((KeyboardInterrupt, StreamCut)):
                sandbox.upload(tmp_path / source, target)
            assert files == {"/srv/f": b"old", "/srv/there/old": b"old"} | left
        sandbox.upload(tmp_path / "tree/d/f", "/srv/f")
        assert files["/srv/f"] == b"new"
