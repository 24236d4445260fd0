"""The node process on real guests, with rootd and without serve and control: boots, adoption, deaths, and no cost of idling."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from space.model.errors import Gone, SandboxDied, SpaceError
from space.model.ids import new_sandbox_id
from space.node import limits
from space.node.stages import COLD
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing import leaks, machine
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance


@pytest.fixture
def bare() -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node") as one:
        yield one


def run(bare: BareInstance, work: Callable[[Session], Awaitable[None]]) -> None:
    """Control's part, played by root."""

    async def with_session() -> None:
        session = await Session.connect(bare.instance.node_socket)
        try:
            await work(session)
        finally:
            await session.aclose()

    uvloop.run(with_session())


async def create(session: Session, sandbox: str | None = None) -> api.SandboxState:
    asked = api.Create(sandbox or new_sandbox_id(), "acme", 1, "base", 1, 256, 2048, {})
    async with await session.open("create", asked, finish=True) as stream:
        seen = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream]
    return seen[-1]


async def states(session: Session) -> dict[str, api.SandboxState]:
    listed = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList)
    return {state.sandbox: state for state in listed.sandboxes}


async def output(session: Session, sandbox: str, *argv: str, user: str | None = None) -> bytes:
    async with await session.open("exec", api.Exec(sandbox, list(argv), user=user), finish=True) as stream:
        return b"".join([event.payload async for event in stream if isinstance(event, Data)])


async def slots_are_ready(bare: BareInstance, beside: int) -> None:
    """Until those that are made ahead are there, beside those of so many sandboxes."""
    async with asyncio.timeout(20):
        while len(os.listdir(bare.instance.run / "netns")) < 2 * (beside + limits.READY_SLOTS):  # noqa: PTH208, ASYNC110 (of another process)
            await asyncio.sleep(0.02)


async def until_failed(session: Session, sandbox: str) -> api.SandboxState:
    async with await session.open("watch", api.Empty(), finish=True) as watch:
        async for event in watch:
            state = msgspec.msgpack.decode(event.payload, type=api.SandboxState)
            if (state.sandbox, state.phase) == (sandbox, "failed"):
                return state
    raise AssertionError("the watch ended")


def test_a_cold_boot_names_its_stages_and_a_deletion_leaves_nothing(bare: BareInstance) -> None:
    async def work(session: Session) -> None:
        state = await create(session)
        assert state.phase == "running", state.reason
        assert list(state.stages_ms) == [stage.value for stage in COLD]
        print("stages in ms:", state.stages_ms)
        await slots_are_ready(bare, 1)
        # a slot that was made ahead is taken without rootd's making one
        another = await create(session)
        print("slot in ms: made", state.stages_ms["slot"], "and found ready", another.stages_ms["slot"])
        assert another.stages_ms["slot"] < state.stages_ms["slot"]
        await session.call("delete", api.Target(another.sandbox))
        assert await output(session, state.sandbox, "echo", "hello") == b"hello\n"
        metrics = msgspec.msgpack.decode(await session.call("metrics", api.Target(state.sandbox)), type=api.Metrics)
        assert 128 << 20 < metrics.memory_total < 256 << 20
        assert metrics.host_memory_bytes > 32 << 20
        await session.call("pause", api.Target(state.sandbox))
        await session.call("resume", api.Target(state.sandbox))
        earliest = time.time()
        guest = float(await output(session, state.sandbox, "date", "+%s.%N"))
        latest = time.time()
        print(f"clock: {guest - earliest:+.3f} s after the question, {guest - latest:+.3f} s after the answer")
        assert earliest - 0.5 < guest < latest + 0.5
        await session.call("delete", api.Target(state.sandbox))

    run(bare, work)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


