"""SIGKILL at every named step of every operation on lives, of the real node, rootd and VMMs: nothing is lost, nothing is left.

A round does one operation, stops it at one step (`node.stages`, `rootd.steps`), kills one process there, and lets the next one begin.
Then all that the node knows, rootd has and the host holds is the same again, what was stored or ran is there with its memory and its
disk, and what was not finished is not there at all. Guests are warm clones, so that a round is a matter of seconds. Every change runs
a part of the rounds, one for each way and victim; the long tier runs all.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import uvloop
from tests.machine.test_lives import Host

from space.config.settings import Settings
from space.model.errors import SpaceError
from space.model.ids import new_checkpoint_id, new_sandbox_id
from space.node.ledger import Ledger, Record, host_name
from space.node.stages import COLD, RESTORED, STOP, SUSPENSION, Stage
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing import leaks, machine
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance
from space.testing.stops import Stops

SEED = 4
WHOLE_WITHIN = 40.0
STEADY = frozenset({"running", "suspended", "stopped", "failed"})
VICTIMS = ("node", "rootd", "vmm")
SNAPSHOT = ("snapshot staged", "snapshot ready", "snapshot copied", "snapshot synced", "snapshot described", "snapshot committed")
KEPT = ("template staged", "template copied", "template described", "template committed")
WAYS: dict[str, tuple[Stage, ...]] = {
    "create": RESTORED,
    "suspend": SUSPENSION,
    "wake": RESTORED,
    "stop": STOP,
    "start": COLD,
    "checkpoint": (Stage.SYNC, Stage.SNAPSHOT, Stage.RECORD),
    "rollback": RESTORED,
    "fork": (Stage.SNAPSHOT, *RESTORED),
    "template": (Stage.SYNC,),
    "build": (Stage.SPAWN, Stage.BOOT),
    "export": (Stage.SEND,),
    "import": (Stage.TAKE,),
}
STEPS: dict[str, tuple[str, ...]] = {
    "suspend": SNAPSHOT,
    "wake": ("memory linked",),
    "checkpoint": SNAPSHOT,
    "rollback": ("memory linked",),
    "fork": (*SNAPSHOT, "memory linked"),
    "template": KEPT,
    "build": KEPT,
    "import": ("snapshot import staged", "snapshot import described", "snapshot import committed"),
}
RECIPE = 'version = 1\nname = "killed"\n[base]\ntemplate = "base"\n[[step]]\nrun = "echo {word} > /etc/word"\n'


@dataclass(frozen=True, slots=True)
class Round:
    """victim "step": whoever takes rootd's step kills itself there."""

    way: str
    stage: str
    when: str
    victim: str

    def __str__(self) -> str:
        return f"{self.way}: {self.victim} killed {self.when} {self.stage}".replace("  ", " at ")


def everything() -> list[Round]:
    """All of them."""
    stages = [
        Round(way, stage.value, when, victim)
        for way, places in WAYS.items()
        for stage in places
        for when in ("before", "after")
        for victim in VICTIMS
    ]
    return stages + [Round(way, step, "", "step") for way, steps in STEPS.items() for step in steps]


def a_part() -> list[Round]:
    """One of each way and victim, except what boots."""
    chance, kinds = random.Random(SEED), dict[tuple[str, str], list[Round]]()
    for each in everything():
        kinds.setdefault((each.way, each.victim), []).append(each)
    return [chance.choice(kinds[kind]) for kind in sorted(kinds) if kind[0] not in ("start", "build")]


