"""Guests whose daemon has been replaced: each attack costs that guest its sandbox, and nobody else anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from space.core.wire import frames, guest
from space.model.errors import GuestError, NotFound, ProtocolError, SandboxDied, SpaceError
from space.model.ids import new_sandbox_id
from space.rpc import node_api as api
from space.rpc.served import Served
from space.rpc.session import Session
from space.rpc.stream import Stream
from space.testing.guest import FakeGuest
from space.testing.memorynode import MemoryNode


class Raw:
    """What an attacker who speaks the codec can write."""

    def __init__(self, served: Served, stream: Stream) -> None:
        self.served = served
        self.stream = stream

    def write(self, data: bytes, pipe: int = 0) -> None:
        self.served.write(pipe, data)

    def frame(self, kind: int, stream: int, payload: bytes = b"", lane: int = 0) -> bytes:
        """In sequence, whatever the state machine would say."""
        return self.served.mux._encoders[0].frame(kind, stream, payload, lane)

    async def message(self, message: object) -> None:
        await self.stream.send_message(msgspec.msgpack.encode(message))


Attack = Callable[[Raw], Awaitable[None]]


class Hostile(FakeGuest):
    """Honest until it is asked for noop or exec."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self._attack = attack
        self._verbs["noop"] = self._strike
        self._verbs["exec"] = self._strike

    async def _strike(self, stream: Stream, _: bytes) -> None:
        assert self._served is not None
        await self._attack(Raw(self._served, stream))
        await asyncio.Event().wait()


async def garbage(raw: Raw) -> None:
    raw.write(os.urandom(1 << 20))


async def garbage_on_bulk(raw: Raw) -> None:
    raw.write(os.urandom(1 << 20), pipe=1)


async def oversized(raw: Raw) -> None:
    raw.write(frames.HEADER.pack(0x7FFFFFFF, frames.DATA, 0, 0, raw.stream.number, 3))


async def cut_off_and_filled_with_another(raw: Raw) -> None:
    whole = raw.frame(frames.DATA, raw.stream.number, bytes(1000))
    raw.write(whole[:500] + raw.frame(frames.PING, 0, bytes(8)) + bytes(1000))


async def replayed(raw: Raw) -> None:
    raw.write(raw.frame(frames.PING, 0, bytes(8)) * 2)


async def never_opened(raw: Raw) -> None:
    raw.write(raw.frame(frames.DATA, 999, b"x"))


async def opens_a_stream_itself(raw: Raw) -> None:
    raw.write(raw.frame(frames.OPEN, 999, b"\x04noop\x80"))


async def more_than_its_credit(raw: Raw) -> None:
    for _ in range(40):
        raw.write(raw.frame(frames.DATA, raw.stream.number, bytes(64 << 10)))


async def too_much_credit(raw: Raw) -> None:
    raw.write(raw.frame(frames.CREDIT, raw.stream.number, b"\xff\xff\xff\xff"))


async def an_answer_to_no_ping(raw: Raw) -> None:
    raw.write(raw.frame(frames.PONG, 0, bytes(8)))


async def not_messagepack(raw: Raw) -> None:
    raw.write(raw.frame(frames.MSG, raw.stream.number, b"\xc1\xc1"))
    raw.stream.close_now()


async def deeply_nested(raw: Raw) -> None:
    raw.write(raw.frame(frames.MSG, raw.stream.number, b"\x91" * 60_000))
    raw.stream.close_now()


async def an_unknown_kind(raw: Raw) -> None:
    await raw.message({"t": "owned"})
    raw.stream.close_now()


async def an_answer_of_another_verb(raw: Raw) -> None:
    await raw.message(guest.TreeDone(1, 2, 3))
    raw.stream.close_now()


BREAKS = [
    garbage, garbage_on_bulk, oversized, cut_off_and_filled_with_another, replayed, never_opened, opens_a_stream_itself,
    more_than_its_credit, too_much_credit, an_answer_to_no_ping, not_messagepack, deeply_nested, an_unknown_kind, an_answer_of_another_verb,
]  # fmt: skip


async def create(session: Session) -> str:
    name = new_sandbox_id()
    async with await session.open("create", api.Create(name, "acme", 1, "base", 1, 512, 2048, {}), finish=True) as stream:
        async for _ in stream:
            pass
    return name


async def ask(session: Session, verb: str, request: msgspec.Struct) -> None:
    """Read the whole answer, within 10 s."""
    async with asyncio.timeout(10), await session.open(verb, request, finish=True) as stream:
        async for _ in stream:
            pass


