"""Trees over HTTP: whole or not at all, in both directions."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from space.testing.simcontrol import World, dialogue, until

TAR = {"Content-Type": "application/x-tar"}


@dialogue()
async def test_a_tree_goes_in_and_comes_out_byte_for_byte(world: World) -> None:
    sandbox = await world.create()
    tree = os.urandom(5_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(tree), 100_000):
            yield tree[at : at + 100_000]

    answer = await world.client.put(f"/v1/sandboxes/{sandbox}/tree", params={"path": "/home/user/x"}, content=pieces(), headers=TAR)
    assert answer.json() == {"entries": len(tree) // 512, "bytes": len(tree), "crc32": zlib.crc32(tree)}
    back = await world.client.get(f"/v1/sandboxes/{sandbox}/tree", params={"path": "/home/user/x"})
    assert back.headers["content-type"] == "application/x-tar"
    assert back.content == tree


@dialogue()
async def test_an_empty_tree_is_a_tree(world: World) -> None:
    sandbox = await world.create()
    assert (await world.client.put(f"/v1/sandboxes/{sandbox}/tree?path=/e", headers=TAR)).json()["bytes"] == 0
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}/tree?path=/e")).content == b""


@dialogue()
async def test_an_upload_that_the_guest_counted_otherwise_is_an_error(world: World) -> None:
    sandbox = await world.create()
    world.node.lie_about_trees = True
    answer = await world.client.put(f"/v1/sandboxes/{sandbox}/tree?path=/x", content=b"t" * 1000, headers=TAR)
    assert (answer.status_code, answer.json()["code"]) == (502, "guest_error")
    assert "did not arrive whole" in answer.json()["detail"]


@dialogue()
async def test_an_upload_that_the_guest_refuses_says_why(world: World) -> None:
    sandbox = await world.create()
    answer = await world.client.put(f"/v1/sandboxes/{sandbox}/tree?path=/proc", content=b"t" * 3_000_000, headers=TAR)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/noop")).status_code == 204


@dialogue()
async def test_an_upload_that_is_cut_off_leaves_nothing_that_looks_whole(world: World) -> None:
    sandbox = await world.create()
    head = f"PUT /v1/sandboxes/{sandbox}/tree?path=/cut HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head.encode() + b"400\r\n" + b"t" * 1024 + b"\r\n")
    await until(lambda: world.node.open_trees == 1)
    writer.transport.abort()
    await until(lambda: world.node.open_trees == 0)
    assert world.node.sandboxes[sandbox].trees == {}


@pytest.mark.parametrize("fault", ["reset", "count"])
@dialogue()
async def test_a_download_that_fails_in_the_middle_never_ends_well(world: World, fault: str) -> None:
    sandbox = await world.create()
    await world.client.put(f"/v1/sandboxes/{sandbox}/tree?path=/x", content=b"t" * 1_000_000, headers=TAR)
    if fault == "reset":
        world.node.break_tree_after = 400_000
    else:
        world.node.lie_about_trees = True
    with pytest.raises(httpx.RemoteProtocolError):
        await world.client.get(f"/v1/sandboxes/{sandbox}/tree?path=/x")
    raw = await world.raw(
        f"GET /v1/sandboxes/{sandbox}/tree?path=/x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\n\r\n".encode()
    )
    assert raw.startswith(b"HTTP/1.1 200")
    assert not raw.endswith(b"0\r\n\r\n")


@dialogue()
async def test_a_missing_path_is_a_problem_and_not_an_empty_tree(world: World) -> None:
    sandbox = await world.create()
    answer = await world.client.get(f"/v1/sandboxes/{sandbox}/tree?path=/none")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "query", ["", "?path=", "?path=a%00b", "?path=/x&user=a%20b", "?path=/x&path=/y", "?path=/x&what=1", "?path=" + "x" * 5000]
)
@dialogue()
async def test_a_wrong_path_or_user_is_refused(world: World, query: str) -> None:
    sandbox = await world.create()
    for method in ("GET", "PUT"):
        answer = await world.client.request(method, f"/v1/sandboxes/{sandbox}/tree{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


@dialogue()
async def test_a_reader_that_leaves_ends_the_guests_side(world: World) -> None:
    sandbox = await world.create()
    world.node.sandboxes[sandbox].trees["/big"] = bytes(50_000_000)
    async with world.client.stream("GET", f"/v1/sandboxes/{sandbox}/tree?path=/big") as answer:
        await anext(answer.aiter_raw())
        assert world.node.open_trees == 1
    await until(lambda: world.node.open_trees == 0)
