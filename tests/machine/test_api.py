"""The whole interface over HTTP with real guests: kept processes, terminals, files, watches and ports."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable

import httpx
import pytest
from websockets.asyncio.client import connect

import space
from space.model.frames import Decoder, Frame, Kind, encode
from space.serve.private import Served
from space.testing.simcontrol import until

Talk = Callable[[httpx.AsyncClient, str], Awaitable[None]]


def dialogue(served: Served, shared: space.Sandbox, talk: Talk) -> None:
    async def whole() -> None:
        head = {"Authorization": f"Bearer {served.api_key}"}
        async with httpx.AsyncClient(base_url=served.url, headers=head, timeout=60, trust_env=False) as client:
            await talk(client, f"/v1/sandboxes/{shared.id}")

    asyncio.run(asyncio.wait_for(whole(), 240))


async def start(client: httpx.AsyncClient, box: str, *argv: str, **more: object) -> str:
    answer = await client.post(f"{box}/processes", json={"argv": list(argv), **more})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


async def everything(client: httpx.AsyncClient, process: str, **query: object) -> list[Frame]:
    answer = await client.get(f"{process}/output", params={"follow": 1} | query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return Decoder().receive(answer.content)


def socket(client: httpx.AsyncClient, path: str) -> connect:
    url = str(client.base_url).rstrip("/").replace("http", "ws", 1) + path
    return connect(url, additional_headers={"Authorization": client.headers["authorization"]}, proxy=None, compression=None)


def text(frames: list[Frame]) -> bytes:
    return b"".join(frame.payload for frame in frames if frame.kind is Kind.STDOUT)


def test_a_process_in_the_background_is_read_again_from_any_offset(served: Served, shared: space.Sandbox) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        process = await start(client, box, "sh", "-c", "cat; echo end; exit 3", stdin_open=True)
        assert (await client.post(f"{process}/stdin?close=1", content=b"0123456789")).json() == {"stdin_bytes": 10}
        frames = await everything(client, process)
        assert (text(frames), frames[0].kind, frames[-1].kind) == (b"0123456789end\n", Kind.START, Kind.EXIT)
        assert json.loads(frames[-1].payload)["code"] == 3
        assert text(await everything(client, process, stdout=8)) == b"89end\n"
        assert text(await everything(client, process, stdout=-4)) == b"end\n"
        info = (await client.get(process)).json()
        assert (info["state"], info["exit"]["code"], info["stdout_bytes"], info["stdin"]) == ("exited", 3, 14, "closed")
        assert (await client.post(f"{process}/signal", json={"signal": "TERM"})).status_code == 409
        assert (await client.delete(process)).status_code == 204
        assert (await client.get(process)).status_code == 404

    dialogue(served, shared, talk)


def test_a_shell_over_a_websocket_has_a_terminal_its_size_and_job_control(served: Served, shared: space.Sandbox) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        process = await start(client, box, "sh", "-i", pty={"rows": 24, "cols": 80})
        found: list[Frame] = []
        async with socket(client, f"{process}/connect") as shell:

            async def shows(word: bytes) -> None:
                while word not in text(found):
                    found.extend(Decoder().receive(await shell.recv(decode=False)))

            await shell.send(encode(Kind.STDIN, b"stty size; echo a''b\n"))
            await shows(b"24 80")
            await shell.send(encode(Kind.RESIZE, b'{"rows": 50, "cols": 132}') + encode(Kind.STDIN, b"stty size\n"))
            await shows(b"50 132")
            await shell.send(encode(Kind.STDIN, b"sleep 1000\n"))
            await asyncio.sleep(0.5)
            await shell.send(encode(Kind.STDIN, b"\x03") + encode(Kind.STDIN, b"echo c''d; exit 7\n"))
            while found[-1].kind is not Kind.EXIT:
                found.extend(Decoder().receive(await shell.recv(decode=False)))
            await shell.wait_closed()
        assert b"cd" in text(found)
        assert (found[-1].kind, json.loads(found[-1].payload)["code"]) == (Kind.EXIT, 7)
        assert shell.close_code == 1000

    dialogue(served, shared, talk)


def test_the_end_of_a_websocket_kills_only_if_asked(served: Served, shared: space.Sandbox) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        for kill, wanted in (("0", "running"), ("1", "exited")):
            process = await start(client, box, "sleep", "600")
            async with socket(client, f"{process}/connect?kill_on_disconnect={kill}") as connection:
                await connection.recv()

            async def settled(process: str = process, wanted: str = wanted) -> bool:
                return bool((await client.get(process)).json()["state"] == wanted)

            await until(settled, 20)
            await client.delete(process)

    dialogue(served, shared, talk)


@pytest.mark.parametrize("size", [0, 18_432, 16_777_216], ids=str)
def test_a_file_goes_in_and_comes_out_byte_for_byte(served: Served, shared: space.Sandbox, size: int) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        data = (bytes(range(251)) * (size // 251 + 1))[:size]
        where = {"path": f"file-{size}"}
        answer = await client.put(f"{box}/files/content", params=where | {"mode": "0600"}, content=data)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["size"], told["mode"], told["bytes_written"], told["crc32"]) == (size, 0o600, size, zlib.crc32(data))
        answer = await client.get(f"{box}/files/content", params=where)
        assert answer.content == data
        assert answer.headers["etag"] == (await client.head(f"{box}/files/content", params=where)).headers["etag"]
        if size:
            part = await client.get(f"{box}/files/content", params=where, headers={"Range": "bytes=-7"})
            assert (part.status_code, part.content) == (206, data[-7:])
        assert (await client.post(f"{box}/files/remove", json=where)).status_code == 204
        assert (await client.get(f"{box}/files/content", params=where)).status_code == 404

    dialogue(served, shared, talk)


def test_names_of_any_bytes_links_and_directories(served: Served, shared: space.Sandbox) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        await client.post(f"{box}/files/mkdir", json={"path": "dir/sub", "parents": True})
        for name in ("caf%E9", "new%0Aline", "%F0%9F%98%80", ".hidden"):
            assert (await client.put(f"{box}/files/content?path=dir/{name}", content=b"x")).status_code == 200
        answer = await client.post(f"{box}/files/symlink", content=json.dumps({"path": "dir/link", "target": "caf\udce9"}))
        assert answer.status_code == 200, answer.text
        listed = json.loads((await client.get(f"{box}/files", params={"path": "dir"})).content)
        assert [one["name"] for one in listed["files"]] == [".hidden", "caf\udce9", "link", "new\nline", "sub", "\U0001f600"]
        assert json.loads((await client.get(f"{box}/files/stat?path=dir/link&follow=1")).content)["kind"] == "file"
        assert (await client.post(f"{box}/files/remove", json={"path": "dir"})).status_code == 409
        assert (await client.post(f"{box}/files/remove", json={"path": "dir", "recursive": True})).status_code == 204
        answer = await client.put(f"{box}/files/content", params={"path": "/etc/passwd"}, content=b"")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")

    dialogue(served, shared, talk)


def test_an_upload_that_breaks_off_leaves_nothing(served: Served, shared: space.Sandbox) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        await client.post(f"{box}/files/mkdir", json={"path": "half"})
        url = httpx.URL(served.url)
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"PUT {box}/files/content?path=half/x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {served.api_key}\r\n"
            f"Content-Length: 10000000\r\n\r\n{'x' * 1_000_000}".encode()
        )
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.transport.abort()

        async def empty() -> bool:
            return not json.loads((await client.get(f"{box}/files", params={"path": "half"})).content)["files"]

        await until(empty, 20)
        await client.post(f"{box}/files/remove", json={"path": "half", "recursive": True})

    dialogue(served, shared, talk)


def test_a_watch_tells_what_a_command_does(served: Served, shared: space.Sandbox) -> None:
    async def talk(client: httpx.AsyncClient, box: str) -> None:
        await client.post(f"{box}/files/mkdir", json={"path": "seen"})
        told = []
        async with client.stream("GET", f"{box}/files/watch?path=seen&recursive=1") as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                told.append(json.loads(line))
                if told[-1]["kind"] == "watching":
                    await start(client, box, "sh", "-c", "cd seen && echo a > x && mv x y && rm y && cd .. && rmdir seen")
        kinds = [(one["kind"], one.get("path"), one.get("from")) for one in told if one["kind"] != "heartbeat"]
        assert kinds[0] == ("watching", None, None)
        assert ("created", "x", None) in kinds
        assert ("moved", "y", "x") in kinds
        assert ("deleted", "y", None) in kinds
        assert kinds[-1] == ("deleted", "", None)

    dialogue(served, shared, talk)


def test_a_port_is_reached_both_ways_and_its_ends_are_apart(served: Served, shared: space.Sandbox) -> None:
    server = (
        "use IO::Socket::INET; my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 4242, Listen => 5, ReuseAddr => 1);"
        '$| = 1; print "ready\\n"; while (my $c = $l->accept) { print $c "hello\\n"; $c->flush; my $n = 0; my $d;'
        "while (my $r = sysread($c, $d, 65536)) { $n += $r } print $c $n; close $c }"
    )

    async def talk(client: httpx.AsyncClient, box: str) -> None:
        process = await start(client, box, "perl", "-e", server)
        async with client.stream("GET", f"{process}/output?follow=1", headers={"Accept": "application/x-ndjson"}) as output:
            async for line in output.aiter_lines():
                if json.loads(line)["kind"] == "stdout":
                    break
        async with socket(client, f"{box}/ports/4242") as connection:
            for _ in range(20):
                await connection.send(b"x" * 100_000)
            await connection.send(b"")
            taken = b""
            while piece := await connection.recv(decode=False):
                taken += piece
            await connection.wait_closed()
        assert (taken, connection.close_code) == (b"hello\n2000000", 1000)
        answer = await client.get(f"{box}/ports/4243")
        assert answer.status_code == 426
        await client.delete(process)

    dialogue(served, shared, talk)


def test_processes_of_a_sandbox_that_is_gone_stay_readable(served: Served, client: space.Client) -> None:
    async def talk(asking: httpx.AsyncClient, box: str) -> None:
        ended = await start(asking, box, "echo", "kept")
        lost = await start(asking, box, "sleep", "600")
        assert text(await everything(asking, ended)) == b"kept\n"
        assert (await asking.delete(box)).status_code == 204
        assert text(await everything(asking, ended)) == b"kept\n"
        assert [one["state"] for one in (await asking.get(f"{box}/processes")).json()["processes"]] == ["exited", "lost"]
        last = (await everything(asking, lost))[-1]
        assert (last.kind, json.loads(last.payload)["code"]) == (Kind.ERROR, "sandbox_died")
        assert (await asking.post(f"{box}/processes", json={"argv": ["true"]})).status_code == 410

    sandbox = space.Sandbox.create(client=client)
    dialogue(served, sandbox, talk)
