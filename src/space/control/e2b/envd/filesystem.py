"""`filesystem.Filesystem`: as the guest's root, for a user who owns what is made."""

from __future__ import annotations

from dataclasses import dataclass

from space.control.call import Call
from space.control.e2b.envd import entries
from space.control.e2b.envd import file_wire as wire
from space.control.e2b.envd.connect import Fault, Outlet, decode, first
from space.control.e2b.envd.people import user_of
from space.control.e2b.envd.room import Room
from space.control.e2b.envd.watchers import Watching
from space.model.errors import Conflict

_MOST_DEPTH = 0xFFFF


@dataclass(frozen=True, slots=True)
class Filesystem:
    """The service, for one call."""

    call: Call
    room: Room

    @property
    def _user(self) -> str:
        return user_of(self.call.headers, self.room.user)

    async def stat(self, payload: bytes) -> wire.EntryResponse:
        """Stat."""
        asked = decode(payload, wire.PathRequest)
        return wire.EntryResponse(wire.info_of(await entries.stat(self.room.services, self.room.sandbox, asked.path, self._user)))

    async def make_dir(self, payload: bytes) -> wire.EntryResponse:
        """MakeDir: with those above."""
        asked = decode(payload, wire.PathRequest)
        try:
            made = await entries.mkdir(self.room.services, self.room.sandbox, asked.path, self._user)
        except Conflict as error:
            raise Fault("already_exists", error.message) from None
        return wire.EntryResponse(wire.info_of(made))

    async def move(self, payload: bytes) -> wire.EntryResponse:
        """Move: over what is there."""
        asked = decode(payload, wire.MoveRequest)
        if not asked.destination:
            raise Fault("invalid_argument", "destination is empty")
        moved = await entries.move(self.room.services, self.room.sandbox, asked.source, asked.destination, self._user)
        return wire.EntryResponse(wire.info_of(moved))

    async def list_dir(self, payload: bytes) -> wire.ListDirResponse:
        """ListDir."""
        asked = decode(payload, wire.ListDirRequest)
        if not 0 <= asked.depth < 2**32:
            raise Fault("invalid_argument", f"depth: 0 to {2**32 - 1}, not {asked.depth}")
        depth = min(asked.depth or 1, _MOST_DEPTH)
        async with self.room.memory.lists:
            found = await entries.listed(self.room.services, self.room.sandbox, asked.path, depth, self._user)
            return wire.ListDirResponse([wire.info_of(entry) for entry in found])

    async def remove(self, payload: bytes) -> dict[str, object]:
        """Remove: with everything in it."""
        asked = decode(payload, wire.PathRequest)
        await entries.remove(self.room.services, self.room.sandbox, asked.path, self._user)
        return {}

    async def watch_dir(self, outlet: Outlet, seconds: float | None) -> None:
        """WatchDir: events as they come."""
        asked = await first(self.call, wire.WatchRequest)
        watching = Watching(self.room.services, self.room.sandbox, asked, self._user)
        with self.room.services.activity.during(self.room.sandbox):
            await watching.follow(self.call, outlet, seconds)

    async def create_watcher(self, payload: bytes) -> wire.CreateWatcherResponse:
        """CreateWatcher: events that are kept until they are asked for."""
        asked = decode(payload, wire.WatchRequest)
        watching = Watching(self.room.services, self.room.sandbox, asked, self._user)
        return wire.CreateWatcherResponse(await self.room.memory.watchers.create(watching))

    async def get_watcher_events(self, payload: bytes) -> wire.WatcherEventsResponse:
        """GetWatcherEvents: all that happened before this call."""
        asked = decode(payload, wire.WatcherRequest)
        return wire.WatcherEventsResponse(await self.room.memory.watchers.events(self.room.sandbox, asked.watcher_id))

    async def remove_watcher(self, payload: bytes) -> dict[str, object]:
        """RemoveWatcher."""
        asked = decode(payload, wire.WatcherRequest)
        await self.room.memory.watchers.remove(self.room.sandbox, asked.watcher_id)
        return {}
