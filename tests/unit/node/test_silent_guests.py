"""A guest that stays silent (its root file system is frozen, say) costs nobody else anything, and is not failed for its silence."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from space.control import limits as control
from space.core.wire import guest as wire
from space.model.errors import Conflict, SandboxDied, Unavailable
from space.model.ids import new_process_id, new_sandbox_id
from space.node import limits
from space.rpc import node_api as api
from space.rpc.session import Session
from space.rpc.stream import Stream
from space.testing.guest import FakeGuest
from space.testing.memorynode import MemoryNode

TAKEN_OVER = "is being taken over after the node's restart"


class Silent(FakeGuest):
    """Honest at its boot. `hello`: it answers new channels; `clock`: it answers later configurations, with `answer` if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.hello, self.clock = asyncio.Event(), asyncio.Event()
        self.hello.set()
        self.answer: object = None

    async def serve(self, control: socket.socket, bulk: socket.socket) -> None:
        self._serving = asyncio.create_task(self._serve(control, bulk))

    async def _serve(self, control: socket.socket, bulk: socket.socket) -> None:
        await self.hello.wait()
        await super().serve(control, bulk)

    async def _claim(self, stream: Stream, request: bytes) -> None:
        await self.clock.wait()
        if self.answer is not None:
            await stream.send_message(msgspec.msgpack.encode(self.answer))
            return
        await super()._claim(stream, request)


async def create(session: Session) -> str:
    name = new_sandbox_id()
    async with await session.open("create", api.Create(name, "acme", 1, "base", 1, 512, 2048, {}), finish=True) as stream:
        async for _ in stream:
            pass
    return name


async def ask(session: Session, verb: str, sandbox: str) -> str:
    return msgspec.msgpack.decode(await session.call(verb, api.Target(sandbox)), type=api.SandboxState).phase


async def phases(session: Session) -> dict[str, str]:
    found = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
    return {each.sandbox: each.phase for each in found}


async def usable(session: Session, sandbox: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await session.call("noop", api.Target(sandbox))
            except Unavailable:
                await asyncio.sleep(0.005)
            else:
                return


class Lab:
    """A node with a healthy sandbox and one whose guest can fall silent."""

    def __init__(self, directory: Path) -> None:
        self.silent = Silent()
        guests: Iterator[FakeGuest] = iter([FakeGuest(), self.silent])
        self.node = MemoryNode(directory, guests=lambda: next(guests))

    async def start(self) -> None:
        async with self.node.connected() as session:
            self.good, self.bad = await create(session), await create(session)

    async def restart(self) -> float:
        """Seconds until the node is ready again."""
        began = asyncio.get_running_loop().time()
        self.node.crash()
        await self.node.start()
        return asyncio.get_running_loop().time() - began


def test_a_resume_has_its_answer_before_control_gives_up_and_a_restart_waits_less_than_one_guest() -> None:
    assert limits.QMP + limits.RECONFIGURE < control.CALL_SECONDS
    assert limits.ADOPTIONS < limits.RECONFIGURE < limits.RECONNECT


@pytest.mark.parametrize("what", ["hello", "clock"])
async def test_a_restart_waits_for_a_silent_guest_for_the_patience_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    monkeypatch.setattr(limits, "ADOPTIONS", 0.3)
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        lab.silent.hello.clear()
        lab.silent.clock.clear()
        if what == "clock":
            lab.silent.hello.set()
        assert 0.3 <= await lab.restart() < 2
        assert f"{lab.bad}: not taken over within 0.3 s" in caplog.text
        assert f"{lab.good}: not taken over" not in caplog.text
        async with lab.node.connected() as session:
            await session.call("noop", api.Target(lab.good))
            assert await phases(session) == {lab.good: "running", lab.bad: "running"}
            for verb in ("noop", "metrics", "pause", "resume"):
                with pytest.raises(Unavailable, match=TAKEN_OVER + r" \(repeat in a few seconds\)"):
                    await session.call(verb, api.Target(lab.bad))
            with pytest.raises(Unavailable, match=TAKEN_OVER):
                await session.call("exec", api.Exec(lab.bad, ["true"]))
            lab.silent.hello.set()
            lab.silent.clock.set()
            await usable(session, lab.bad)
            assert await ask(session, "pause", lab.bad) == "paused"
            assert (await phases(session))[lab.bad] == "paused"


async def test_a_paused_sandbox_that_is_taken_over_late_stays_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADOPTIONS", 0.1)
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        lab.silent.clock.set()
        async with lab.node.connected() as session:
            await ask(session, "pause", lab.bad)
        lab.silent.hello.clear()
        await lab.restart()
        async with lab.node.connected() as session:
            assert (await phases(session))[lab.bad] == "paused"
            with pytest.raises(Conflict, match="resume it first"):
                await session.call("noop", api.Target(lab.bad))
            lab.silent.hello.set()
            async with asyncio.timeout(10):
                while True:
                    try:
                        assert await ask(session, "resume", lab.bad) == "running"
                        break
                    except Unavailable:
                        await asyncio.sleep(0.005)
            await session.call("noop", api.Target(lab.bad))


@pytest.mark.parametrize("what", ["hello", "clock"])
async def test_a_sandbox_that_is_being_taken_over_is_deleted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(limits, "ADOPTIONS", 0.1)
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        (lab.silent.hello if what == "hello" else lab.silent.clock).clear()
        await lab.restart()
        async with lab.node.connected() as session, asyncio.timeout(2):
            assert await ask(session, "delete", lab.bad) == "gone"
            assert await phases(session) == {lab.good: "running"}
            await ask(session, "delete", lab.good)
        assert lab.node.host.leftovers() == []


async def test_a_guest_that_never_takes_its_clock_is_adopted_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "ADOPTIONS", 0.1)
    monkeypatch.setattr(limits, "RECONFIGURE", 0.3)
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        await lab.restart()
        async with lab.node.connected() as session:
            await usable(session, lab.bad)
            assert await phases(session) == {lab.good: "running", lab.bad: "running"}
        (warning,) = [each for each in caplog.records if "its clock" in each.getMessage()]
        assert warning.levelno == logging.WARNING
        assert warning.getMessage().startswith(f"{lab.bad}: after the node's restart the guest did not take its clock within 0.3 s")


