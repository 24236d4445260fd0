"""Watches through E2B's SDKs: what an upload, a rename, a removal and a command look like to who watches."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from tests.e2b.stage import Js

import e2b
from e2b import AsyncSandbox, FilesystemEventType, Sandbox

CREATE, WRITE, CHMOD = FilesystemEventType.CREATE, FilesystemEventType.WRITE, FilesystemEventType.CHMOD
REMOVE, RENAME = FilesystemEventType.REMOVE, FilesystemEventType.RENAME


@pytest.fixture
def place(shared: Sandbox) -> str:
    """A directory of the test's own."""
    path = f"/home/user/watch-{os.urandom(4).hex()}"
    shared.files.make_dir(path)
    return path


def _seen(events: list[Any]) -> list[tuple[str, FilesystemEventType]]:
    return [(event.name, event.type) for event in events]


def test_an_upload_is_told_at_once_in_its_three_steps(shared: Sandbox, place: str) -> None:
    watcher = shared.files.watch_dir(place)
    for number in range(10):
        shared.files.write(f"{place}/f{number}", "content")
        assert _seen(watcher.get_new_events()) == [(f"f{number}", kind) for kind in (CREATE, CHMOD, WRITE)]
    assert watcher.get_new_events() == []
    watcher.stop()
    with pytest.raises(e2b.SandboxException):
        watcher.get_new_events()


def test_what_is_done_to_a_file_is_told(shared: Sandbox, place: str) -> None:
    shared.files.write(f"{place}/f", "1")
    watcher = shared.files.watch_dir(place)
    shared.files.write(f"{place}/f", "22")
    assert ("f", WRITE) in _seen(watcher.get_new_events())
    shared.files.rename(f"{place}/f", f"{place}/g")
    assert _seen(watcher.get_new_events()) == [("f", RENAME), ("g", CREATE)]
    shared.commands.run(f"chmod 600 {place}/g")
    assert _seen(watcher.get_new_events()) == [("g", CHMOD)]
    shared.files.remove(f"{place}/g")
    assert _seen(watcher.get_new_events()) == [("g", REMOVE)]
    shared.commands.run(f"echo x > {place}/h")
    assert _seen(watcher.get_new_events()) == [("h", CREATE), ("h", WRITE)]
    watcher.stop()


def test_what_is_below_is_told_when_asked_for(shared: Sandbox, place: str) -> None:
    shared.files.make_dir(f"{place}/old")
    flat, deep = shared.files.watch_dir(place), shared.files.watch_dir(place, recursive=True)
    shared.files.write(f"{place}/old/f", "x")
    assert flat.get_new_events() == []
    assert ("old/f", CREATE) in _seen(deep.get_new_events())
    shared.files.write(f"{place}/new/er/f", "x")
    seen = _seen(deep.get_new_events())
    assert {("new", CREATE), ("new/er", CREATE), ("new/er/f", CREATE)} <= set(seen)
    flat.stop()
    deep.stop()


def test_entries_come_with_events_when_asked_for(shared: Sandbox, place: str) -> None:
    watcher = shared.files.watch_dir(place, include_entry=True)
    shared.files.write(f"{place}/f", "12345")
    events = watcher.get_new_events()
    assert [event.entry.path for event in events] == [f"{place}/f"] * 3
    assert events[-1].entry.size == 5
    shared.files.remove(f"{place}/f")
    assert [event.entry for event in watcher.get_new_events()] == [None]
    watcher.stop()


def test_what_cannot_be_watched_says_why(shared: Sandbox, place: str) -> None:
    with pytest.raises(e2b.NotFoundException):
        shared.files.watch_dir(f"{place}/no")
    shared.files.write(f"{place}/f", "")
    with pytest.raises(e2b.SandboxException):
        shared.files.watch_dir(f"{place}/f")


def test_async_watches(shared: Sandbox, place: str) -> None:
    async def talk() -> None:
        sandbox = await AsyncSandbox.connect(shared.sandbox_id)
        seen: asyncio.Queue[Any] = asyncio.Queue()
        handle = await sandbox.files.watch_dir(place, seen.put_nowait, recursive=True)
        await sandbox.files.write(f"{place}/f", "x")
        events = [await asyncio.wait_for(seen.get(), 30) for _ in range(3)]
        assert _seen(events) == [("f", kind) for kind in (CREATE, CHMOD, WRITE)]
        await handle.stop()

        ended = asyncio.Event()
        await sandbox.files.watch_dir(place, seen.put_nowait, on_exit=lambda _: ended.set(), timeout=1)
        await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(talk())


def test_javascript_watches(js: Js, shared: Sandbox, place: str) -> None:
    said = js(
        """
        const sandbox = await Sandbox.connect(given.id)
        const seen = []
        const saw = async count => { for (let i = 0; i < 200 && seen.length < count; i++) await sleep(50) }
        const handle = await sandbox.files.watchDir(given.place, event => seen.push([event.name, event.type]), { recursive: true })
        await sandbox.files.write(given.place + '/f', 'x')
        await saw(3)
        await sandbox.files.rename(given.place + '/f', given.place + '/g')
        await saw(5)
        await sandbox.files.remove(given.place + '/g')
        await saw(6)
        await handle.stop()
        await sandbox.files.write(given.place + '/late', 'x')
        await sleep(300)
        return { seen, none: await thrown(() => sandbox.files.watchDir(given.place + '/no', () => {})) }
        """,
        id=shared.sandbox_id,
        place=place,
    )
    steps = [["f", "create"], ["f", "chmod"], ["f", "write"], ["f", "rename"], ["g", "create"], ["g", "remove"]]
    assert said["seen"] == steps
    assert said["none"]["name"] in ("NotFoundError", "FileNotFoundError")
