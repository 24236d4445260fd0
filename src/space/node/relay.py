"""Streams that pass through: control's on one side, the guest's on the other.

A piece is taken from one side only when the other has taken the one before, so a reader that is slow holds back, by credit, its own
process and nothing else. Pieces are passed on as they came; only messages are read. Control's reset ends the guest's stream, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from space.core.wire import guest as wire
from space.model.errors import ProtocolError, SpaceError
from space.node.shield import ended
from space.rpc import node_api as api
from space.rpc.session import Data, Stream

Explain = Callable[[SpaceError], Awaitable[SpaceError]]
# A stream's messages in the order in which they must come, each translated for control.
Script = tuple[Callable[[bytes], msgspec.Struct], ...]


def _started(payload: bytes) -> api.Started:
    return api.Started(pid=wire.expect(wire.Started, payload).pid)


def _exited(payload: bytes) -> api.Exited:
    end = wire.expect(wire.Exited, payload)
    return api.Exited(end.code, end.signal, end.oom_killed, end.timed_out, end.stdout_bytes, end.stderr_bytes, end.wall_ms)


def _tree(payload: bytes) -> api.TreeDone:
    end = wire.expect(wire.TreeDone, payload)
    return api.TreeDone(end.entries, end.bytes, end.crc32)


PROCESS: Script = (_started, _exited)
TREE: Script = (_tree,)


async def relay(control: Stream, guest: Stream, script: Script, *, feed: bool, explain: Explain) -> None:
    """Until the guest's stream has come to its end by the script. feed: control sends data as well.

    ProtocolError when the guest leaves the script. Whatever ends it early ends both streams; explain: the error that control is told.
    """
    feeder = asyncio.create_task(_feed(control, guest), name="feed") if feed else None
    try:
        async with guest:
            last = await _answer(control, guest, script)
        await control.send_message(last, last=True)
        if feeder is not None:
            await feeder  # control closes its side when it has read the end
    except SpaceError as error:
        told = await explain(error)
        control.reset_now(told.code, str(told))  # before the feeder's cancellation would, with other words
        raise told from error
    finally:
        if feeder is not None:
            await ended(feeder)


async def _answer(control: Stream, guest: Stream, script: Script) -> msgspec.Struct:
    """Everything but the last message, which is returned: it is worth something only when the guest has ended its stream behind it."""
    at = 0
    last: msgspec.Struct | None = None
    async for event in guest:
        if last is not None:
            raise ProtocolError("the guest sent more after the end of its answer")
        if isinstance(event, Data):
            if script is PROCESS and at == 0:
                raise ProtocolError("the guest sent output of a process before its start")
            await control.send(event.payload, event.lane)
        else:
            message = script[at](event.payload)
            at += 1
            if at == len(script):
                last = message
            else:
                await control.send_message(message)
    if last is None:
        raise ProtocolError("the guest closed the stream before the end of its answer")
    return last


async def _feed(control: Stream, guest: Stream) -> None:
    deaf = False
    try:
        async for event in control:
            if not deaf:
                try:
                    await guest.send(event.payload)
                except SpaceError:
                    deaf = True  # it has ended: what control still sends is dropped, and the end itself is told by the other direction
        guest.close_now()
    except SpaceError:
        pass  # control's end of it broke: its handler is being cancelled