class SilentFromTheFirst(FakeGuest):
    """It says hello and no more."""

    async def _configure(self, stream: Stream, request: bytes) -> None:
        await asyncio.get_running_loop().create_future()


async def test_a_guest_that_does_not_take_its_configuration_at_boot_is_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONFIGURE", 0.2)
    async with MemoryNode(tmp_path, guests=SilentFromTheFirst) as node, node.connected() as session:
        name = await create(session)
        (state,) = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
        assert (state.sandbox, state.phase) == (name, "failed")
        assert state.reason == "configure: the guest did not take clock, name and environment within 0.2 s"


async def test_a_guest_that_does_not_take_its_clock_after_a_resume_runs_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "RECONFIGURE", 0.2)
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        async with lab.node.connected() as session:
            await ask(session, "pause", lab.bad)
            assert await ask(session, "resume", lab.bad) == "running"
            assert await phases(session) == {lab.good: "running", lab.bad: "running"}
            await session.call("noop", api.Target(lab.bad))
        assert f"{lab.bad}: after its resume the guest did not take its clock within 0.2 s" in caplog.text


@pytest.mark.parametrize("after", ["restart", "resume"])
async def test_a_guest_that_answers_its_clock_with_another_message_is_failed(tmp_path: Path, after: str) -> None:
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        lab.silent.clock.set()
        lab.silent.answer = wire.Done()
        if after == "restart":
            await lab.restart()
        async with lab.node.connected() as session:
            if after == "resume":
                await ask(session, "pause", lab.bad)
                with pytest.raises(SandboxDied, match="cannot resume it"):
                    await ask(session, "resume", lab.bad)
            async with asyncio.timeout(10), await session.open("watch", api.Empty(), finish=True) as watch:
                async for event in watch:
                    state = msgspec.msgpack.decode(event.payload, type=api.SandboxState)
                    if (state.sandbox, state.phase) == (lab.bad, "failed"):
                        break
            await session.call("noop", api.Target(lab.good))


async def test_a_process_is_readable_while_its_sandbox_is_taken_over_and_a_kill_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADOPTIONS", 0.1)
    lab = Lab(tmp_path)
    async with lab.node:
        await lab.start()
        lab.silent.clock.set()
        name = new_process_id()
        async with lab.node.connected() as session:
            await session.call("exec", api.Exec(lab.bad, ["sleep", "60"], process=name, attach=False))
        lab.silent.hello.clear()
        await lab.restart()
        target = api.ProcessTarget(lab.bad, name)
        async with lab.node.connected() as session:
            for verb in ("input", "forget"):
                with pytest.raises(Unavailable, match=TAKEN_OVER):
                    await session.call(verb, target)
            leaving = api.Attach(lab.bad, name, 0, 0, kill_on_disconnect=True)
            async with await session.open("attach", leaving, finish=True) as stream:
                assert msgspec.msgpack.decode((await anext(stream)).payload, type=api.Attached).info.state == "running"
            async with asyncio.timeout(10), await session.open("attach", api.Attach(lab.bad, name, 0, 0), finish=True) as stream:
                await anext(stream)  # attached
                lab.silent.hello.set()
                last = [event async for event in stream][-1]
            assert msgspec.msgpack.decode(last.payload, type=api.Exited).signal == 9