def test_a_vmm_that_is_killed_during_a_command_ends_the_call_with_a_typed_error_within_seconds(bare: BareInstance) -> None:
    async def work(session: Session) -> None:
        sandbox = (await create(session)).sandbox
        async with await session.open("exec", api.Exec(sandbox, ["sleep", "600"]), finish=True) as stream:
            await anext(stream)
            began = time.monotonic()
            for pid in machine.vmm_pids(bare.instance):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(SandboxDied, match="the VMM was killed or crashed"):
                async with asyncio.timeout(10):
                    await anext(stream)
            print(f"told after {time.monotonic() - began:.3f} s")
        assert (await until_failed(session, sandbox)).reason == "the VMM was killed or crashed"
        with pytest.raises(Gone):
            await session.call("noop", api.Target(sandbox))
        leaks.settle(lambda: frozenset(f"VMM {pid}" for pid in machine.vmm_pids(bare.instance)))
        await session.call("delete", api.Target(sandbox))

    run(bare, work)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


def test_a_panic_of_the_guests_kernel_is_the_reason(bare: BareInstance) -> None:
    async def work(session: Session) -> None:
        sandbox = (await create(session)).sandbox
        with pytest.raises(SandboxDied, match="the guest's kernel panicked: Kernel panic"):
            async with asyncio.timeout(60):
                await output(session, sandbox, "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 60", user="root")

    run(bare, work)


def test_a_running_and_a_paused_sandbox_outlive_the_node(bare: BareInstance) -> None:
    names: list[str] = []

    async def before(session: Session) -> None:
        names.extend(state.sandbox for state in await asyncio.gather(create(session), create(session)))
        await output(session, names[0], "sh", "-c", "echo kept > /dev/shm/mark")
        await session.call("pause", api.Target(names[1]))

    async def after(session: Session) -> None:
        found = await states(session)
        assert [found[name].phase for name in names] == ["running", "paused"]
        assert await output(session, names[0], "cat", "/dev/shm/mark") == b"kept\n"
        await session.call("resume", api.Target(names[1]))
        assert await output(session, names[1], "echo", "awake") == b"awake\n"
        for name in names:
            await session.call("delete", api.Target(name))

    run(bare, before)
    guests = machine.vmm_pids(bare.instance)
    bare.kill("node")
    began = time.monotonic()
    bare.start("node")
    print(f"adopted two after {time.monotonic() - began:.3f} s")
    assert machine.vmm_pids(bare.instance) == guests
    run(bare, after)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


# A node that kills itself at one place of a create. The place comes as the program's argument.
_DIES = textwrap.dedent(
    """
    import os, signal, sys
    from space.node.server import main
    place = {place!r}
    async def trace(sandbox, stage, when):
        if f"{{stage.value}} {{when}}" == place:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(main(trace))
    """
)


@pytest.mark.parametrize("place", ["slot after", "disk after", "egress after", "spawn after", "boot after", "configure after"])
def test_a_node_that_dies_at_a_stage_is_followed_by_one_that_cleans_up(place: str) -> None:
    async def doomed(session: Session) -> None:
        with pytest.raises(SpaceError):
            await create(session)

    async def after(session: Session) -> None:
        (state,) = (await states(session)).values()
        assert (state.phase, state.reason) == ("failed", "the node was restarted while the sandbox was being prepared")
        await session.call("delete", api.Target(state.sandbox))

    with bare_instance(*BESIDE_NODE) as bare:
        bare.start("node", "-c", _DIES.format(place=place))
        run(bare, doomed)
        bare.kill("node")
        began = time.monotonic()
        bare.start("node")
        leaks.settle(lambda: leaks.of_sandboxes(bare.instance))
        print(f"clean {time.monotonic() - began:.3f} s after the new node began")
        run(bare, after)


def test_idle_sandboxes_cost_the_node_nothing(bare: BareInstance) -> None:
    pid = bare.pid("node")

    async def work(session: Session) -> None:
        made = await asyncio.gather(create(session), create(session))
        await slots_are_ready(bare, len(made))
        before = _switches(pid)
        await asyncio.sleep(5)  # the measurement's length, not a wait for something
        woken = _switches(pid) - before
        print(f"the node woke {woken} times in 5 s")
        assert woken <= 5
        for each in made:
            await session.call("delete", api.Target(each.sandbox))

    run(bare, work)


def _switches(pid: int) -> int:
    """How often the process went to sleep, over all its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total
