"""Builds over a fake host: what is kept, what is told, and that no builder is left whatever fails."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.node.test_egress import ONE, TWO, of, put

from space.core.template.model import Run
from space.model.errors import BuildFailed, DeadlineExceeded, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.node import builder, templates
from space.node.binding import Held
from space.node.policies import NOTHING
from space.node.sandbox import Sandbox
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing.memorynode import MemoryNode

_ANSWER = msgspec.msgpack.Decoder(api.BuildStep | api.TemplateInfo)
_HEAD = 'version = 1\nname = "t"\n[base]\ntemplate = "base"\n'
# The fake guest knows no shell and no sync; these are its programs.
_RUN = _HEAD + '[[step]]\nrun = ["echo", "words"]\n'


@pytest.fixture(autouse=True)
def nothing_to_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "SYNC", ("true",))


async def build(session: Session, recipe: str, **more: object) -> tuple[api.TemplateInfo, list[str], bytes]:
    steps, said, built = [], bytearray(), None
    async with await session.open("template_build", api.TemplateBuild("acme", recipe, **more)) as stream:  # type: ignore[arg-type]
        await stream.send(bytes(10240))
        await stream.close()
        async for event in stream:
            if isinstance(event, Data):
                said += event.payload
            elif isinstance(found := _ANSWER.decode(event.payload), api.BuildStep):
                steps.append(f"{found.number} {found.state}")
            else:
                built = found
    assert built is not None
    return built, steps, bytes(said)


async def until_nothing_is_left(lab: MemoryNode) -> None:
    async with asyncio.timeout(5):
        while leftovers(lab):  # noqa: ASYNC110 (of several parts)
            await asyncio.sleep(0.01)


def leftovers(lab: MemoryNode) -> list[str]:
    return lab.host.leftovers() + [record.sandbox for record in lab.node.around.ledger.records()]


async def test_steps_are_kept_and_taken_again(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        built, steps, said = await build(session, _RUN)
        assert steps == ["1 begun", "1 done"]
        assert said == b"words\n"
        assert leftovers(lab) == []
        again, steps, said = await build(session, _RUN)
        assert (again, steps, said) == (built, ["1 cached"], b"")
        more, steps, _ = await build(session, _RUN + '[[step]]\nrun = ["true"]\n')
        assert steps == ["1 cached", "2 begun", "2 done"]
        assert more.digest != built.digest


async def test_failed_step_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        for program, words in (('"exit", "3"', "ended with status 3"), ('"signal", "9"', "ended by signal 9"), ('"nobody"', "no program")):
            with pytest.raises(BuildFailed, match="step 2") as failed:
                await build(session, _RUN + f"[[step]]\nrun = [{program}]\n")
            assert words.split()[0] in failed.value.message
            assert leftovers(lab) == []
        assert lab.node.around.gate.memory_mib == 0


@pytest.mark.parametrize("op", ["create_edge", "create_sandbox", "start_vmm", "keep_template", "rebase_template"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_fault_of_the_host_at_every_step_leaves_no_builder(tmp_path: Path, op: str, when: str) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        lab.host.fail_next(op, NoCapacity("the machine is full"), when=when)
        with pytest.raises(SpaceError, match="full"):
            await build(session, _RUN)
        await until_nothing_is_left(lab)
        built, _, _ = await build(session, _RUN)
        assert built.name == "t"


async def test_builder_of_a_node_that_died_is_removed_by_the_next(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab:
        async with lab.connected() as session:
            stream = await session.open("template_build", api.TemplateBuild("acme", _HEAD + '[[step]]\nrun = ["sleep", "1000"]\n'))
            await stream.send(bytes(10240))
            await stream.close()
            async for event in stream:
                if not isinstance(event, Data):
                    break
            lab.crash()
        await lab.start()
        await until_nothing_is_left(lab)


async def test_client_that_leaves_ends_the_build(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        recipe = _HEAD + '[[step]]\nrun = ["sleep", "1000"]\n'
        async with await session.open("template_build", api.TemplateBuild("acme", recipe)) as stream:
            await stream.send(bytes(10240))
            await stream.close()
            async for event in stream:
                if not isinstance(event, Data):
                    break
        await until_nothing_is_left(lab)


async def test_what_is_wrong_is_refused_before_anything_boots(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        with pytest.raises(InvalidArgument, match="recipe: step: is a list"):
            await build(session, "version = 1\nstep = 1\n[base]\ntemplate = 'base'\n")
        with pytest.raises(InvalidArgument, match="'app' did not come"):
            await build(session, _HEAD + '[[step]]\ncopy = "app"\nto = "/a"\n')
        with pytest.raises(NotFound, match="no template 'other'"):
            await build(session, _HEAD.replace('base"\n', 'other"\n'))
        with pytest.raises(NotFound):
            await build(session, _HEAD, base="f" * 32)
        assert "create_edge" not in lab.host.calls


async def test_tenants_see_their_own_and_the_shipped(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        built, _, _ = await build(session, _RUN)
        for tenant, names in (("acme", ["base", "t"]), ("other", ["base"])):
            listed = msgspec.msgpack.decode(await session.call("templates", api.Tenant(tenant)), type=api.TemplateList).templates
            assert [each.name for each in listed] == names
        with pytest.raises(NotFound):
            lab.node.templates.own("other", built.digest)
        await session.call("template_drop", api.TemplateTarget("other", built.digest))
        assert lab.node.templates.own("acme", built.digest).name == "t"
        await session.call("template_drop", api.TemplateTarget("acme", built.digest))
        with pytest.raises(NotFound):
            lab.node.templates.own("acme", built.digest)


async def test_prune_drops_steps_and_says_so_before(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        built, _, _ = await build(session, _RUN)
        would = msgspec.msgpack.decode(await session.call("prune", api.Prune(dry_run=True)), type=api.Pruned)
        assert len(would.steps) == 1
        recent = msgspec.msgpack.decode(await session.call("prune", api.Prune(keep_seconds=3600)), type=api.Pruned)
        assert recent.steps == []
        done = msgspec.msgpack.decode(await session.call("prune", api.Prune()), type=api.Pruned)
        assert done.steps == would.steps
        assert lab.node.templates.own("acme", built.digest).name == "t"
        _, steps, _ = await build(session, _RUN)
        assert steps == ["1 begun", "1 done"]


def age(lab: MemoryNode, seconds: dict[str, float]) -> None:
    for digest, when in seconds.items():
        os.utime(kept(lab) / digest, (when, when))


def kept(lab: MemoryNode) -> Path:
    assert lab.host.store is not None
    assert lab.host.store.own is not None
    return lab.host.store.own


def steps(lab: MemoryNode) -> list[str]:
    assert lab.host.store is not None
    return [each.digest for each in lab.host.store.own_templates() if each.kind == "step"]


async def test_nearly_full_file_system_loses_the_steps_that_were_used_least_lately_and_no_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        built = [(await build(session, _HEAD + f'[[step]]\nrun = ["echo", "{word}"]\n'))[0].digest for word in ("one", "two", "three")]
        old, mid, new = steps(lab)
        age(lab, {mid: 100, new: 200, old: 300})
        monkeypatch.setattr(templates.Templates, "is_low", property(lambda self: mid in steps(lab)))
        lab.node.templates.needed[new] += 1
        await lab.node.templates.make_room()
        assert sorted(steps(lab)) == sorted([old, new])
        monkeypatch.setattr(templates.Templates, "is_low", property(lambda self: True))
        await build(session, _RUN)  # begins and ends with room being made
        assert steps(lab) == [new]
        assert {each.digest for each in lab.host.store.own_templates() if each.kind == "template"} >= set(built)  # type: ignore[union-attr]


async def test_template_of_another_version_is_listed_with_the_way_out_and_rebaked(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        built, _, _ = await build(session, _RUN)
        path = kept(lab) / built.digest / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1, "kernel": "0" * 32, "was": "there"}))
        listed = msgspec.msgpack.decode(await session.call("templates", api.Tenant("acme")), type=api.TemplateList).templates
        [broken] = [each for each in listed if each.tenant]
        assert (broken.digest, broken.name) == (built.digest, "t")
        assert "space template rebake" in broken.problem
        with pytest.raises(NotFound):
            await session.call("template_rebake", api.TemplateTarget("other", built.digest))
        made = msgspec.msgpack.decode(
            await session.call("template_rebake", api.TemplateTarget("acme", built.digest)), type=api.TemplateInfo
        )
        assert (made.problem, made.tenant, made.digest == built.digest) == ("", "acme", False)


@pytest.mark.parametrize("stage", list(builder.BuildStage))
async def test_node_that_is_killed_anywhere_in_a_build_leaves_no_builder_and_whole_steps_only(
    tmp_path: Path, stage: builder.BuildStage
) -> None:
    async with MemoryNode(tmp_path) as lab:
        reached = asyncio.Event()

        async def stop(at: builder.BuildStage) -> None:
            if at is stage:
                reached.set()
                await asyncio.get_running_loop().create_future()

        lab.node.builds.trace = stop
        async with lab.connected() as session:
            stream = await session.open("template_build", api.TemplateBuild("acme", _RUN))
            await stream.send(bytes(10240))
            await stream.close()
            await asyncio.wait_for(reached.wait(), 10)
            lab.crash()
        await lab.start()
        await until_nothing_is_left(lab)
        late = (builder.BuildStage.KEPT, builder.BuildStage.PROVED, builder.BuildStage.COMMITTED)
        assert len(steps(lab)) == (stage in late)
        async with lab.connected() as session:
            built, told, _ = await build(session, _RUN)
            assert told == (["1 cached"] if stage in late else ["1 begun", "1 done"])
            listed = msgspec.msgpack.decode(await session.call("templates", api.Tenant("acme")), type=api.TemplateList).templates
            assert [each.digest for each in listed if each.tenant] == [built.digest]


async def test_build_ends_with_a_warm_guest_and_warns_of_processes_without_a_hook(tmp_path: Path) -> None:
    started = _RUN.replace("[base]", 'start = ["sleep", "1000"]\n[base]')
    async with MemoryNode(tmp_path, warm=4) as lab, lab.connected() as session:
        built, _, said = await build(session, started)
        assert b"warning: the template has a start command and no restore hook" in said
        assert lab.node.warm.known == 1
        _, steps, _ = await build(session, started)  # it is warm already
        assert (steps, lab.node.warm.known) == (["1 cached"], 1)
        hooked, _, said = await build(session, started + '[hooks]\n10-reseed = "#!/bin/sh\\n"\n')
        assert b"warning" not in said
        for digest in (built.digest, hooked.digest):
            await session.call("template_drop", api.TemplateTarget("acme", digest))
        assert lab.node.warm.known == 0


async def test_template_that_cannot_be_kept_warm_is_a_template_all_the_same(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, warm=4) as lab, lab.connected() as session:
        lab.host.fail_next("hold_memory", NoCapacity("no memory is left"))
        built, _, _ = await build(session, _RUN)
        assert (built.name, lab.node.warm.known) == ("t", 0)


_FETCHING = _RUN + '[[step]]\nrun = ["echo", "fetched"]\negress = "mirrors"\n[[step]]\nrun = ["true"]\n'
_MIRRORS = json.dumps("mirrors")


async def test_a_steps_policy_holds_while_it_runs_and_none_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        with pytest.raises(NotFound, match="no policy"):
            await build(session, _FETCHING, policies={_MIRRORS: of(ONE)})
        with pytest.raises(InvalidArgument, match="mirrors"):
            await build(session, _FETCHING)
        await put(session, ONE)
        seen: list[tuple[str, bytes | None]] = []
        execute = builder._Build._execute

        async def watched(self: builder._Build, run: Run, **more: Any) -> Any:
            [bound] = lab.services.gateway.bound.values()
            seen.append((" ".join(run.argv), bound.document))
            return await execute(self, run, **more)

        monkeypatch.setattr(builder._Build, "_execute", watched)
        _, steps, said = await build(session, _FETCHING, policies={_MIRRORS: of(ONE)})
        assert (steps[-1], said) == ("3 done", b"words\nfetched\n")
        told = [(argv, document) for argv, document in seen if argv != "true" or document == ONE]
        assert told == [("echo words", NOTHING), ("echo fetched", ONE)]
        assert seen[-1] == ("true", NOTHING)
        await until_nothing_is_left(lab)
        await put(session, TWO)
        assert (await build(session, _FETCHING, policies={_MIRRORS: of(TWO)}))[1][:2] == ["1 cached", "2 begun"]


async def test_a_policy_that_cannot_be_taken_away_again_ends_the_build_and_its_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        await put(session, ONE)
        change = Sandbox.set_policy

        async def refused(self: Sandbox, policy: Held) -> None:
            if not policy.digest:
                raise DeadlineExceeded("not everybody has it")
            await change(self, policy)

        monkeypatch.setattr(Sandbox, "set_policy", refused)
        with pytest.raises(SpaceError, match="not everybody has it"):
            await build(session, _FETCHING, policies={_MIRRORS: of(ONE)})
        await until_nothing_is_left(lab)