class World:
    """The instance, the node's session, and a sandbox that rounds share as long as it lives."""

    def __init__(self, bare: BareInstance, scratch: Path) -> None:
        self.bare, self.scratch = bare, scratch
        self.stops = Stops(bare)
        for name in (*BESIDE_NODE, "node"):
            (self.stops if name in ("rootd", "node") else bare).start(name)
        self.host: Host
        self.subject = ""
        self.word = ""
        self.generations = Counter[str]()
        self.checkpoint = ""
        self.file = b""  # a sandbox that went out,
        self.file_word = ""  # and what it has in its memory and on its disk

    async def connect(self) -> None:
        self.host = Host(await Session.connect(self.bare.instance.node_socket))

    async def bake(self) -> None:
        await self.host.session.call("bake", life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=256, disk_mib=2048))

    # -- the sandbox of a round ----------------------------------------------------------------------------------

    async def mark(self, sandbox: str) -> None:
        """What must not be lost, in memory and (not written yet) on the disk."""
        self.word = new_checkpoint_id()
        await self.host.run(sandbox, f"echo {self.word} | tee /root/mark > /dev/shm/mark")

    async def holds(self, sandbox: str, *, memory: bool = True, word: str = "") -> None:
        found = await self.host.run(sandbox, "cat /dev/shm/mark /root/mark 2>/dev/null || true")
        wanted = word or self.word
        assert found.split() == [wanted] * (2 if memory else 1), (sandbox, found, wanted)

    async def wake(self, sandbox: str) -> api.SandboxState:
        self.generations[sandbox] += 1
        return await self.host.last("wake", life_api.Wake(sandbox=sandbox, generation=1 + self.generations[sandbox]))

    async def ready(self) -> str:
        """The subject runs, with a fresh mark."""
        state = (await self.listed()).get(self.subject)
        if state is None or state.phase != "running":
            if state is not None:
                await self.host.delete(self.subject)
            made = await self.host.create()
            if made.start == "cold":
                await self.bake()
            self.subject, self.checkpoint = made.sandbox, ""
        await self.mark(self.subject)
        return self.subject

    async def before(self, way: str) -> str:
        if way == "create":
            await self.bake()  # a round that killed a clone has spoilt what it was made of
            return new_sandbox_id()
        sandbox = await self.ready()
        if way == "wake":
            await self.host.do("suspend", sandbox, "suspended")
        elif way == "start":
            await self.host.do("stop", sandbox, "stopped")
        elif way == "export":
            await self.host.do("suspend", sandbox, "suspended")
        elif way == "import" and not self.file:
            await self.host.do("suspend", sandbox, "suspended")
            self.file, self.file_word = await self.sent(sandbox), self.word
            assert (await self.wake(sandbox)).phase == "running"
        elif way == "rollback":
            await self.keep(sandbox)
            await self.host.run(sandbox, "echo later | tee /root/mark > /dev/shm/mark")
        return sandbox

    async def keep(self, sandbox: str) -> None:
        """One checkpoint, of now."""
        await self.forget_checkpoints(sandbox)
        self.checkpoint = new_checkpoint_id()
        await self.host.session.call("checkpoint", life_api.Checkpoint(sandbox=sandbox, checkpoint=self.checkpoint))

    async def forget_checkpoints(self, sandbox: str) -> None:
        for name in await self.checkpoints(sandbox):
            await self.host.session.call("drop_checkpoint", life_api.CheckpointTarget(sandbox, name))

    async def checkpoints(self, sandbox: str) -> list[str]:
        told = await self.host.session.call("checkpoints", api.Target(sandbox))
        return [each.checkpoint for each in msgspec.msgpack.decode(told, type=life_api.CheckpointList).checkpoints]

    def asked(self, way: str, sandbox: str) -> tuple[str, msgspec.Struct]:
        following = 2 + self.generations[sandbox]
        match way:
            case "create":
                return "create", api.Create(sandbox, "acme", 1, "base", 1, 256, 2048, {})
            case "suspend" | "stop":
                return way, api.Target(sandbox)
            case "wake" | "start":
                self.generations[sandbox] += 1
                return "wake", life_api.Wake(sandbox=sandbox, generation=following)
            case "checkpoint":
                self.checkpoint = new_checkpoint_id()
                return way, life_api.Checkpoint(sandbox=sandbox, checkpoint=self.checkpoint)
            case "rollback":
                self.generations[sandbox] += 1
                return way, life_api.Rollback(sandbox=sandbox, checkpoint=self.checkpoint, generation=following)
            case "template":
                return "template_snapshot", life_api.TemplateSnapshot(
                    sandbox=sandbox, name="kept", digest=f"{random.getrandbits(128):032x}"
                )
        return "fork", life_api.Fork(sandbox=sandbox, children=[life_api.Child(sandbox=new_sandbox_id(), generation=1) for _ in range(2)])

    async def sent(self, sandbox: str) -> bytes:
        """The file of it."""
        async with await self.host.session.open("sandbox_export", api.Target(sandbox), bulk=True, finish=True) as stream:
            return b"".join([bytes(event.payload) async for event in stream if isinstance(event, Data)])

    async def give(self, verb: str, asked: msgspec.Struct, data: bytes) -> None:
        """An operation that data comes along with."""
        async with await self.host.session.open(verb, asked, bulk=True) as stream:
            with contextlib.suppress(SpaceError):  # it has ended, which is read below
                for at in range(0, len(data), 64 << 10):
                    await stream.send(data[at : at + (64 << 10)])
                await stream.close()
            async for _ in stream:
                pass

    async def do(self, way: str, sandbox: str) -> None:
        match way:
            case "export":
                await self.sent(sandbox)
                return
            case "import":
                await self.give("sandbox_import", life_api.Import(new_sandbox_id(), "acme"), self.file)
                return
            case "build":
                recipe = RECIPE.format(word=new_checkpoint_id())  # so that no step is found in the cache
                await self.give("template_build", api.TemplateBuild("acme", recipe), bytes(1024))
                return
        async with await self.host.session.open(*self.asked(way, sandbox), finish=True) as stream:
            async for _ in stream:
                pass

    # -- a round -------------------------------------------------------------------------------------------------

    async def play(self, one: Round) -> str:
        """What came of the operation; afterwards all is whole."""
        sandbox = await self.before(one.way)
        if one.way == "stop" and one.victim == "vmm":
            await self.host.run(sandbox, "sync")  # what a guest had not written when it died is lost, as without power
        self.stops.arm(one.stage, one.when)
        asking = asyncio.ensure_future(self.do(one.way, sandbox))
        await asyncio.to_thread(self.stops.wait)
        killed = await asyncio.to_thread(self.kill, one.victim)
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)
        if one.victim == "node":
            await self.host.session.aclose()
            await asyncio.to_thread(self.stops.start, "node")
            await self.connect()
        if not isinstance(outcome, SpaceError | None):
            raise outcome
        found = await self.settled()
        await self.judge(one, sandbox, found, done=outcome is None, died=sandbox in killed)
        return "done" if outcome is None else outcome.code

    def kill(self, victim: str) -> set[str]:
        """Sandboxes whose VMM was killed."""
        records = {each.sandbox for each in self.ledger()[0]}
        match victim:
            case "node":
                self.bare.kill("node")
                self.stops.go()
                return set()
            case "rootd" | "step":  # a step of the process that takes a snapshot has killed only that
                self.stops.restart("rootd")
                self.stops.go()
                return set()
        for pid in machine.vmm_pids(self.bare.instance):
            with contextlib.suppress(ProcessLookupError):
                machine.kill(pid)
        self.stops.go()
        return records

    async def listed(self) -> dict[str, api.SandboxState]:
        told = await self.host.session.call("list", api.Empty())
        return {each.sandbox: each for each in msgspec.msgpack.decode(told, type=api.SandboxList).sandboxes}

    def ledger(self) -> tuple[list[Record], set[str]]:
        """The node's rows, and the snapshots that they name."""
        place = self.scratch / "ledger"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for path in self.bare.instance.node_data.glob("ledger.db*"):
            shutil.copy(path, place)
        ledger = Ledger(place / "ledger.db")
        try:
            records, baked = ledger.records(), {each.snapshot for each in ledger.baked()}
        finally:
            ledger.close()
        stored = {each.snapshot for each in records if each.snapshot}
        return records, baked | stored | {mark.snapshot for each in records for mark in each.checkpoints}

    def amiss(self, found: dict[str, api.SandboxState]) -> str:
        """What does not fit together, if anything."""
        instance = self.bare.instance
        records, named = self.ledger()
        moving = {each.sandbox: each.phase for each in found.values() if each.phase not in STEADY}
        files = {each.name for each in instance.sandboxes.iterdir()}
        running = {host_name(each) for each in records if each.sandbox in found and found[each.sandbox].phase == "running"}
        resting = {host_name(each) for each in records if each.phase.value in ("stopped", "failed")}
        snapshots = {each.name for each in instance.snapshots.iterdir()}
        shelf = {each.name for each in instance.templates.iterdir() if each.name.startswith(".")}
        living = len(machine.vmm_pids(instance))
        facts = {
            "under way": moving,
            "files of nobody": files - running - resting,
            "files that are missing": running - files,
            "snapshots that nobody names": snapshots - named,
            "snapshots that are missing": named - snapshots,
            "half a template": shelf,
            "VMMs": f"{living} live, and {len(running)} sandboxes run" if living != len(running) else "",
        }
        return ", ".join(f"{what}: {value}" for what, value in facts.items() if value)

    async def settled(self) -> dict[str, api.SandboxState]:
        deadline = time.monotonic() + WHOLE_WITHIN
        while True:
            try:
                found = await self.listed()
                amiss = self.amiss(found)
            except SpaceError as error:
                found, amiss = {}, str(error)
            if not amiss:
                return found
            assert time.monotonic() < deadline, f"not whole again after {WHOLE_WITHIN:g} s: {amiss}"
            await asyncio.sleep(0.05)

    async def judge(self, one: Round, sandbox: str, found: dict[str, api.SandboxState], *, done: bool, died: bool) -> None:
        phase = found[sandbox].phase if sandbox in found else "gone"
        if one.way == "create":
            assert phase == "running" if done and not died else phase in ("running", "failed", "gone"), (phase, found)
            if phase == "running":
                assert await self.host.run(sandbox, "hostname") == sandbox
        elif one.way == "fork":
            for child, state in found.items():
                if child != sandbox and state.phase == "running":
                    await self.holds(child)
        elif one.way == "import":
            came = [each for each in found if each != sandbox]
            assert came or not done, "it was answered, and is not there"
            for each in came:
                assert found[each].phase == "suspended"
                assert (await self.wake(each)).phase == "running"
                await self.holds(each, word=self.file_word)
        if one.way != "create":
            await self.judge_subject(one, sandbox, phase, died=died)
        if one.way == "checkpoint" and self.checkpoint in await self.checkpoints(sandbox):
            word = self.word
            await self.mark(sandbox)
            self.generations[sandbox] += 1
            asked = life_api.Rollback(sandbox=sandbox, checkpoint=self.checkpoint, generation=1 + self.generations[sandbox])
            assert (await self.host.last("rollback", asked)).phase == "running"
            await self.holds(sandbox, word=word)
            self.word = word
        else:
            assert not (one.way == "checkpoint" and done), "it was answered, and is not there"
        others = [each for each in found if each != self.subject]
        await self.host.delete(*others)
        if self.subject in found and one.way in ("checkpoint", "rollback"):
            await self.forget_checkpoints(self.subject)

    async def judge_subject(self, one: Round, sandbox: str, phase: str, *, died: bool) -> None:
        """It is what it was, or what it was to be; of a machine that was killed the disk is left."""
        assert phase in STEADY, phase
        was_booted = one.way in ("stop", "start")
        if phase == "failed":
            assert died, "it has failed, and nobody killed it"
        memory = not was_booted and phase != "failed"
        if phase != "running":
            woken = await self.wake(sandbox)
            assert woken.phase == "running", woken.reason
        if phase == "failed":
            return  # its disk is as after a loss of power: it boots
        if was_booted and phase == "running":
            memory = one.way == "stop" and "/dev/shm/mark" in await self.host.run(sandbox, "ls /dev/shm/mark 2>/dev/null || true")
        await self.holds(sandbox, memory=memory)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with bare_instance(settings=Settings(accelerator="tcg", warm_templates=1, clones_ahead=0)) as bare:
        yield World(bare, tmp_path)


