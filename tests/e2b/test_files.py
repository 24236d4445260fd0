"""Files through E2B's SDKs: in and out in every form, directories, information, metadata, signed addresses, what is refused."""

from __future__ import annotations

import asyncio
import io
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import httpx
import pytest
from tests.e2b.stage import Js, Running

import e2b
from e2b import AsyncSandbox, FileType, Sandbox

BINARY = bytes(range(256)) * 500


@pytest.fixture
def place(shared: Sandbox) -> str:
    """A directory of the test's own."""
    path = f"/home/user/files-{os.urandom(4).hex()}"
    shared.files.make_dir(path)
    return path


# -- in and out ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"use_octet_stream": True}, {"gzip": True}], ids=["multipart", "octets", "gzip"])
@pytest.mark.parametrize("data", ["text ü→😀\r\n--x", BINARY, "", b""], ids=["text", "bytes", "no text", "no bytes"])
def test_what_is_written_is_read(shared: Sandbox, place: str, data: Any, options: dict[str, Any]) -> None:
    told = shared.files.write(f"{place}/f", data, **options)
    assert (told.path, told.name, told.type) == (f"{place}/f", "f", FileType.FILE)
    want = data.encode() if isinstance(data, str) else data
    assert bytes(shared.files.read(f"{place}/f", format="bytes")) == want
    assert bytes(shared.files.read(f"{place}/f", format="bytes", gzip=True)) == want
    assert b"".join(shared.files.read(f"{place}/f", format="stream")) == want
    if isinstance(data, str):
        assert shared.files.read(f"{place}/f") == data


def test_writing_again_replaces_all_of_it(shared: Sandbox, place: str) -> None:
    shared.files.write(f"{place}/f", "a long text")
    shared.files.write(f"{place}/f", "short")
    assert shared.files.read(f"{place}/f") == "short"


def test_streams_go_in(shared: Sandbox, place: str) -> None:
    sources: list[Any] = [io.BytesIO(BINARY), io.StringIO("text"), iter([b"one", b"two"])]
    for number, source in enumerate(sources):
        shared.files.write(f"{place}/{number}", source)
    assert bytes(shared.files.read(f"{place}/0", format="bytes")) == BINARY
    assert (shared.files.read(f"{place}/1"), shared.files.read(f"{place}/2")) == ("text", "onetwo")


@pytest.mark.parametrize("octets", [True, False])
def test_many_files_go_at_once_with_their_directories(shared: Sandbox, place: str, octets: bool) -> None:
    wanted = {f"{place}/d{n % 3}/sub/f{n}": f"content {n}" for n in range(12)} | {f"{place}/ü 'q'": "odd"}
    told = shared.files.write_files([{"path": path, "data": text} for path, text in wanted.items()], use_octet_stream=octets)
    assert [one.path for one in told] == list(wanted)
    assert {path: shared.files.read(path) for path in wanted} == wanted
    assert shared.files.write_files([]) == []


def test_what_is_made_belongs_to_its_user(shared: Sandbox) -> None:
    shared.files.write("/srv/deep/er/f", "x")
    for path in ("/srv/deep", "/srv/deep/er", "/srv/deep/er/f"):
        info = shared.files.get_info(path)
        assert (info.owner, info.group, info.mode) == ("user", "user", 0o644 if path.endswith("f") else 0o755)
    shared.files.write("relative", "r", user="root")
    assert shared.files.read("/root/relative") == "r"
    assert shared.files.get_info("/root/relative").owner == "root"
    assert shared.files.write("relative", "u").path == "/home/user/relative"


def test_a_file_of_16_mib_goes_both_ways_whole(shared: Sandbox, place: str) -> None:
    data = os.urandom(16 << 20)
    shared.files.write(f"{place}/big", data)
    assert bytes(shared.files.read(f"{place}/big", format="bytes")) == data


def test_a_file_of_the_kernels_is_read_to_its_end(shared: Sandbox) -> None:
    assert len(shared.files.read("/proc/sys/kernel/random/boot_id").strip()) == 36