async def phase(session: Session, name: str) -> tuple[str, str | None]:
    async with asyncio.timeout(10):
        while True:
            found = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
            state = next(each for each in found if each.sandbox == name)
            if state.phase == "failed":
                return state.phase, state.reason
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("attack", BREAKS, ids=lambda attack: attack.__name__)
@pytest.mark.parametrize("verb", ["noop", "exec"])
async def test_a_broken_protocol_ends_that_sandbox_alone(tmp_path: Path, attack: Attack, verb: str) -> None:
    guests = iter([FakeGuest(), Hostile(attack)])
    async with MemoryNode(tmp_path, guests=lambda: next(guests)) as lab, lab.connected() as session:
        neighbour, hostile = await create(session), await create(session)
        request: msgspec.Struct = api.Target(hostile) if verb == "noop" else api.Exec(hostile, ["true"])
        with pytest.raises((SandboxDied, ProtocolError)):
            await ask(session, verb, request)
        _, reason = await phase(session, hostile)
        assert reason
        assert reason.isprintable()
        assert len(reason) < 400
        await session.call("noop", api.Target(neighbour))
        await session.call("delete", api.Target(hostile))
        assert lab.host.vmm(hostile) is None
        await session.call("noop", api.Target(neighbour))


async def exit_before_start(raw: Raw) -> None:
    await raw.message(guest.Exited(0, None, False, False, 0, 0, 1))


async def output_before_start(raw: Raw) -> None:
    await raw.stream.send(b"42\n")


async def started_twice(raw: Raw) -> None:
    await raw.message(guest.Started(1))
    await raw.message(guest.Started(1))


async def output_after_the_exit(raw: Raw) -> None:
    await raw.message(guest.Started(1))
    await raw.message(guest.Exited(0, None, False, False, 0, 0, 1))
    await raw.stream.send(b"more")


async def neither_code_nor_signal(raw: Raw) -> None:
    await raw.message(guest.Started(1))
    await raw.message(
        {
            "t": "exited",
            "code": None,
            "signal": None,
            "oom_killed": False,
            "timed_out": False,
            "stdout_bytes": 0,
            "stderr_bytes": 0,
            "wall_ms": 1,
        }
    )


async def closed_without_an_exit(raw: Raw) -> None:
    await raw.message(guest.Started(1))
    raw.stream.close_now()


@pytest.mark.parametrize(
    "attack",
    [exit_before_start, output_before_start, started_twice, output_after_the_exit, neither_code_nor_signal, closed_without_an_exit],
    ids=lambda attack: attack.__name__,
)
async def test_a_process_that_leaves_its_script_is_no_success(tmp_path: Path, attack: Attack) -> None:
    async with MemoryNode(tmp_path, guests=lambda: Hostile(attack)) as lab, lab.connected() as session:
        hostile = await create(session)
        with pytest.raises(ProtocolError):
            await ask(session, "exec", api.Exec(hostile, ["true"]))
        assert (await phase(session, hostile))[0] == "failed"


@pytest.mark.parametrize(
    ("code", "error"), [("not_found", NotFound), ("unauthenticated", GuestError), ("sandbox_died", GuestError), ("x" * 9999, GuestError)]
)
async def test_a_guest_may_only_give_errors_that_are_its_own(tmp_path: Path, code: str, error: type[SpaceError]) -> None:
    async def refuse(raw: Raw) -> None:
        raw.stream.reset_now(code, "\x1b[2Jowned\n" + "x" * 10_000)

    async with MemoryNode(tmp_path, guests=lambda: Hostile(refuse)) as lab, lab.connected() as session:
        hostile = await create(session)
        with pytest.raises(error) as caught:
            await session.call("noop", api.Target(hostile))
        assert type(caught.value) is error
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 600


async def test_a_flood_of_pings_that_reads_nothing_ends_the_session(tmp_path: Path) -> None:
    async def flood(raw: Raw) -> None:
        end = raw.served.ends[0]
        assert end.transport is not None
        end.transport.pause_reading()
        while not raw.served.closed.done():
            end.write(b"".join(raw.frame(frames.PING, 0, bytes(8)) for _ in range(2000)))
            await asyncio.sleep(0)
            if end.paused:
                await end.drained.wait()

    guests = iter([FakeGuest(), Hostile(flood)])
    async with MemoryNode(tmp_path, guests=lambda: next(guests)) as lab, lab.connected() as session:
        neighbour, hostile = await create(session), await create(session)
        before = _rss()
        striking = asyncio.create_task(session.call("noop", api.Target(hostile)))
        for _ in range(20):
            await session.call("noop", api.Target(neighbour))
        with pytest.raises(SandboxDied):
            await striking
        assert _rss() - before < 64 << 20


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
