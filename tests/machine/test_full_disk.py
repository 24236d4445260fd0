"""The host's disk is full, or becomes so, during every operation while sandboxes write: a typed error, nobody is harmed, nothing half made
is left, and all goes on by itself as soon as there is room. On a btrfs of its own, with real guests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
import uvloop
from tests.machine.test_bundles import exported, imported
from tests.machine.test_lives import Host
from tests.machine.test_templates import build, context

from space.config.settings import Settings
from space.model.errors import SpaceError
from space.model.ids import new_checkpoint_id, new_process_id, new_sandbox_id
from space.node.halting import STALLED
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Session
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance
from space.testing.smalldisk import HostDisk, SmallDisk, host_disk, small_disk

SIZE_MIB = 3 << 10
RECIPE = 'version = 1\nname = "tiny"\n[base]\ntemplate = "base"\n[[step]]\nrun = "head -c 30000000 /dev/urandom > /opt/data"\n'
# Twenty files of a MB, written again and again, each time with what it is to be: a number is told once both are on the (guest's) disk.
WRITER = """
mkdir -p /root/w /root/sums; n=0
while test ! -e /root/enough; do
  n=$((n+1)); at=$((n % 20)); head -c 1000000 /dev/urandom > /root/w/$at; sync /root/w/$at
  sha256sum /root/w/$at > /root/sums/$at; sync /root/sums/$at; echo $n > /dev/shm/n; sleep 0.2
done
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[BareInstance, SmallDisk]]:
    disks: list[SmallDisk] = []

    def storage(over: Path) -> AbstractContextManager[SmallDisk]:
        disks.append(SmallDisk(over))
        return small_disk(over, tmp_path / "image", SIZE_MIB)

    settings = Settings(accelerator="tcg", warm_templates=1, clones_ahead=0, disk_reserve_mib=0)
    with bare_instance(*BESIDE_NODE, "node", settings=settings, storage=storage) as bare:
        yield bare, disks[0]


@pytest.fixture
def beneath(tmp_path: Path) -> Iterator[tuple[BareInstance, HostDisk]]:
    """The data lies in a loop file, and the disk that this lies on is the one to be filled."""
    with host_disk(tmp_path / "host", SIZE_MIB + 64) as outer:

        def storage(over: Path) -> AbstractContextManager[SmallDisk]:
            outer.inner = SmallDisk(over)
            return small_disk(over, outer.mounted / "image", SIZE_MIB)

        settings = Settings(accelerator="tcg", warm_templates=1, clones_ahead=0, disk_reserve_mib=0)
        with bare_instance(*BESIDE_NODE, "node", settings=settings, storage=storage) as bare:
            yield bare, outer


class Full:
    """What is done while there is no room."""

    def __init__(self, host: Host, bare: BareInstance, disk: SmallDisk | HostDisk, bundle: Path) -> None:
        self.host, self.bare, self.disk, self.bundle = host, bare, disk, bundle
        self.idle = self.writer = self.template = ""

    async def create(self) -> None:
        asked = api.Create(new_sandbox_id(), "acme", 1, "base", 1, 256, 2048, {})
        try:
            state = await self.host.last("create", asked)
            if state.phase == "failed":
                raise_as_told(state)
        finally:
            await self.host.delete(asked.sandbox)

    async def suspend(self) -> None:
        state = await self.host.last("suspend", api.Target(self.idle))
        if state.phase == "suspended":
            assert (await self.wake()).phase == "running"
        elif state.phase == "running":
            raise_as_told(state)

    async def wake(self) -> api.SandboxState:
        generation = (await self.listed())[self.idle].generation + 1
        return await self.host.last("wake", life_api.Wake(sandbox=self.idle, generation=generation))

    async def checkpoint(self) -> None:
        name = new_checkpoint_id()
        await self.host.session.call("checkpoint", life_api.Checkpoint(sandbox=self.idle, checkpoint=name))
        await self.host.session.call("drop_checkpoint", life_api.CheckpointTarget(self.idle, name))

    async def fork(self) -> None:
        child = new_sandbox_id()
        try:
            states = await self.host.states(
                "fork", life_api.Fork(sandbox=self.idle, children=[life_api.Child(sandbox=child, generation=1)])
            )
            if states[-1].phase == "failed":
                raise_as_told(states[-1])
        finally:
            await self.host.delete(child)

    async def snapshot(self) -> None:
        digest = new_process_id().encode().hex()[:32]
        await self.host.session.call("template_snapshot", life_api.TemplateSnapshot(sandbox=self.idle, name="kept", digest=digest))
        await self.host.session.call("template_drop", api.TemplateTarget("acme", digest))

    async def build(self) -> None:
        made, _, _ = await build(self.host.session, api.TemplateBuild("acme", RECIPE.replace("/data", f"/{new_process_id()}")), context())
        await self.host.session.call("template_drop", api.TemplateTarget("acme", made.digest))

    async def export(self) -> None:
        await exported(self.host.session, self.template, self.bundle.with_name("again"))  # it goes elsewhere, and needs no room here

    async def take(self) -> None:
        made = await imported(self.host.session, self.bundle, new_process_id())
        await self.host.session.call("template_drop", api.TemplateTarget("acme", made.digest))

    async def listed(self) -> dict[str, api.SandboxState]:
        told = await self.host.session.call("list", api.Empty())
        return {each.sandbox: each for each in msgspec.msgpack.decode(told, type=api.SandboxList).sandboxes}

    def half_made(self) -> set[str]:
        instance = self.bare.instance
        places = (instance.snapshots, instance.templates, instance.sandboxes)
        return {path.name for each in places for path in each.iterdir() if path.name.startswith(".")}

    async def none_is_half_made(self) -> None:
        deadline = time.monotonic() + 20
        while self.half_made():
            assert time.monotonic() < deadline, self.half_made()
            await asyncio.sleep(0.05)

    async def written(self) -> int:
        return int(await self.host.run(self.writer, "cat /dev/shm/n"))