def test_what_cannot_be_read_or_written_says_why(shared: Sandbox, place: str) -> None:
    with pytest.raises(e2b.FileNotFoundException):
        shared.files.read(f"{place}/no")
    with pytest.raises(e2b.InvalidArgumentException):
        shared.files.read(place)
    with pytest.raises(e2b.InvalidArgumentException):
        shared.files.write(place, "x")
    with pytest.raises(e2b.AuthenticationException):
        shared.files.read("/etc/hostname", user="nobody-here")
    with pytest.raises(e2b.AuthenticationException):
        shared.files.write(f"{place}/x", "x", user="nobody-here")


def test_a_full_disk_is_said(server: Running) -> None:
    sandbox = Sandbox.create()
    try:
        sandbox.commands.run("mkdir /home/user/small && sudo mount -t tmpfs -o size=1m none /home/user/small")
        with pytest.raises(e2b.NotEnoughSpaceException):
            sandbox.files.write("/home/user/small/f", b"x" * (3 << 20))
    finally:
        sandbox.kill()


# -- directories and what is in them --------------------------------------------------------------------------------------------


def test_directories_are_made_listed_renamed_and_removed(shared: Sandbox, place: str) -> None:
    assert shared.files.make_dir(f"{place}/a/b/c") is True
    assert shared.files.make_dir(f"{place}/a/b/c") is False
    shared.files.write(f"{place}/a/f", "1")
    assert [one.path for one in shared.files.list(place)] == [f"{place}/a"]
    names = [one.path.removeprefix(place + "/") for one in shared.files.list(place, depth=3)]
    assert names == ["a", "a/b", "a/b/c", "a/f"]
    assert [one.type for one in shared.files.list(f"{place}/a")] == [FileType.DIR, FileType.FILE]
    moved = shared.files.rename(f"{place}/a/f", f"{place}/new/place/g")
    assert (moved.path, moved.name, moved.type) == (f"{place}/new/place/g", "g", FileType.FILE)
    assert not shared.files.exists(f"{place}/a/f")
    assert shared.files.exists(f"{place}/new/place/g")
    shared.files.remove(f"{place}/new")
    shared.files.remove(f"{place}/new")
    assert not shared.files.exists(f"{place}/new")


def test_what_cannot_be_done_to_directories_says_why(shared: Sandbox, place: str) -> None:
    shared.files.write(f"{place}/f", "")
    with pytest.raises(e2b.InvalidArgumentException):
        shared.files.list(f"{place}/f")
    with pytest.raises(e2b.FileNotFoundException):
        shared.files.list(f"{place}/no")
    with pytest.raises(e2b.InvalidArgumentException):
        shared.files.list(place, depth=0)
    with pytest.raises(e2b.InvalidArgumentException):
        shared.files.make_dir(f"{place}/f")
    with pytest.raises(e2b.FileNotFoundException):
        shared.files.rename(f"{place}/no", f"{place}/x")
    with pytest.raises(e2b.FileNotFoundException):
        shared.files.get_info(f"{place}/no")
    with pytest.raises(e2b.AuthenticationException):
        shared.files.list(place, user="nobody-here")


def test_information_is_whole(shared: Sandbox, place: str) -> None:
    before = time.time()
    shared.files.write(f"{place}/f", "12345")
    info = shared.files.get_info(f"{place}/f")
    assert (info.name, info.type, info.path, info.size, info.mode) == ("f", FileType.FILE, f"{place}/f", 5, 0o644)
    assert (info.permissions, info.owner, info.group, info.symlink_target) == ("-rw-r--r--", "user", "user", None)
    assert abs(info.modified_time.timestamp() - before) < 60
    shared.commands.run(
        f"chmod 600 {place}/f; sudo chown root:root {place}/f; ln -s f {place}/link; ln -s {place} {place}/dir; ln -s no {place}/broken"
    )
    info = shared.files.get_info(f"{place}/f")
    assert (info.permissions, info.owner, info.group) == ("-rw-------", "root", "root")
    link = shared.files.get_info(f"{place}/link")
    assert (link.name, link.type, link.symlink_target, link.permissions) == ("link", FileType.FILE, f"{place}/f", "Lrwxrwxrwx")
    directory = shared.files.get_info(f"{place}/dir")
    assert (directory.type, directory.symlink_target) == (FileType.DIR, place)
    assert [one.name for one in shared.files.list(f"{place}/dir")] == ["dir", "f", "link"], "a link to nothing has no type"
    assert shared.files.get_info(place).permissions == "drwxr-xr-x"


