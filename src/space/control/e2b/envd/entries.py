"""The guest's verbs of entries, asked for (`core.wire.entries`). A path is as a client gave it, see `people.path_of`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from space.control import limits
from space.control.e2b.envd.people import path_of, refused
from space.control.transfer import events
from space.core.wire import entries as guest
from space.core.wire.entries import Entry
from space.core.wire.events import Message
from space.core.wire.files import Listed
from space.core.wire.guest import Done, decode, expect
from space.model.errors import DeadlineExceeded, ProtocolError, SpaceError, TooLarge, Unsupported
from space.rpc.node_api import Forward

if TYPE_CHECKING:
    from space.control.services import Services

MOST_LISTED = 50_000
# Of the guest's messages of one list: what it becomes here is several times as large, and a guest may be hostile.
MOST_LIST_BYTES = 8 << 20
_LESS = "list less deep, or with a command"
_OLD = "the guest's daemon is of a version that does not know this"


def forward(sandbox: str, request: msgspec.Struct) -> Forward:
    """A request for the guest."""
    return Forward(sandbox, msgspec.msgpack.encode(request))


def is_old(error: SpaceError) -> bool:
    """Whether the guest's daemon does not know what it was asked for."""
    return isinstance(error, Unsupported) and "does not know the verb" in error.message


def told(error: SpaceError, user: str) -> SpaceError:
    """A guest's refusal as this face tells it."""
    if is_old(error):
        return Unsupported(_OLD, hint="build its template again")
    try:
        refused(error, user)
    except SpaceError as found:
        return found


async def _ask(services: Services, sandbox: str, verb: str, request: msgspec.Struct, user: str) -> bytes:
    try:
        return await services.link.ask(verb, forward(sandbox, request), seconds=limits.FILE_SECONDS)
    except SpaceError as error:
        raise told(error, user) from None


async def stat(services: Services, sandbox: str, path: str, user: str) -> Entry:
    """What it is. NotFound, Unauthenticated."""
    return await stat_raw(services, sandbox, path_of(path), user)


async def stat_raw(services: Services, sandbox: str, path: bytes, user: str) -> Entry:
    """The same of a path as the guest has it."""
    return expect(guest.EntryAnswer, await _ask(services, sandbox, "entry_stat", guest.EntryStat(path, user), user)).entry


async def mkdir(services: Services, sandbox: str, path: str, user: str) -> Entry:
    """A new directory. Conflict: it is there."""
    request = guest.EntryMkdir(path_of(path), user)
    return expect(guest.EntryAnswer, await _ask(services, sandbox, "entry_mkdir", request, user)).entry


async def move(services: Services, sandbox: str, path: str, to: str, user: str) -> Entry:
    """As it is called then."""
    request = guest.EntryMove(path_of(path), user, path_of(to))
    return expect(guest.EntryAnswer, await _ask(services, sandbox, "entry_move", request, user)).entry


async def remove(services: Services, sandbox: str, path: str, user: str) -> None:
    """With everything in it; nothing there is no error."""
    expect(Done, await _ask(services, sandbox, "entry_remove", guest.EntryRemove(path_of(path), user), user))


async def listed(services: Services, sandbox: str, path: str, depth: int, user: str) -> list[Entry]:
    """What is in a directory. InvalidArgument: it is none. DeadlineExceeded."""
    request = forward(sandbox, guest.EntryList(path_of(path), user, depth, MOST_LISTED))
    try:
        async with asyncio.timeout(limits.FILE_SECONDS):
            return await _listed(services, request)
    except TimeoutError:
        raise DeadlineExceeded(f"the guest did not list the directory within {limits.FILE_SECONDS:g} s") from None
    except SpaceError as error:
        raise told(error, user) from None


async def _listed(services: Services, request: Forward) -> list[Entry]:
    found: list[Entry] = []
    size = 0
    async with await services.link.open("entry_list", request, bulk=True, finish=True) as stream:
        async for event in events(stream, "the list"):
            said = decode(event.payload) if isinstance(event, Message) else None
            size += len(event.payload)
            match said:
                case guest.Entries(some) if size > MOST_LIST_BYTES or len(found) + len(some) > MOST_LISTED:
                    raise TooLarge(f"what is in the directory is more than {MOST_LISTED} entries or {MOST_LIST_BYTES} bytes", hint=_LESS)
                case guest.Entries(some):
                    found += some
                case Listed(more=False):
                    return found
                case Listed():
                    raise TooLarge(f"there are more than {MOST_LISTED} entries in the directory", hint=_LESS)
                case _:
                    break
    raise ProtocolError("the guest answered a list with something else")