def raise_as_told(state: api.SandboxState) -> None:
    raise Refused(state.reason or "")


class Refused(Exception):
    """What a sandbox's state says of it."""


OPERATIONS: tuple[str, ...] = ("create", "suspend", "checkpoint", "fork", "snapshot", "build", "take", "export")


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.timeout(600)
def test_a_full_host_is_a_typed_error_harms_nobody_and_all_goes_on_with_room(
    place: tuple[BareInstance, SmallDisk], tmp_path: Path, thorough: bool
) -> None:
    bare, disk = place

    async def work(host: Host) -> None:
        full = Full(host, bare, disk, tmp_path / "bundle")
        await _prepare(full)
        for leave in (0, 24) if thorough else (0,):
            for name in OPERATIONS if thorough else ("create", "suspend", "checkpoint", "fork"):
                await _tried(full, name, leave)
        await _stalled_and_going_on(full, 40 if thorough else 3)  # a channel may be silent for 30 s

    _with(bare, work)


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.timeout(600)
def test_a_disk_that_is_full_beneath_the_loop_file_stops_nobody(
    beneath: tuple[BareInstance, HostDisk], tmp_path: Path, thorough: bool
) -> None:
    """The loop file has all its blocks, so what is written in it needs none of the disk's: all is done, and who writes goes on."""
    bare, disk = beneath

    async def work(host: Host) -> None:
        full = Full(host, bare, disk, tmp_path / "bundle")
        await _prepare(full)
        for name in OPERATIONS if thorough else ("create", "suspend", "checkpoint"):
            assert await _tried(full, name, 0) == "done"
        disk.fill()
        before = await full.written()
        await full.host.run(
            full.writer, f"for i in $(seq 300); do test $(cat /dev/shm/n) -gt {before + 20} && exit 0; sleep 0.1; done; exit 1"
        )
        await full.host.run(full.writer, "touch /root/enough; sleep 2; cat /root/sums/* | sha256sum --quiet -c")
        await full.host.delete(full.writer, full.idle)
        assert disk.is_writable()

    _with(bare, work)


async def _prepare(full: Full) -> None:
    host = full.host
    await host.session.call("bake", life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=256, disk_mib=2048))
    full.idle, full.writer = [(await host.create()).sandbox for _ in range(2)]
    await host.run(full.idle, "echo idle | tee /root/mark > /dev/shm/mark")
    built, _, _ = await build(host.session, api.TemplateBuild("acme", RECIPE), context())
    full.template = built.digest
    await exported(host.session, built.digest, full.bundle)
    started = api.Exec(full.writer, ["sh", "-ec", WRITER], user="root", process=new_process_id(), attach=False, named=True)
    await host.session.call("exec", started)


async def _tried(full: Full, name: str, leave: int) -> str:
    full.disk.fill(leave)
    operation: Callable[[], Awaitable[None]] = getattr(full, name)
    began, outcome = time.monotonic(), "done"
    try:
        await operation()
    except Refused as refused:
        outcome = f"refused: {refused}"
    except SpaceError as error:
        outcome = f"{error.code}: {error}"
    assert outcome.startswith(("done", "no_capacity", "build_failed")) or "full" in outcome, outcome
    print(f"{leave} MiB left, {name}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    found = await full.listed()
    assert {each: found[each].phase for each in found} == {full.idle: "running", full.writer: "running"}, found
    await full.none_is_half_made()
    full.disk.free()
    assert full.disk.is_writable()
    assert (await full.host.run(full.idle, "cat /root/mark /dev/shm/mark")).split() == ["idle"] * 2
    return outcome


async def _stalled_and_going_on(full: Full, seconds: float) -> None:
    """Its writes wait, and it says so; then they are there, all of them."""
    full.disk.fill()
    await _until(full, lambda state: state.reason == STALLED, 60)
    await asyncio.sleep(seconds)
    found = (await full.listed())[full.writer]
    assert (found.phase, found.reason) == ("running", STALLED)
    with pytest.raises(SpaceError, match="cannot be shut down"):
        await full.host.last("stop", api.Target(full.writer))
    full.disk.free()
    await _until(full, lambda state: state.reason is None, 20)
    before = await full.written()
    await full.host.run(full.writer, f"for i in $(seq 300); do test $(cat /dev/shm/n) -gt {before} && exit 0; sleep 0.1; done; exit 1")
    await full.host.run(full.writer, "touch /root/enough; sleep 2; cat /root/sums/* | sha256sum --quiet -c")
    assert await full.host.run(full.writer, "dmesg | grep -ci 'i/o error' || true") == "0"
    await full.host.do("stop", full.writer, "stopped")
    await full.host.delete(full.writer, full.idle)


async def _until(full: Full, true: Callable[[api.SandboxState], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true(state := (await full.listed())[full.writer]):
        assert time.monotonic() < deadline, state
        await asyncio.sleep(0.1)


def _with(bare: BareInstance, work: Callable[[Host], Awaitable[None]]) -> None:
    async def with_session() -> None:
        session = await Session.connect(bare.instance.node_socket)
        try:
            await work(Host(session))
        finally:
            await session.aclose()

    uvloop.run(with_session())