def test_metadata_is_kept_listed_and_replaced_as_a_whole(shared: Sandbox, place: str) -> None:
    for octets in (True, False):
        told = shared.files.write(f"{place}/f", "1", metadata={"Author": "me", "empty": ""}, use_octet_stream=octets)
        assert told.metadata == {"author": "me", "empty": ""}
    assert shared.files.get_info(f"{place}/f").metadata == {"author": "me", "empty": ""}
    assert shared.files.list(place)[0].metadata == {"author": "me", "empty": ""}
    assert shared.files.rename(f"{place}/f", f"{place}/g").metadata == {"author": "me", "empty": ""}
    read = f"import os; print(os.getxattr('{place}/g', 'user.e2b.author'))"
    assert shared.commands.run(f'python3 -c "{read}"').stdout == "b'me'\n"
    shared.commands.run(f"python3 -c \"import os; os.setxattr('{place}/g', 'user.e2b.other', b'x')\"")
    assert shared.files.get_info(f"{place}/g").metadata["other"] == "x"
    shared.files.write(f"{place}/g", "2")
    assert not shared.files.get_info(f"{place}/g").metadata


# -- signed addresses ------------------------------------------------------------------------------------------------------------


def _signed(server: Running, sandbox: Sandbox, url: str, method: str = "GET", **request: Any) -> httpx.Response:
    """As whoever was given the address asks, where all sandboxes have one address: with the sandbox's name beside it."""
    return httpx.request(
        method, url, headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}, trust_env=False, **request
    )


def test_a_signed_address_opens_its_path_alone(server: Running, shared: Sandbox, place: str) -> None:
    path = f"{place}/a b"
    url = shared.upload_url(path, use_signature_expiration=60)
    assert _signed(server, shared, url, "POST", files={"file": ("x", b"uploaded")}).status_code == 200
    url = shared.download_url(path, use_signature_expiration=60)
    assert _signed(server, shared, url).content == b"uploaded"
    assert _signed(server, shared, shared.download_url(path, user="user")).content == b"uploaded"
    other = url.replace("a%20b", "other").replace("a+b", "other")
    assert other != url
    refused = _signed(server, shared, other)
    assert (refused.status_code, refused.json()) == (401, {"code": 401, "message": "invalid signature"})
    refused = _signed(server, shared, shared.download_url(path, use_signature_expiration=-10))
    assert (refused.status_code, refused.json()) == (401, {"code": 401, "message": "signature is already expired"})
    bare = url.split("?")[0] + "?" + urllib.parse.urlencode({"path": path})
    assert _signed(server, shared, bare).json()["message"].startswith("missing signature query parameter")
    assert _signed(server, shared, url, "POST", files={"file": ("x", b"y")}).status_code == 401


# -- the other two SDKs -----------------------------------------------------------------------------------------------------------