def _play(world: World, rounds: Sequence[Round]) -> None:
    async def all_of_them() -> None:
        await world.connect()
        await world.bake()
        for number, one in enumerate(rounds):
            began = time.monotonic()
            print(f"{number + 1}/{len(rounds)} {one}", end=": ", flush=True)
            outcome = await asyncio.wait_for(world.play(one), 180)
            print(f"{outcome}, whole after {time.monotonic() - began:.1f} s", flush=True)
        await world.host.delete(*await world.listed())
        await world.host.session.aclose()

    uvloop.run(all_of_them())
    world.stops.restart("node")  # what is warm is its own
    leaks.settle(lambda: leaks.of_sandboxes(world.bare.instance) - _warm(world.bare), within=40)  # it may have to bake it anew first


def _warm(bare: BareInstance) -> leaks.Things:
    """What is held of a warm template, and slots that are ready for whoever comes next."""
    kept = ("memory-", f"of uid {bare.instance.memory_uid}", "/netns/", "/worker-")
    return frozenset(each for each in leaks.of_sandboxes(bare.instance) if any(word in each for word in kept))


@pytest.mark.timeout(600)
def test_a_process_that_is_killed_at_a_step_loses_nothing_and_leaves_nothing(world: World) -> None:
    _play(world, a_part())


@pytest.mark.full
@pytest.mark.timeout(5400)
def test_every_process_that_is_killed_at_every_step_loses_nothing_and_leaves_nothing(world: World) -> None:
    _play(world, everything())
