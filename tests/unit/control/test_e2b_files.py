"""`filesystem.Filesystem` and `/files` over the wire, behind a simulated node: entries, uploads of every form, downloads, watches."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from space.control.e2b.envd import entries, roster, watchers
from space.control.e2b.envd.encodings import NotAcceptable, gzip_wanted
from space.control.e2b.envd.file_wire import permissions, timestamp
from space.testing.e2bcalls import Envd
from space.testing.simcontrol import World, dialogue, until
from space.testing.simfiles import SimFiles

FS = "filesystem.Filesystem/"
NONE: Mapping[str, str] = MappingProxyType({})
FIGURES = "ts cpu_count cpu_used_pct mem_total mem_used mem_cache mem_total_mib mem_used_mib disk_used disk_total"


async def a_sandbox(world: World) -> tuple[Envd, SimFiles]:
    envd = await Envd.create(world)
    return envd, world.node.sandboxes[envd.sandbox].files


async def upload(envd: Envd, path: str | None, status: int = 200, **request: Any) -> Any:
    async with envd.client() as client:
        answer = await client.post("/files", params={} if path is None else {"path": path}, **request)
    assert answer.status_code == status, answer.text
    return answer.json()


async def octets(envd: Envd, path: str, data: bytes, status: int = 200, headers: Mapping[str, str] = NONE) -> Any:
    return await upload(envd, path, status, content=data, headers={"Content-Type": "application/octet-stream", **headers})


async def download(envd: Envd, path: str, headers: Mapping[str, str] = NONE, user: str = "") -> httpx.Response:
    async with envd.client() as client:
        return await client.get("/files", params={"path": path, "username": user}, headers={"Accept-Encoding": "identity", **headers})


# -- entries ----------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_an_entry_is_told_as_their_clients_read_it(world: World) -> None:
    envd, files = await a_sandbox(world)
    await octets(envd, "dir/f", b"12345", headers={"X-Metadata-Author": "me"})
    entry = (await envd.ask(FS + "Stat", {"path": "dir/f"}))["entry"]
    assert entry | {"modifiedTime": ""} == {
        "name": "f", "type": "FILE_TYPE_FILE", "path": "/home/user/dir/f", "size": "5", "mode": 0o644, "permissions": "-rw-r--r--",
        "owner": "user", "group": "user", "modifiedTime": "", "metadata": {"author": "me"},
    }  # fmt: skip
    files.add(b"/home/user/link", "symlink", 0o777).target = b"dir/f"
    files.add(b"/home/user/broken", "symlink", 0o777).target = b"nowhere"
    entry = (await envd.ask(FS + "Stat", {"path": "~/link"}))["entry"]
    assert (entry["type"], entry["symlinkTarget"], entry["permissions"]) == ("FILE_TYPE_FILE", "/home/user/dir/f", "Lrwxrwxrwx")
    entry = (await envd.ask(FS + "Stat", {"path": "broken"}))["entry"]
    assert (entry["type"], entry["symlinkTarget"]) == ("FILE_TYPE_UNSPECIFIED", "/home/user/broken")
    assert (await envd.refused(FS + "Stat", {"path": "/no"}))[:2] == (404, "not_found")
    assert (await envd.refused(FS + "Stat", {"path": "x"}, user="nobody"))[2] == "invalid username: 'nobody'"
    assert (await envd.refused(FS + "Stat", {"path": "a\0b"}))[:2] == (400, "invalid_argument")


@dialogue()
async def test_directories_are_made_listed_moved_and_removed(world: World) -> None:
    envd, files = await a_sandbox(world)
    made = (await envd.ask(FS + "MakeDir", {"path": "a/b"}))["entry"]
    assert (made["path"], made["type"], made["permissions"]) == ("/home/user/a/b", "FILE_TYPE_DIRECTORY", "drwxr-xr-x")
    assert (await envd.refused(FS + "MakeDir", {"path": "a/b"}))[:2] == (409, "already_exists")
    await octets(envd, "a/b/f", b"")
    assert (await envd.refused(FS + "MakeDir", {"path": "a/b/f"}))[:2] == (400, "invalid_argument")

    async def names(path: str, depth: int = 0) -> list[str]:
        return [entry["path"] for entry in (await envd.ask(FS + "ListDir", {"path": path, "depth": depth}))["entries"]]

    assert await names("a") == ["/home/user/a/b"]
    assert await names("/home/user", 3) == ["/home/user/a", "/home/user/a/b", "/home/user/a/b/f"]
    files.add(b"/home/user/link", "symlink", 0o777).target = b"a"
    assert await names("link", 2) == ["/home/user/link/b", "/home/user/link/b/f"]
    assert (await envd.refused(FS + "ListDir", {"path": "a/b/f"}))[:2] == (400, "invalid_argument")
    assert (await envd.refused(FS + "ListDir", {"path": "no"}))[:2] == (404, "not_found")
    moved = (await envd.ask(FS + "Move", {"source": "a/b/f", "destination": "new/place/g"}))["entry"]
    assert moved["path"] == "/home/user/new/place/g"
    assert (await envd.refused(FS + "Move", {"source": "a/b/f", "destination": "x"}))[:2] == (404, "not_found")
    for _ in range(2):
        assert await envd.ask(FS + "Remove", {"path": "new"}) == {}
    assert (await envd.refused(FS + "Stat", {"path": "new"}))[1] == "not_found"


def test_modes_and_times_are_written_as_their_clients_read_them() -> None:
    assert permissions("directory", 0o1777) == "dtrwxrwxrwx"
    assert permissions("file", 0o4755) == "urwxr-xr-x"
    assert permissions("character", 0o620) == "Dcrw--w----"
    assert timestamp(1_700_000_000_000_000_001) == "2023-11-14T22:13:20.000000001Z"
    assert timestamp(-(2**63)) == "1677-09-21T00:12:43.145224192Z"


# -- in and out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_537, 3_000_001])
@dialogue()
async def test_a_file_goes_in_and_out_in_every_form(world: World, size: int) -> None:
    envd, files = await a_sandbox(world)
    data = (b"\r\n--" + bytes(range(251)))[: size % 255] + (bytes(range(251)) * (size // 251 + 1))[: size - size % 255]
    told = await octets(envd, "/tmp/plain", data)
    assert told == [{"path": "/tmp/plain", "name": "plain", "type": "file"}]
    await octets(envd, "/tmp/packed", gzip.compress(data), headers={"Content-Encoding": "gzip"})
    await octets(envd, "/tmp/members", gzip.compress(data[:7]) + gzip.compress(data[7:]), headers={"Content-Encoding": "gzip"})
    await upload(envd, "/tmp/part", files={"file": ("ignored", data)})
    names = ["plain", "packed", "members", "part"]
    assert {name: files.inodes[f"/tmp/{name}".encode()].data == data for name in names} == dict.fromkeys(names, True)
    assert files.inodes[b"/tmp/plain"].owner == "user"
    answer = await download(envd, "/tmp/plain")
    assert answer.content == data
    async with envd.client() as client:
        head = {"Accept-Encoding": "gzip"}
        answer = await client.get("/files", params={"path": "/tmp/plain"}, headers=head)
    assert (answer.headers["content-encoding"], answer.content == data) == ("gzip", True)


@dialogue()
async def test_several_files_go_in_one_body_each_to_its_name(world: World) -> None:
    envd, files = await a_sandbox(world)
    parts = [("file", ("one", b"1")), ("other", ("x", b"no file")), ("file", ('/tmp/t "wo"', b"22")), ("file", ("d/three", b""))]
    told = await upload(envd, None, files=parts)
    assert [one["path"] for one in told] == ["/home/user/one", '/tmp/t "wo"', "/home/user/d/three"]
    assert files.inodes[b'/tmp/t "wo"'].data == b"22"
    twice = await upload(envd, None, 400, files=[("file", ("x", b"1")), ("file", ("/home/user/x", b"2"))])
    assert "same path" in twice["message"]


@dialogue()
async def test_metadata_is_the_whole_set_of_the_last_upload(world: World) -> None:
    envd, _ = await a_sandbox(world)
    told = await octets(envd, "f", b"1", headers={"X-Metadata-Author": "me", "X-Metadata-b": ""})
    assert told[0]["metadata"] == {"author": "me", "b": ""}
    assert "metadata" not in (await octets(envd, "f", b"2"))[0]
    for name, value in (("X-Metadata-" + "k" * 247, "v"), ("X-Metadata-a", "v" * 4096), ("X-Metadata-", "v"), ("X-Metadata-u", "ü")):
        async with envd.client() as client:
            head: list[tuple[bytes, bytes]] = [(b"Content-Type", b"application/octet-stream"), (name.encode(), value.encode("latin-1"))]
            answer = await client.post("/files", params={"path": "f"}, content=b"", headers=head)
        assert (answer.status_code, answer.json()["code"]) == (400, 400)


@dialogue()
async def test_a_download_has_ranges_a_type_and_a_name(world: World) -> None:
    envd, files = await a_sandbox(world)
    await octets(envd, "a b.json", b"0123456789")
    answer = await download(envd, "a b.json")
    assert (answer.headers["content-type"], answer.headers["content-length"]) == ("application/json", "10")
    assert answer.headers["content-disposition"] == "inline; filename*=UTF-8''a%20b.json"
    for asked, content in (("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-3", b"789")):
        answer = await download(envd, "/home/user/a b.json", {"Range": asked, "Accept-Encoding": "gzip"})
        assert (answer.status_code, answer.content) == (206, content)
    assert (await download(envd, "a b.json", {"Range": "bytes=99-"})).status_code == 416
    files.add(b"/home/user/proc", "file").data = b"of the kernel's"
    files.inodes[b"/home/user/proc"].hidden_size = True
    assert (await download(envd, "proc")).content == b"of the kernel's"


@dialogue()
async def test_what_cannot_be_read_or_written_has_their_status(world: World) -> None:
    envd, _ = await a_sandbox(world)
    for path, user, status in (("/tmp", "", 400), ("/no", "", 404), ("x", "nobody", 401), ("", "", 400)):
        answer = await download(envd, path, user=user)
        assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert (await download(envd, "/tmp", {"Accept-Encoding": "identity;q=0, br"})).status_code == 406
    await octets(envd, "/tmp", b"", 400)
    await octets(envd, "", b"", 400)
    await octets(envd, "x", b"no gzip", 400, headers={"Content-Encoding": "gzip"})
    await octets(envd, "x", gzip.compress(b"1" * 1000)[:-9], 400, headers={"Content-Encoding": "gzip"})
    await octets(envd, "x", b"", 415, headers={"Content-Encoding": "zstd"})
    await upload(envd, "x", 415, content=b"{}", headers={"Content-Type": "application/json"})
    await upload(envd, "x", 400, content=b"--b\r\n", headers={"Content-Type": "multipart/form-data; boundary=b"})
    await upload(envd, "x", 400, content=b"", headers={"Content-Type": "multipart/form-data"})
    await upload(envd, None, 400, files={"other": ("x", b"1")})


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False), ("", False), ("gzip", True), ("gzip;q=0", False), ("gzip, deflate, br", False), ("identity", False), ("*", False),
        ("gzip, identity;q=0", True), ("*;q=0, gzip", True), ("gzip;q=x", True),
    ],
)  # fmt: skip
def test_gzip_is_sent_to_who_asks_for_it_alone(accept: str | None, wanted: bool) -> None:
    assert gzip_wanted(accept) is wanted


@pytest.mark.parametrize("accept", ["identity;q=0", "br, *;q=0", "*;q=0"])
def test_a_client_that_takes_nothing_is_told(accept: str) -> None:
    with pytest.raises(NotAcceptable):
        gzip_wanted(accept)


@dialogue()
async def test_an_upload_that_breaks_off_is_no_success(world: World) -> None:
    envd, files = await a_sandbox(world)
    head = "\r\n".join(f"{name}: {value}" for name, value in envd.headers.items())
    raw = (
        f"POST /files?path=x HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\nContent-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\n"
    )
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(raw.encode() + b"0123456789")
    await writer.drain()
    await until(lambda: files.open_writes)
    writer.close()
    await until(lambda: not files.open_writes)
    assert len(files.inodes[b"/home/user/x"].data) <= 10, "what came is there, as it is with theirs"


# -- watches ----------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_watch_tells_an_upload_in_its_steps(world: World) -> None:
    envd, _ = await a_sandbox(world)
    coming = envd.follow(FS + "WatchDir", {"path": "/tmp", "includeEntry": True})
    assert await anext(coming) == {"start": {}}
    await octets(envd, "/tmp/f", b"1")
    told = [(await anext(coming))["filesystem"] for _ in range(3)]
    assert [(one["name"], one["type"]) for one in told] == [("f", "EVENT_TYPE_" + kind) for kind in ("CREATE", "CHMOD", "WRITE")]
    assert told[2]["entry"]["path"] == "/tmp/f"
    await envd.ask(FS + "Move", {"source": "/tmp/f", "destination": "/tmp/g"})
    told = [(await anext(coming))["filesystem"] for _ in range(2)]
    assert [(one["name"], one["type"]) for one in told] == [("f", "EVENT_TYPE_RENAME"), ("g", "EVENT_TYPE_CREATE")]
    await envd.ask(FS + "Remove", {"path": "/tmp/g"})
    assert (await anext(coming))["filesystem"] == {"name": "g", "type": "EVENT_TYPE_REMOVE"}


@dialogue()
async def test_a_watch_ends_at_its_deadline_and_is_refused_where_there_is_no_directory(world: World) -> None:
    envd, _ = await a_sandbox(world)
    told = await envd.run(FS + "WatchDir", {"path": "/tmp"}, Connect_Timeout_Ms="50")
    assert (told.events, told.code) == ([{"start": {}}], "deadline_exceeded")
    assert (await envd.run(FS + "WatchDir", {"path": "no"})).code == "not_found"
    await octets(envd, "f", b"")
    assert (await envd.run(FS + "WatchDir", {"path": "f"})).code == "invalid_argument"
    assert (await envd.refused(FS + "CreateWatcher", {"path": "no"}))[1] == "not_found"


@dialogue()
async def test_a_watcher_has_everything_that_was_done_before_it_is_asked(world: World) -> None:
    envd, files = await a_sandbox(world)
    watcher = await envd.ask(FS + "CreateWatcher", {"path": "/tmp", "recursive": True})
    for number in range(20):
        await octets(envd, f"/tmp/d/f{number}", b"1")
        told = (await envd.ask(FS + "GetWatcherEvents", watcher))["events"]
        assert [one["name"] for one in told] == [f"d/f{number}"] * 3
    assert (await envd.ask(FS + "GetWatcherEvents", watcher))["events"] == []
    assert await envd.ask(FS + "RemoveWatcher", watcher) == {}
    assert (await envd.refused(FS + "GetWatcherEvents", watcher))[:2] == (404, "not_found")
    assert (await envd.refused(FS + "RemoveWatcher", watcher))[1] == "not_found"
    await until(lambda: not files.watched)


@dialogue()
async def test_a_watcher_of_another_sandbox_is_not_found_and_they_are_bounded(world: World) -> None:
    envd, _ = await a_sandbox(world)
    other, _ = await a_sandbox(world)
    watcher = await envd.ask(FS + "CreateWatcher", {"path": "/tmp"})
    assert (await other.refused(FS + "GetWatcherEvents", watcher))[1] == "not_found"
    for _ in range(31):
        await envd.ask(FS + "CreateWatcher", {"path": "/tmp"})
    assert (await envd.refused(FS + "CreateWatcher", {"path": "/tmp"}))[:2] == (429, "resource_exhausted")


@dialogue()
async def test_what_is_kept_for_who_never_asks_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "MOST_EVENT_BYTES", 1000)
    envd, _ = await a_sandbox(world)
    watcher = await envd.ask(FS + "CreateWatcher", {"path": "/tmp"})
    for number in range(20):
        await octets(envd, f"/tmp/f{number}", b"1")
    told = (await envd.ask(FS + "GetWatcherEvents", watcher))["events"]
    assert 3 <= len(told) < 12
    assert told[-1] == {"name": "f19", "type": "EVENT_TYPE_WRITE"}


@dialogue()
async def test_a_directory_that_is_too_large_is_refused_and_not_held(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    envd, files = await a_sandbox(world)
    for number in range(200):
        files.add(f"/tmp/{number}".encode(), "file")
    monkeypatch.setattr(entries, "MOST_LIST_BYTES", 2000)
    status, code, message = await envd.refused(FS + "ListDir", {"path": "/tmp"})
    assert (status, code) == (429, "resource_exhausted")
    assert "more than" in message
    monkeypatch.undo()
    monkeypatch.setattr(entries, "MOST_LISTED", 100)
    assert (await envd.refused(FS + "ListDir", {"path": "/tmp"}))[1] == "resource_exhausted"


def test_what_starts_said_is_remembered_within_bounds() -> None:
    known = roster.Roster()
    for number in range(100):
        known.note("sb", f"pr-{number}", None, {"A": "x" * 100_000})
    assert [known.take("sb", f"pr-{number}").env != {} for number in (0, 99)] == [False, True]


# -- the rest ---------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_health_figures_and_environment(world: World) -> None:
    envd, _ = await a_sandbox(world)
    async with envd.client() as client:
        assert (await client.get("/health", headers={"X-Access-Token": ""})).status_code == 204
        told = (await client.get("/metrics")).json()
        assert set(told) == set(FIGURES.split())
        found = json.loads((await client.get("/envs")).content)
        assert (found["E2B_SANDBOX"], found["E2B_SANDBOX_ID"]) == ("true", envd.headers["E2b-Sandbox-Id"])
