"""Files and watches over HTTP: bytes exact both ways, ranges and conditions, names of any bytes, and what breaks off."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from space.control import content, limits
from space.core.wire import files as guest
from space.rpc.stream import Stream
from space.testing.simcontrol import World, dialogue, until
from space.testing.simfiles import SimFiles

ODD = ["a b", "ü", "\U0001f600", "new\nline", ".hidden", "-dash", "100%", "a&b=c?d#e", "caf\udce9", "\udcff\udcfe", "a+b", "quote'\""]


async def files(world: World) -> tuple[str, SimFiles]:
    sandbox = await world.create()
    return f"/v1/sandboxes/{sandbox}/files", world.node.sandboxes[sandbox].files


def at(path: str, name: str, **query: Any) -> str:
    """A URL of a path of any bytes."""
    raw = quote(name.encode("utf-8", "surrogateescape"), safe="")
    return f"{path}?path={raw}" + "".join(f"&{key}={value}" for key, value in query.items())


async def put(world: World, path: str, name: str, data: bytes, **query: Any) -> dict[str, Any]:
    answer = await world.client.put(at(path + "/content", name, **query), content=data)
    assert answer.status_code == 200, answer.text
    return dict(json.loads(answer.content))


# -- content ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 18_432, 300_001, 16_777_216], ids=str)
@dialogue()
async def test_a_file_goes_in_and_comes_out_byte_for_byte_and_both_sides_counted(world: World, size: int) -> None:
    path, _ = await files(world)
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    told = await put(world, path, "x", data, mode="0600")
    assert (told["name"], told["kind"], told["size"], told["mode"]) == ("x", "file", size, 0o600)
    assert (told["bytes_written"], told["crc32"]) == (size, zlib.crc32(data))
    answer = await world.client.get(at(path + "/content", "x"))
    assert answer.content == data
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["accept-ranges"] == "bytes"
    head = await world.client.head(at(path + "/content", "/home/user/x"))
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])
    if size:
        assert head.headers["content-length"] == answer.headers["content-length"] == str(size)


@pytest.mark.parametrize("name", ODD)
@dialogue()
async def test_a_name_may_be_any_bytes_in_the_query_in_bodies_and_in_answers(world: World, name: str) -> None:
    path, held = await files(world)
    raw = name.encode("utf-8", "surrogateescape")
    await put(world, path, name, b"data")
    assert b"/home/user/" + raw in held.inodes
    assert (await world.client.get(at(path + "/content", name))).content == b"data"
    assert json.loads((await world.client.get(at(path + "/stat", name))).content)["name"] == name
    listed = json.loads((await world.client.get(at(path, "/home/user"))).content)
    assert [one["name"] for one in listed["files"]] == [name]
    moved = await world.client.post(path + "/move", content=json.dumps({"path": name, "to": "other\udc80"}))
    assert json.loads(moved.content)["name"] == "other\udc80"
    await world.client.post(path + "/symlink", content=json.dumps({"path": "link", "target": name}))
    assert json.loads((await world.client.get(at(path + "/stat", "link"))).content)["target"] == name
    assert (await world.client.post(path + "/remove", content=json.dumps({"path": "other\udc80"}))).status_code == 204
    assert b"/home/user/other\x80" not in held.inodes


@pytest.mark.parametrize(
    ("asked", "status", "wanted", "told"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=9-9", 206, b"9", "bytes 9-9/10"),
        ("bytes=5-999999999999999999", 206, b"56789", "bytes 5-9/10"),
        ("Bytes = 0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        ("bytes=99-100", 416, b"", "bytes */10"),
        ("bytes=3-2", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=x", 200, b"0123456789", None),
        ("bytes=", 200, b"0123456789", None),
        ("bytes=99999999999999999999-", 200, b"0123456789", None),
    ],
)
@dialogue()
async def test_ranges_are_those_of_rfc_9110(world: World, asked: str, status: int, wanted: bytes, told: str | None) -> None:
    path, _ = await files(world)
    await put(world, path, "x", b"0123456789")
    answer = await world.client.get(at(path + "/content", "x"), headers={"Range": asked})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, told)
    if status == 416:
        assert (answer.json()["code"], answer.json()["status"]) == ("invalid_argument", 416)
    else:
        assert (answer.content, answer.headers["content-length"]) == (wanted, str(len(wanted)))


@dialogue()
async def test_a_range_of_an_empty_file_cannot_be_had(world: World) -> None:
    path, _ = await files(world)
    await put(world, path, "x", b"")
    for asked in ("bytes=0-", "bytes=-1", "bytes=0-0"):
        answer = await world.client.get(at(path + "/content", "x"), headers={"Range": asked})
        assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */0")


@dialogue()
async def test_conditions_compare_the_etag_which_changes_with_the_file(world: World) -> None:
    path, _ = await files(world)
    written = await world.client.put(at(path + "/content", "x"), content=b"one")
    url = at(path + "/content", "x")
    tag = written.headers["etag"]
    for headers, status in (
        ({"If-None-Match": tag}, 304), ({"If-None-Match": f'"no", W/{tag}'}, 304), ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"no"'}, 200), ({"If-Match": tag}, 200), ({"If-Match": "*"}, 200), ({"If-Match": '"no"'}, 412),
        ({"If-Match": f"W/{tag}"}, 412), ({"If-Match": tag, "If-None-Match": tag}, 304),
        ({"If-None-Match": tag, "Range": "bytes=0-0"}, 304), ({"If-Match": '"no"', "Range": "bytes=99-"}, 412),
        ({"If-Range": tag, "Range": "bytes=0-0"}, 206), ({"If-Range": '"no"', "Range": "bytes=0-0"}, 200),
        ({"If-Range": "Mon, 30 Nov 2026 18:00:00 GMT", "Range": "bytes=1-1"}, 200), ({"If-Range": '"no"', "Range": "bytes=-1"}, 200),
    ):  # fmt: skip
        answer = await world.client.get(url, headers=headers)
        assert (answer.status_code, len(answer.content) if status < 400 else 0) == (status, {200: 3, 206: 1}.get(status, 0)), headers
        assert status >= 400 or answer.headers["etag"] == tag
        head = await world.client.head(url, headers=headers)
        assert head.status_code == (200 if status == 206 else status), headers
    again = await world.client.put(url, content=b"two")
    assert again.headers["etag"] != tag
    assert (await world.client.get(url, headers={"If-None-Match": tag})).content == b"two"


@dialogue()
async def test_a_file_that_says_no_size_comes_whole(world: World) -> None:
    path, held = await files(world)
    await put(world, path, "x", b"secret of the kernel" * 10_000)
    held.inodes[b"/home/user/x"].hidden_size = True
    answer = await world.client.get(at(path + "/content", "x"))
    assert (answer.content, answer.headers.get("content-length")) == (b"secret of the kernel" * 10_000, None)
    assert "content-length" not in (await world.client.head(at(path + "/content", "x"))).headers


@dialogue()
async def test_a_file_that_grows_while_it_is_read_is_what_it_was_and_one_that_grows_for_ever_is_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, held = await files(world)
    await put(world, path, "x", b"x" * 100_000)
    held.grow_by = 1_000_000
    assert (await world.client.get(at(path + "/content", "x"))).content == b"x" * 100_000
    monkeypatch.setattr(content, "_MOST_GROWTH", 500_000)
    with pytest.raises(httpx.RemoteProtocolError):
        await world.client.get(at(path + "/content", "x"))


@dialogue()
async def test_a_download_that_breaks_or_was_counted_otherwise_never_looks_whole(world: World) -> None:
    path, held = await files(world)
    await put(world, path, "x", b"x" * 500_000)
    url = at(path + "/content", "x")
    held.cut_after = 200_000
    with pytest.raises(httpx.RemoteProtocolError):
        await world.client.get(url)
    held.cut_after, held.lie = None, True
    # The last bytes wait for the count, so a body that has all of its length was right; a short one has not begun yet.
    with pytest.raises(httpx.RemoteProtocolError):
        await world.client.get(url)
    answer = await world.client.get(url, headers={"Range": "bytes=0-9"})
    assert (answer.status_code, answer.json()["code"]) == (502, "guest_error")


@dialogue()
async def test_an_upload_that_breaks_off_leaves_nothing_and_the_old_file_as_it_was(world: World) -> None:
    path, held = await files(world)
    await put(world, path, "x", b"old")
    head = f"PUT {at(path + '/content', 'x')} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\nContent-Length: 1000000\r\n\r\nhalf"
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head.encode())
    await until(lambda: held.open_writes == 1)
    writer.transport.abort()
    await until(lambda: held.open_writes == 0)
    assert (await world.client.get(at(path + "/content", "x"))).content == b"old"


@dialogue()
async def test_a_streamed_upload_needs_no_length_and_a_refusal_in_the_middle_is_not_waited_for(world: World) -> None:
    path, _ = await files(world)

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            yield bytes([number]) * 10_000

    answer = await world.client.put(at(path + "/content", "x"), content=pieces())
    assert answer.json()["bytes_written"] == 1_000_000

    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(
        f"PUT {at(path + '/content', 'missing/x')} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n".encode()
    )
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 404 ")
    writer.close()


@dialogue()
async def test_append_parents_and_exclusive_reach_the_guest(world: World) -> None:
    path, _ = await files(world)
    await put(world, path, "x", b"one", exclusive=1)
    assert (await world.client.put(at(path + "/content", "x", exclusive=1), content=b"")).status_code == 409
    told = await put(world, path, "x", b"two", append=1)
    assert (told["size"], told["bytes_written"]) == (6, 3)
    assert (await world.client.get(at(path + "/content", "x"))).content == b"onetwo"
    assert (await put(world, path, "a/b/c", b"deep", parents=1))["name"] == "c"


# -- the rest -----------------------------------------------------------------------------------------------------------


@dialogue()
async def test_what_one_does_with_files_is_done_and_told(world: World) -> None:
    path, _ = await files(world)

    async def done(verb: str, status: int = 200, **body: Any) -> dict[str, Any]:
        answer = await world.client.post(f"{path}/{verb}", json=body)
        assert answer.status_code == status, answer.text
        return dict(answer.json()) if answer.content else {}

    assert (await done("mkdir", path="d"))["kind"] == "directory"
    assert (await done("mkdir", 409, path="d"))["code"] == "conflict"
    assert (await done("mkdir", path="d/e/f", parents=True, mode=0o700))["mode"] == 0o700
    await put(world, path, "d/x", b"x")
    assert (await done("chmod", path="d/x", mode=0o640))["mode"] == 0o640
    told = await done("chown", path="d/x", owner="root", group="0")
    assert (told["owner"], told["group"]) == ("root", "0")
    assert (await done("symlink", path="l", target="d/x"))["target"] == "d/x"
    assert (await done("move", path="d/x", to="d/y"))["name"] == "y"
    assert (await done("move", 404, path="d/x", to="d/z"))["code"] == "not_found"
    assert (await done("remove", 409, path="d"))["code"] == "conflict"
    await done("remove", 204, path="d", recursive=True)
    await done("remove", 204, path="d", missing_ok=True)
    assert (await done("remove", 404, path="d"))["code"] == "not_found"
    link = await world.client.get(at(path + "/stat", "l"))
    assert link.json()["kind"] == "symlink"
    assert (await world.client.get(at(path + "/stat", "l", follow=1))).status_code == 404
    assert (await world.client.get(at(path + "/stat", "/proc/1"))).status_code == 403


@dialogue()
async def test_a_directory_is_told_in_pages_without_gap_or_repetition(world: World) -> None:
    path, _ = await files(world)
    for number in range(250):
        await put(world, path, f"d/{number:03}", b"", parents=1)
    await put(world, path, "d/sub/deep", b"", parents=1)
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = await world.client.get(at(path, "d", limit=100, **({"cursor": cursor} if cursor else {})))
        found += [one["name"] for one in answer.json()["files"]]
        cursor = answer.json()["next_cursor"]
    assert found == [f"{number:03}" for number in range(250)] + ["sub"]
    deep = await world.client.get(at(path, "d", depth=2, limit=10_000))
    assert [one["name"] for one in deep.json()["files"]][-2:] == ["sub", "sub/deep"]
    wrongs: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 10_001},
        {"depth": 0},
        {"depth": -1},
        {"cursor": "ä"},
        {"cursor": "?"},
        {"limit": "x"},
    ]
    for wrong in wrongs:
        answer = await world.client.get(path, params={"path": "d"} | wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), wrong
        assert answer.json()["hint"]


WRONG = [
    ("GET", "/stat", None), ("GET", "/stat?path=", None), ("GET", "/stat?path=a%00b", None), ("GET", "/stat?path=" + "x" * 4096, None),
    ("GET", "/stat?path=a&user=ro%20ot", None), ("GET", "/stat?path=a&user=%ff", None), ("GET", "/stat?path=a&follow=maybe", None),
    ("PUT", "/content?path=a&mode=644", None), ("PUT", "/content?path=a&mode=0999", None), ("PUT", "/content?path=a&mode=00000644", None),
    ("POST", "/mkdir", {}), ("POST", "/mkdir", {"path": ""}), ("POST", "/mkdir", {"path": "a", "mode": 4096}),
    ("POST", "/mkdir", {"path": "a", "mode": -1}), ("POST", "/mkdir", {"path": 1}), ("POST", "/mkdir", {"path": "a", "what": 1}),
    ("POST", "/mkdir", {"path": "a\0"}), ("POST", "/mkdir", {"path": "\ud800"}), ("POST", "/mkdir", {"path": "\udcff", "mode": "x"}),
    ("POST", "/move", {"path": "a"}), ("POST", "/move", {"path": "a", "to": ""}), ("POST", "/chown", {"path": "a"}),
    ("POST", "/chown", {"path": "a", "owner": "a b"}), ("POST", "/chown", {"path": "a", "owner": "99999999999"}),
    ("POST", "/symlink", {"path": "a", "target": ""}), ("POST", "/remove", {"path": "x" * 5000}), ("GET", "/watch?path=", None),
]  # fmt: skip


@dialogue()
async def test_a_wrong_request_is_refused_with_a_remedy_and_reaches_no_guest(world: World) -> None:
    path, held = await files(world)
    before = dict(held.inodes)
    for method, rest, body in WRONG:
        sent = None if body is None else json.dumps(body).encode()
        answer = await world.client.request(method, path + rest, content=sent)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), (method, rest, body, answer.text)
        assert answer.json()["hint"], (method, rest, body)
    for raw in (b'{"path": "\\udcff"', b'{"path": "\\udcff", "mode": NaN}', b"[" * 50_000 + b'"\\udcff"'):
        assert (await world.client.post(path + "/mkdir", content=raw)).status_code == 400
    assert held.inodes == before


@dialogue()
async def test_a_guest_that_never_ends_its_answer_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILE_SECONDS", 0.2)
    monkeypatch.setattr(limits, "TREE_STALL_SECONDS", 0.2)
    path, _ = await files(world)

    async def silent(stream: Stream, _: bytes) -> None:
        await asyncio.Event().wait()

    async def endless(stream: Stream, _: bytes) -> None:
        while True:
            await stream.send_message(guest.Files([]))
            await asyncio.sleep(0.01)

    for told in (silent, endless):
        world.node._verbs |= {"file_list": told, "file_read": silent}
        answer = await world.client.get(f"{path}?path=/")
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
    assert (await world.client.head(f"{path}/content?path=/x")).status_code == 504
    assert (await world.client.get(f"{path}/content?path=/x")).status_code == 504
    assert world.services is not None
    assert world.services.activity.active(path.split("/")[3]) == 0


@dialogue()
async def test_every_transfer_is_activity_and_ends_it(world: World) -> None:
    path, _ = await files(world)
    sandbox = path.split("/")[3]
    assert world.services is not None
    activity = world.services.activity
    seen: list[bool] = []
    activity.listen(lambda one, active: seen.append(active))
    await put(world, path, "x", b"x")
    await world.client.get(at(path + "/content", "x"))
    assert seen == [True, False, True, False]
    assert activity.active(sandbox) == 0
    for quiet in ("", "/processes", "/metrics"):
        await world.client.get(f"/v1/sandboxes/{sandbox}{quiet}")
    assert seen == [True, False, True, False]


# -- watches ------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_watch_tells_every_change_then_ends_with_its_path(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    path, held = await files(world)
    await world.client.post(path + "/mkdir", json={"path": "d"})
    told = []
    async with world.client.stream("GET", at(path + "/watch", "d", recursive=1)) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        async for line in answer.aiter_lines():
            told.append(json.loads(line))
            if told[-1] == {"kind": "heartbeat"} and len(told) == 2:
                await put(world, path, "d/caf\udce9", b"x")
                await world.client.post(path + "/move", content=json.dumps({"path": "d/caf\udce9", "to": "d/y"}))
                held.overflow()
                await world.client.post(path + "/remove", json={"path": "d", "recursive": True})
    assert [one for one in told if one["kind"] != "heartbeat"] == [
        {"kind": "watching"},
        {"kind": "created", "path": "caf\udce9", "directory": False},
        {"kind": "moved", "path": "y", "from": "caf\udce9", "directory": False},
        {"kind": "overflow"},
        {"kind": "deleted", "path": "", "directory": False},
    ]
    assert told[1] == {"kind": "heartbeat"}


@dialogue()
async def test_a_watch_whose_sandbox_dies_ends_with_an_error_line_and_one_that_cannot_begin_is_a_problem(world: World) -> None:
    path, _ = await files(world)
    answer = await world.client.get(at(path + "/watch", "missing"))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    answer = await world.client.get(at(path + "/watch", "/home"), headers={"Accept": "text/html"})
    assert answer.status_code == 415
    async with world.client.stream("GET", at(path + "/watch", "/home")) as stream:
        lines = stream.aiter_lines()
        assert json.loads(await anext(lines)) == {"kind": "watching"}
        world.node.cut()
        last = json.loads(await anext(lines))
    assert (last["kind"], last["problem"]["code"]) == ("error", "unavailable")