def test_async_has_files(shared: Sandbox, place: str) -> None:
    async def talk() -> None:
        sandbox = await AsyncSandbox.connect(shared.sandbox_id)
        await sandbox.files.write(f"{place}/f", BINARY)
        assert bytes(await sandbox.files.read(f"{place}/f", format="bytes")) == BINARY
        stream = await sandbox.files.read(f"{place}/f", format="stream")
        assert b"".join([piece async for piece in stream]) == BINARY
        told = await sandbox.files.write_files([{"path": f"{place}/{n}", "data": str(n)} for n in range(5)])
        assert len(told) == 5
        assert len(await sandbox.files.list(place)) == 6
        assert await sandbox.files.make_dir(f"{place}/d")
        assert not await sandbox.files.make_dir(f"{place}/d")
        assert (await sandbox.files.rename(f"{place}/0", f"{place}/d/0")).path == f"{place}/d/0"
        assert (await sandbox.files.get_info(f"{place}/1")).size == 1
        await sandbox.files.remove(f"{place}/d")
        assert not await sandbox.files.exists(f"{place}/d")
        with pytest.raises(e2b.FileNotFoundException):
            await sandbox.files.read(f"{place}/no")

    asyncio.run(talk())


def test_javascript_has_files(js: Js, shared: Sandbox, place: str) -> None:
    said = js(
        """
        const sandbox = await Sandbox.connect(given.id)
        const at = name => given.place + '/' + name
        const files = sandbox.files
        const bytes = new Uint8Array(200000).map((_, i) => i % 251)
        const same = other => other.length === bytes.length && other.every((one, i) => one === bytes[i])
        const out = {}
        out.text = [await files.write(at('t'), 'ü→😀'), await files.read(at('t'))]
        await files.write(at('b'), bytes.buffer)
        out.bytes = same(await files.read(at('b'), { format: 'bytes' }))
        await files.write(at('z'), bytes.buffer, { gzip: true })
        out.gzip = same(await files.read(at('z'), { format: 'bytes', gzip: true }))
        await files.write(at('blob'), new Blob([bytes]))
        out.blob = same(new Uint8Array(await (await files.read(at('blob'), { format: 'blob' })).arrayBuffer()))
        await files.write(at('s'), new Response(bytes).body)
        const chunks = []
        for await (const chunk of await files.read(at('s'), { format: 'stream' })) chunks.push(Buffer.from(chunk))
        out.stream = same(new Uint8Array(Buffer.concat(chunks)))
        out.many = (await files.write([{ path: at('m/1'), data: '1' }, { path: at('m/2'), data: '2' }])).map(one => one.path)
        out.list = (await files.list(at('m'))).map(one => [one.name, one.type, one.size])
        out.made = [await files.makeDir(at('d')), await files.makeDir(at('d'))]
        out.moved = (await files.rename(at('m/1'), at('d/1'))).path
        out.info = await files.getInfo(at('d/1'))
        out.exists = [await files.exists(at('d/1')), await files.exists(at('m/1'))]
        await files.remove(at('d'))
        out.removed = await files.exists(at('d'))
        out.metadata = (await files.write(at('meta'), 'x', { metadata: { Author: 'me' } })).metadata
        out.none = await thrown(() => files.read(at('no')))
        out.directory = await thrown(() => files.read(given.place))
        out.user = await thrown(() => files.read(at('t'), { user: 'nobody-here' }))
        const url = await sandbox.downloadUrl(at('t'), { useSignatureExpiration: 60_000 })
        out.signed = await (await fetch(url, { headers: { 'E2b-Sandbox-Id': given.id } })).text()
        return out
        """,
        id=shared.sandbox_id,
        place=place,
    )
    assert said["text"][0]["path"] == f"{place}/t"
    assert said["text"][1] == said["signed"] == "ü→😀"
    assert [said[name] for name in ("bytes", "gzip", "blob", "stream")] == [True] * 4
    assert said["many"] == [f"{place}/m/1", f"{place}/m/2"]
    assert said["list"] == [["1", "file", 1], ["2", "file", 1]]
    assert (said["made"], said["moved"], said["exists"], said["removed"]) == ([True, False], f"{place}/d/1", [True, False], False)
    assert (said["info"]["permissions"], said["info"]["owner"], said["metadata"]) == ("-rw-r--r--", "user", {"author": "me"})
    assert [said[name]["name"] for name in ("none", "directory", "user")] == [
        "FileNotFoundError",
        "InvalidArgumentError",
        "AuthenticationError",
    ]
