"""SIGKILL of control at every named stage of every operation on lives, of real guests: what a client was told holds, and nothing is lost.

A round asks control for one operation, stops the node's work at one stage of it (`node.stages`), kills control there, and lets the next
one begin, before the node goes on or after. Then control and node tell of the same sandboxes in the same phases, the sandbox that it was
done to has its memory and its disk, and the same request again, with its key, makes nothing twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.machine.test_steps import RECIPE, STEADY, WAYS, WHOLE_WITHIN

from space.config.settings import Settings
from space.model.errors import Conflict, SpaceError
from space.rpc import node_api as api
from space.rpc.session import Session
from space.sdk import Client, Sandbox
from space.testing import leaks
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance
from space.testing.stops import Stops

SEED = 7
KEPT_BY = {"fork", "create", "template"}  # requests with an idempotency key: the same one again is the same operation


class World:
    """An instance with control, a client of it, and a sandbox that rounds share."""

    def __init__(self, bare: BareInstance, scratch: Path) -> None:
        self.bare, self.scratch = bare, scratch
        self.stops = Stops(bare)
        for name in (*BESIDE_NODE, "node", "control"):
            (self.stops if name in ("rootd", "node") else bare).start(name)
        key = bare.instance.admin_key.read_text().strip()
        self.client = Client(api_url=f"http://127.0.0.1:{bare.port('control')}", api_key=key)
        self.subject: Sandbox
        self.word = ""
        self.count = 0
        self.file = scratch / "out.space"

    def begin(self) -> None:
        """A sandbox to do it to, a clone: the first create of a template bakes what the others are copied of."""
        deadline = time.monotonic() + 120
        while True:
            self.subject = Sandbox.create(client=self.client, memory_mib=256)
            if self.subject.info().start == "warm":
                return
            assert time.monotonic() < deadline, "nothing was baked"
            self.subject.delete()
            time.sleep(1)

    def ready(self, way: str) -> None:
        self.awake()
        self.count += 1
        self.word = f"word-{self.count}"
        self.subject.run(f"echo {self.word} | tee /root/mark > /dev/shm/mark", user="root", check=True)
        match way:
            case "wake" | "export":
                self.subject.suspend()
            case "start":
                self.subject.stop()
            case "rollback":
                self.drop_checkpoints()
                self.subject.checkpoint()
                self.subject.run("echo later | tee /root/mark > /dev/shm/mark", user="root", check=True)
            case "import" if not self.file.exists():
                self.subject.suspend()
                self.subject.export(self.file)
                self.subject.wake()

    def awake(self) -> None:
        if self.subject.info().phase.value != "running":
            self.subject.wake()

    def drop_checkpoints(self) -> None:
        for each in self.subject.checkpoints():
            self.subject.drop_checkpoint(each)

    def do(self, way: str) -> object:
        """The operation, by whoever uses the SDK."""
        key = f"key-{self.count}"
        match way:
            case "create":
                return Sandbox.create(client=self.client, memory_mib=256, idempotency_key=key)
            case "suspend" | "stop" | "wake" | "checkpoint" | "start":
                return getattr(self.subject, {"start": "wake"}.get(way, way))()
            case "rollback":
                self.subject.rollback(self.subject.checkpoints()[0])
                return None
            case "fork":
                return self.subject.fork(2, idempotency_key=key)
            case "template":
                return self.subject.keep_as_template(f"kept{self.count}", idempotency_key=key)
            case "build":
                recipe = self.scratch / "recipe.toml"
                recipe.write_text(RECIPE.format(word=self.word))
                return list(self.client.build_template(recipe))
            case "export":
                return self.subject.export(self.scratch / f"{self.word}.space")
        assert way == "import"
        return Sandbox.import_file(self.file, client=self.client)

    # -- a round -------------------------------------------------------------------------------------------------
    def play(self, way: str, stage: str, when: str, *, late: bool) -> str:
        """What the client was told; afterwards all is whole. late: the node goes on before the next control is there."""
        self.ready(way)
        there = set(self.listed())
        self.stops.arm(stage, when)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.do, way)
            try:
                self.stops.wait()
                self.bare.kill("control")
                if late:
                    self.stops.go()
                    time.sleep(0.3)
                self.bare.start("control")
            finally:
                self.stops.go()
            fault = asked.exception(120)
        if fault is not None and not isinstance(fault, SpaceError):
            raise fault
        self.settled()
        self.judge(way, there, None if fault else asked.result())
        return "done" if fault is None else fault.code

    def listed(self) -> dict[str, str]:
        """Without those that never ran: their records tell for a while that they failed, and the node knows nothing of them."""
        known = self.of_node()
        found = {one.id: one.phase.value for one in self.client.sandboxes() if one.phase.value != "gone"}
        return {one: phase for one, phase in found.items() if phase != "failed" or one in known}

    def of_node(self) -> dict[str, str]:
        async def ask() -> bytes:
            session = await Session.connect(self.bare.instance.node_socket)
            try:
                return await session.call("list", api.Empty())
            finally:
                await session.aclose()

        told = msgspec.msgpack.decode(asyncio.run(ask()), type=api.SandboxList)
        return {each.sandbox: each.phase for each in told.sandboxes}

    def settled(self) -> None:
        """Control and node agree, and nothing is under way."""
        deadline = time.monotonic() + WHOLE_WITHIN
        while True:
            try:
                known, listed = self.of_node(), self.listed()
                if listed == known and set(listed.values()) <= STEADY:
                    return
                amiss = f"control says {listed}, the node {known}"
            except SpaceError as error:
                amiss = str(error)
            assert time.monotonic() < deadline, f"not whole again after {WHOLE_WITHIN:g} s: {amiss}"
            time.sleep(0.05)

    def judge(self, way: str, there: set[str], answer: object) -> None:
        if way in KEPT_BY:
            try:
                again = self.do(way)
            except Conflict:  # it is not known any more whether it was done; the key says so instead of doing it twice
                if answer is not None:
                    raise
            else:
                assert _names(again) == _names(answer) or answer is None
        came = {each: phase for each, phase in self.listed().items() if each not in there}
        most = {"create": 1, "fork": 2, "import": 1}.get(way, 0)
        assert len(came) <= most, f"{way} made {came}"
        for name in came:
            self.of_a_copy(way, Sandbox.connect(name, client=self.client))
        self.of_subject(way)
        if way in ("template", "build"):
            self.of_templates(way, answer)
        elif way == "export":
            file = self.scratch / f"{self.word}.space"
            assert file.exists() == (answer is not None), "a file, and nobody was told that it is whole"
            assert [path.name for path in self.scratch.iterdir() if self.word in path.name] == [file.name] * file.exists()

    def of_a_copy(self, way: str, one: Sandbox) -> None:
        if one.info().phase.value == "suspended":
            one.wake()
        if way == "fork":
            assert one.run("cat /dev/shm/mark /root/mark", user="root", check=True).text.split() == [self.word] * 2
        assert one.run("hostname", check=True).text.strip() == one.id
        one.delete()

    def of_subject(self, way: str) -> None:
        booted = way in ("stop", "start")
        memory = not booted or self.subject.info().phase.value == "suspended"
        self.awake()
        found = self.subject.run("cat /root/mark /dev/shm/mark 2>/dev/null || true", user="root", check=True).text.split()
        if way == "rollback":
            assert found in ([self.word] * 2, ["later"] * 2), found  # the present, or that instant, and no mixture
        else:
            assert found == [self.word] * 2 if memory else found[:1] == [self.word], (found, self.word)
        if way == "checkpoint":
            self.subject.checkpoint()  # behind one that the node may still take for a control that is gone
            for one in self.subject.checkpoints():
                self.subject.run("rm -f /root/mark /dev/shm/mark", user="root", check=True)
                self.subject.rollback(one)
                assert self.subject.run("cat /root/mark /dev/shm/mark", user="root", check=True).text.split() == [self.word] * 2
            self.drop_checkpoints()

    def of_templates(self, way: str, answer: object) -> None:
        """What is listed is whole, and what is on the shelf is listed."""
        names = {str(one["name"]) for one in self.client.templates()}
        if answer is not None:
            assert ("killed" if way == "build" else f"kept{self.count}") in names
        deadline = time.monotonic() + WHOLE_WITHIN
        while half := [each.name for each in self.bare.instance.templates.iterdir() if each.name.startswith(".")]:
            assert time.monotonic() < deadline, half
            time.sleep(0.05)
        if way == "build" and answer is None:
            assert self.do("build"), "and the same again"
            assert "killed" in {str(one["name"]) for one in self.client.templates()}


def _names(answer: object) -> object:
    if isinstance(answer, list):
        return [one.id for one in answer]
    return answer.id if isinstance(answer, Sandbox) else answer


def _rounds(*, part: bool, ways: Collection[str] = WAYS) -> list[tuple[str, str, str, bool]]:
    chance = random.Random(SEED)
    found = []
    for way, places in WAYS.items():
        all_of_it = [(way, stage.value, when, late) for stage in places for when in ("before", "after") for late in (False, True)]
        found += [chance.choice(all_of_it)] if part else all_of_it
    return [each for each in found if each[0] in ways and not (part and each[0] in ("start", "build"))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = Settings(accelerator="tcg", warm_templates=1, clones_ahead=0, port=0)
    with bare_instance(settings=settings) as bare:
        one = World(bare, tmp_path)
        yield one
        one.client.close()


def _play(world: World, rounds: list[tuple[str, str, str, bool]]) -> None:
    world.begin()
    for number, (way, stage, when, late) in enumerate(rounds):
        began = time.monotonic()
        print(f"{number + 1}/{len(rounds)} {way}: control killed {when} {stage}{', late' * late}", end=": ", flush=True)
        outcome = world.play(way, stage, when, late=late)
        print(f"{outcome}, whole after {time.monotonic() - began:.1f} s", flush=True)
    for one in world.client.sandboxes():
        if one.phase.value != "gone":
            world.client.call("DELETE", f"/v1/sandboxes/{one.id}")
    world.bare.kill("node")
    world.stops.start("node")
    held = ("memory-", f"of uid {world.bare.instance.memory_uid}", "/netns/", "/worker-")  # of what is kept warm
    leaks.settle(
        lambda: frozenset(each for each in leaks.of_sandboxes(world.bare.instance) if not any(word in each for word in held)), within=40
    )


@pytest.mark.timeout(600)
def test_control_killed_at_a_stage_breaks_no_word_and_loses_nothing(world: World) -> None:
    _play(world, _rounds(part=True))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", sorted(WAYS))
def test_control_killed_at_every_stage_breaks_no_word_and_loses_nothing(world: World, way: str) -> None:
    _play(world, _rounds(part=False, ways={way}))
