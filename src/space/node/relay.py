"""Streams that pass through: control's on one side, the guest's on the other.

A piece is taken from one side only when the other has taken the one before, so a reader that is slow holds back, by credit, its own
stream and nothing else. Pieces are passed on as they came; messages are read first, and a guest that leaves the script of its verb breaks
the protocol. Control's reset ends the guest's stream, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from space.core.wire import entries, files
from space.core.wire import guest as wire
from space.model.errors import ProtocolError, SpaceError
from space.node.shield import ended
from space.rpc import node_api as api
from space.rpc.session import Data, Stream

Explain = Callable[[SpaceError], Awaitable[SpaceError]]


@dataclass(frozen=True, slots=True)
class Part:
    """One message of an answer, of one of these kinds. many: any number of them, none as well. data: whether bytes may follow it."""

    kinds: tuple[type[msgspec.Struct], ...]
    many: bool = False
    data: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """An answer: its parts in order. first: bytes may come before all."""

    parts: tuple[Part, ...]
    first: bool = False


def _one(kind: type[msgspec.Struct], *, data: bool = False) -> Part:
    return Part((kind,), data=data)


TREE_PUT = Script((_one(wire.TreeDone),))
TREE_GET = Script((_one(wire.TreeDone),), first=True)
_FILE = Script((_one(files.FileAnswer),))
_ENTRY = Script((_one(entries.EntryAnswer),))
_DONE = Script((_one(wire.Done),))
# The verbs that are passed on as they are.
FORWARDED: dict[str, Script] = {
    "file_stat": _FILE,
    "file_list": Script((Part((files.Files,), many=True), _one(files.Listed))),
    "file_read": Script((_one(files.FileAnswer, data=True), _one(files.Content))),
    "file_write": _FILE,
    "file_mkdir": _FILE,
    "file_move": _FILE,
    "file_remove": _DONE,
    "file_chmod": _FILE,
    "file_chown": _FILE,
    "file_symlink": _FILE,
    "watch": Script((_one(files.Watching), Part((files.Changes, files.Overflow), many=True))),
    "connect": Script((_one(files.Connected, data=True),)),
    "entry_stat": _ENTRY,
    "entry_list": Script((Part((entries.Entries,), many=True), _one(files.Listed))),
    "entry_mkdir": _ENTRY,
    "entry_move": _ENTRY,
    "entry_remove": _DONE,
    "entry_write": _ENTRY,
    "entry_watch": Script((_one(files.Watching), Part((files.Changes, files.Overflow, entries.Synced), many=True))),
}


class Held:
    """A guest's answer, held to its script."""

    def __init__(self, script: Script) -> None:
        self._parts = list(script.parts)
        self._data = script.first

    def data(self) -> None:
        """Bytes came; ProtocolError when they may not."""
        if not self._data:
            raise ProtocolError("the guest sent data where its answer has none")

    def message(self, payload: bytes) -> wire.Message:
        """A message came; ProtocolError when it is not the next."""
        message = wire.decode(payload)
        while self._parts:
            part = self._parts[0]
            fits = isinstance(message, part.kinds)
            if not (part.many and fits):
                self._parts.pop(0)
            if fits:
                self._data = part.data
                return message
            if not part.many:
                expected = " or ".join(kind.__name__ for kind in part.kinds)
                raise ProtocolError(f"the guest answered {type(message).__name__}, expected {expected}")
        raise ProtocolError("the guest sent more after the end of its answer")

    @property
    def over(self) -> bool:
        """Whether nothing may come any more."""
        return not self._parts and not self._data

    def close(self) -> None:
        """It sends nothing more; ProtocolError when something is missing."""
        if any(not part.many for part in self._parts):
            raise ProtocolError("the guest closed the stream before the end of its answer")


async def relay(control: Stream, guest: Stream, script: Script, *, feed: bool, explain: Explain) -> None:
    """Until the guest's stream has come to its end by the script. feed: control sends as well.

    ProtocolError when the guest leaves the script. Whatever ends it early ends both streams; explain: the error that control is told.
    """
    feeder = asyncio.create_task(_feed(control, guest), name="feed") if feed else None
    try:
        async with guest:
            await _answer(control, guest, Held(script))
            if feeder is not None:
                await feeder  # control closes its side when it has read the end
    except SpaceError as error:
        told = await explain(error)
        control.reset_now(told.code, str(told))  # before the feeder's cancellation would, with other words
        raise told from error
    finally:
        if feeder is not None:
            await ended(feeder)


async def _answer(control: Stream, guest: Stream, held: Held) -> None:
    """The last message is worth something only when the guest has ended its stream behind it: so it goes with our own end."""
    last: msgspec.Struct | bytes | None = None
    async for event in guest:
        if last is not None:
            raise ProtocolError("the guest sent more after the end of its answer")
        if isinstance(event, Data):
            held.data()
            await control.send(event.payload, event.lane)
            continue
        message = held.message(event.payload)
        told: msgspec.Struct | bytes = event.payload
        if isinstance(message, wire.TreeDone):
            told = api.TreeDone(message.entries, message.bytes, message.crc32)
        if held.over:
            last = told
        else:
            await control.send_message(told)
    held.close()
    if last is not None:
        await control.send_message(last, last=True)
    else:
        control.close_now()


async def _feed(control: Stream, guest: Stream) -> None:
    """What control sends, as it comes. The guest judges it: it is control's own client that is wrong, then."""
    deaf = False
    try:
        async for event in control:
            if not deaf:
                try:
                    if isinstance(event, Data):
                        await guest.send(event.payload)
                    else:
                        await guest.send_message(event.payload)
                except SpaceError:
                    deaf = True  # it has ended: what control still sends is dropped, and the end itself is told by the other direction
        guest.close_now()
    except SpaceError:
        pass  # control's end of it broke: its handler is being cancelled
