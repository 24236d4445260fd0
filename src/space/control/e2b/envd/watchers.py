"""Watches of directories: as a stream, or kept by name until somebody asks what happened.

The guest tells at once; whoever asks by name first has it tell everything that happened before the question, so that nothing which was
done before a call is missing in its answer.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from space.control import limits
from space.control.call import Call, ClientGone
from space.control.e2b.envd import entries
from space.control.e2b.envd import file_wire as wire
from space.control.e2b.envd.connect import Fault, Outlet, interval
from space.control.e2b.envd.people import path_of
from space.core.wire import entries as verbs
from space.core.wire import files as guest
from space.core.wire.events import Message
from space.core.wire.guest import decode
from space.model.errors import DeadlineExceeded, NotFound, ProtocolError, SpaceError
from space.model.ids import new_request_id
from space.rpc.stream import Stream

if TYPE_CHECKING:
    from space.control.services import Services

# Of a sandbox: each is a stream to the node and a process in the guest.
MOST_WATCHERS = 32
# Events that are kept for whoever asks, and what they take; older ones go.
MOST_EVENTS = 10_000
MOST_EVENT_BYTES = 512 << 10
_EVENT = 100
_ENTRY = 700
_ASK = b"?"
_TYPES = {"created": "CREATE", "modified": "WRITE", "deleted": "REMOVE", "attributes": "CHMOD"}
_LOOKED_AT = frozenset({"CREATE", "WRITE", "CHMOD"})


@dataclass(frozen=True, slots=True)
class Watching:
    """What is to be watched, and for whom."""

    services: Services
    sandbox: str
    asked: wire.WatchRequest
    user: str

    async def open(self) -> tuple[Stream, AsyncIterator[Message]]:
        """The guest's stream, once it watches: nothing from then on is missed. Fault; NotFound, InvalidArgument."""
        request = entries.forward(self.sandbox, verbs.EntryWatch(path_of(self.asked.path), self.user, self.asked.recursive))
        try:
            stream = await self.services.link.open("entry_watch", request)
            coming = _messages(stream)
            try:
                async with asyncio.timeout(limits.WATCH_SECONDS):
                    began = await anext(coming, None)
            except TimeoutError:
                stream.reset_now("deadline_exceeded", "nobody waits for it any more")
                raise DeadlineExceeded(f"the guest did not begin to watch within {limits.WATCH_SECONDS:g} s") from None
        except SpaceError as error:
            raise entries.told(error, self.user) from None
        if began is None or not isinstance(decode(began.payload), guest.Watching):
            raise ProtocolError("the guest told of changes before it said that it watches")
        return stream, coming

    async def follow(self, call: Call, outlet: Outlet, seconds: float | None) -> None:
        """Tell a client, until it leaves, its time is up or the directory is gone. Fault; ClientGone."""
        stream, coming = await self.open()
        async with stream:
            await outlet.say(wire.WatchEvent(start={}))
            pause = interval(call.headers)
            left = asyncio.ensure_future(call.gone())
            next_one = asyncio.ensure_future(_next(coming))
            loop = asyncio.get_running_loop()
            end = None if seconds is None else loop.time() + seconds
            try:
                while True:
                    wait = pause if end is None else min(pause, max(0.0, end - loop.time()))
                    done, _ = await asyncio.wait({next_one, left}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    if left in done:
                        raise ClientGone
                    if next_one in done:
                        message = next_one.result()
                        if message is None:
                            return
                        for event in await self.events(message):
                            await outlet.say(wire.WatchEvent(filesystem=event))
                        next_one = asyncio.ensure_future(_next(coming))
                    elif wait < pause:
                        raise Fault("deadline_exceeded", f"the directory was watched for {seconds:g} s, which was the limit")
                    else:
                        await outlet.say(wire.WatchEvent(keepalive={}))
            finally:
                left.cancel()
                next_one.cancel()
                await asyncio.wait({left, next_one})

    async def events(self, message: Message) -> list[wire.FileEvent]:
        """What a message of the guest's is in their words."""
        match decode(message.payload):
            case guest.Changes(changes):
                found = [event for change in changes for event in _events(change)]
            case guest.Overflow() | verbs.Synced():
                return []
            case _:
                raise ProtocolError("the guest's watch told of something else than changes")
        if self.asked.include_entry:
            found = [await self._with_entry(event) for event in found]
        return found

    async def _with_entry(self, event: wire.FileEvent) -> wire.FileEvent:
        if event.type.removeprefix("EVENT_TYPE_") not in _LOOKED_AT:
            return event
        try:
            entry = await entries.stat(self.services, self.sandbox, posixpath.join(self.asked.path or ".", event.name), self.user)
        except SpaceError:
            return event  # it is gone again
        return wire.FileEvent(event.name, event.type, wire.info_of(entry))


def _events(change: guest.Change) -> Iterable[wire.FileEvent]:
    name = wire.text(change.path)
    if change.kind == "moved":
        yield wire.FileEvent(wire.text(change.origin or b""), "EVENT_TYPE_RENAME")
        yield wire.FileEvent(name, "EVENT_TYPE_CREATE")
    elif name or change.kind == "deleted":
        yield wire.FileEvent(name, "EVENT_TYPE_" + _TYPES[change.kind])


async def _messages(stream: Stream) -> AsyncIterator[Message]:
    async for event in stream:
        if not isinstance(event, Message):
            raise ProtocolError("the guest's watch is no stream of messages")
        yield event


async def _next(coming: AsyncIterator[Message]) -> Message | None:
    return await anext(coming, None)


@dataclass(slots=True, eq=False)
class _Watcher:
    """A watch that is kept."""

    watching: Watching
    task: asyncio.Task[None] | None = None
    stream: Stream | None = None
    events: deque[wire.FileEvent] = field(default_factory=deque)
    held: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    async def begin(self) -> None:
        """Watch. Fault; SpaceError."""
        self.stream, coming = await self.watching.open()
        self.task = asyncio.create_task(self._keep(self.stream, coming), name="e2b watcher")

    async def _keep(self, stream: Stream, coming: AsyncIterator[Message]) -> None:
        try:
            async with stream:
                async for message in coming:
                    for event in await self.watching.events(message):
                        self._hold(event)
                    if isinstance(decode(message.payload), verbs.Synced) and self.waiting:
                        _wake(self.waiting.popleft())
        except SpaceError:
            pass  # the sandbox rests, or has ended; whoever asks next begins again
        finally:
            self.stream = None
            while self.waiting:
                _wake(self.waiting.popleft())

    def _hold(self, event: wire.FileEvent) -> None:
        self.events.append(event)
        self.held += _size(event)
        while len(self.events) > MOST_EVENTS or self.held > MOST_EVENT_BYTES:
            self.held -= _size(self.events.popleft())

    def taken(self) -> list[wire.FileEvent]:
        """What is held, which is let go of."""
        found = list(self.events)
        self.events.clear()
        self.held = 0
        return found

    async def sync(self) -> None:
        """Until everything is here that happened before this call; a watch that broke off begins anew."""
        if self.stream is None:
            with suppress(NotFound):  # the directory is gone, which was told
                await self.begin()
            return
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(answered)
        try:
            await self.stream.send(_ASK)
        except SpaceError:
            return
        try:
            async with asyncio.timeout(limits.WATCH_SECONDS):
                await answered
        except TimeoutError:
            raise DeadlineExceeded(f"the guest did not tell of changes within {limits.WATCH_SECONDS:g} s") from None

    def stop(self) -> None:
        """Watch no longer."""
        if self.task is not None:
            self.task.cancel()


def _size(event: wire.FileEvent) -> int:
    """Bytes that it takes, about."""
    return _EVENT + len(event.name) + (0 if event.entry is None else _ENTRY + 2 * len(event.entry.path))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Watchers:
    """Watches by name, of all sandboxes."""

    def __init__(self) -> None:
        self._all: dict[str, dict[str, _Watcher]] = {}

    async def create(self, watching: Watching) -> str:
        """A new one's name. Fault; NotFound, InvalidArgument."""
        if len(self._all.get(watching.sandbox, ())) >= MOST_WATCHERS:
            raise Fault("resource_exhausted", f"{MOST_WATCHERS} watchers of the sandbox are open: remove some")
        watcher = _Watcher(watching)
        await watcher.begin()
        name = "w" + new_request_id().removeprefix("req-")
        self._all.setdefault(watching.sandbox, {})[name] = watcher
        return name

    async def events(self, sandbox: str, name: str) -> list[wire.FileEvent]:
        """What happened since it was last asked. Fault not_found."""
        watcher = self._find(sandbox, name)
        await watcher.sync()
        return watcher.taken()

    async def remove(self, sandbox: str, name: str) -> None:
        """End it. Fault not_found."""
        self._find(sandbox, name).stop()
        del self._all[sandbox][name]

    def forget(self, sandbox: str) -> None:
        """The sandbox has ended."""
        for watcher in self._all.pop(sandbox, {}).values():
            watcher.stop()

    def _find(self, sandbox: str, name: str) -> _Watcher:
        found = self._all.get(sandbox, {}).get(name)
        if found is None:
            raise Fault("not_found", f"watcher with id {name[:64]} not found")
        return found
