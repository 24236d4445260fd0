"""Files of a guest over HTTP: content with ranges and conditions (RFC 9110), and what else one does with files.

A transfer goes through with back-pressure and is counted on both sides. A download ends well only after the guest's count equals what
control passed on; an upload that breaks off resets the node's stream, and the guest drops what it has.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from space.control import limits, wire_files
from space.control.answers import Answer
from space.control.call import Call, flag, number
from space.control.content import ContentAnswer, Wish, etag, head_fields, precondition, wish
from space.control.services import Services
from space.control.transfer import Count, events, upload
from space.control.wire import check_user
from space.control.wire_files import (
    ChmodRequest,
    ChownRequest,
    FileList,
    FileWritten,
    MkdirRequest,
    MoveRequest,
    RemoveRequest,
    SymlinkRequest,
    check_name,
    file_info,
)
from space.core.wire import files as guest
from space.core.wire.events import Message
from space.core.wire.guest import Done, decode, expect
from space.model.errors import DeadlineExceeded, GuestError, InvalidArgument, ProtocolError
from space.rpc.node_api import Forward

_MODE = re.compile(r"0[0-7]{1,4}\Z")
_DEFAULT_PAGE, _MOST_PAGE = 1000, 10_000
_MOST_DEPTH = 65_535


@dataclass(frozen=True, slots=True)
class _Where:
    """A path of a sandbox that runs."""

    sandbox: str
    path: bytes
    user: str | None

    def ask(self, request: msgspec.Struct) -> Forward:
        return Forward(self.sandbox, msgspec.msgpack.encode(request))


async def _where(call: Call, services: Services) -> _Where:
    path, user = check_name("path", call.argument("path")), check_user(call.argument("user"))
    await services.sandboxes.usable(call.tenant, call.params["id"])
    return _Where(call.params["id"], path, user)


async def _ask(call: Call, services: Services, verb: str, where: _Where, request: msgspec.Struct) -> bytes:
    """A verb with one answer, while the client is there."""
    with services.activity.during(where.sandbox):
        return await call.while_there(services.link.ask(verb, where.ask(request), seconds=limits.FILE_SECONDS))


async def _one(call: Call, services: Services, verb: str, where: _Where, request: msgspec.Struct) -> guest.File:
    """A verb that answers with a file as it is now."""
    return expect(guest.FileAnswer, await _ask(call, services, verb, where, request)).file


def _answer(found: Any, status: int = 200) -> Answer:
    return Answer(status, wire_files.encode(found), "application/json")


async def stat(call: Call, services: Services) -> Answer:
    """GET .../files/stat."""
    follow = flag(call.argument("follow"), "follow", default=False)
    where = await _where(call, services)
    return _answer(file_info(await _one(call, services, "file_stat", where, guest.FileStat(where.path, where.user, follow))))


async def read(call: Call, services: Services) -> ContentAnswer | Answer:
    """GET .../files/content."""
    asked = wish(call.headers)
    where = await _where(call, services)
    if asked.suffix is not None:
        # From the end: the size is needed first.
        file = await _one(call, services, "file_stat", where, guest.FileStat(where.path, where.user, True))
        asked = asked.of_size(file.size)
    return ContentAnswer(call, services, where.sandbox, where.path, where.user, asked)


async def head(call: Call, services: Services) -> Answer:
    """HEAD .../files/content."""
    where = await _where(call, services)
    # Its faults are those of a read, so it is begun as one, of nothing.
    request = guest.FileRead(where.path, where.user, 0, 0)
    with services.activity.during(where.sandbox):
        file = await call.while_there(_head(services, where.ask(request)))
    asked = Wish.of(call.headers)
    fields = head_fields(file)
    if precondition(asked, file):
        return Answer(304, headers=fields)
    if file.size:
        fields["Content-Length"] = str(file.size)
    return Answer(200, media_type="application/octet-stream", headers=fields, bare=True)


async def _head(services: Services, request: Forward) -> guest.File:
    async with await services.link.open("file_read", request, bulk=True, finish=True) as stream:
        event = await anext(events(stream, "the file"))
        if not isinstance(event, Message):
            raise ProtocolError("the guest sent bytes before it said what the file is")
        return expect(guest.FileAnswer, event.payload).file


async def write(call: Call, services: Services) -> Answer:
    """PUT .../files/content."""
    mode = _mode(call.argument("mode"))
    append, parents, exclusive = (flag(call.argument(name), name, default=False) for name in ("append", "parents", "exclusive"))
    where = await _where(call, services)
    request = guest.FileWrite(where.path, where.user, mode, append, parents, exclusive)
    count = Count()
    with services.activity.during(where.sandbox):
        async with await services.link.open("file_write", where.ask(request), bulk=True) as stream:

            async def finish() -> None:
                await stream.send_message(guest.Content(count.size, count.crc32))
                await stream.close()

            file = await upload(call.pieces(None), stream, "the file", count, finish, _file)
    if not append and file.kind == "file" and file.size != count.size:
        raise GuestError(f"the file did not arrive whole: {count.size} bytes were sent, and it has {file.size}", hint="repeat the transfer")
    info = file_info(file)
    fields = {name: getattr(info, name) for name in info.__slots__}
    answer = FileWritten(**fields, bytes_written=count.size, crc32=count.crc32)
    return Answer(200, wire_files.encode(answer), "application/json", {"ETag": etag(file)})


def _file(message: Message) -> guest.File:
    return expect(guest.FileAnswer, message.payload).file


def _mode(text: str | None) -> int | None:
    if text is None:
        return None
    if not _MODE.match(text):
        raise InvalidArgument(f"mode: {text[:16]!r} is no octal mode", hint="with a leading 0: 0644, 0755")
    return int(text, 8)


async def listed(call: Call, services: Services) -> Answer:
    """GET .../files."""
    depth = number(call.argument("depth"), "depth", default=1, least=1, most=_MOST_DEPTH)
    limit = number(call.argument("limit"), "limit", default=_DEFAULT_PAGE, least=1, most=_MOST_PAGE)
    after = _after(call.argument("cursor"))
    where = await _where(call, services)
    request = guest.FileList(where.path, where.user, depth, after, limit)
    try:
        with services.activity.during(where.sandbox):
            # Whatever the guest does: its file system may hang, or it may tell for ever.
            async with asyncio.timeout(limits.FILE_SECONDS):
                found, more = await call.while_there(_list(services, where.ask(request), limit))
    except TimeoutError:
        raise DeadlineExceeded(f"the guest did not list the directory within {limits.FILE_SECONDS:g} s") from None
    cursor = base64.urlsafe_b64encode(found[-1].name).decode().rstrip("=") if more and found else None
    return _answer(FileList([file_info(one) for one in found], cursor))


async def _list(services: Services, request: Forward, limit: int) -> tuple[list[guest.File], bool]:
    """A page, and whether there is more."""
    found: list[guest.File] = []
    async with await services.link.open("file_list", request, bulk=True, finish=True) as stream:
        async for event in events(stream, "the list"):
            told = decode(event.payload) if isinstance(event, Message) else None
            match told:
                case guest.Files(some) if len(found) + len(some) <= limit:
                    found += some
                case guest.Listed(more):
                    return found, more
                case _:
                    break
    raise ProtocolError("the guest answered a list with something else, or with more than was asked for")


def _after(cursor: str | None) -> bytes | None:
    if cursor is None:
        return None
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise InvalidArgument("cursor: not one that this server gave", hint="take next_cursor of the page before, unchanged") from None


_Asked = TypeVar("_Asked", MkdirRequest, MoveRequest, RemoveRequest, ChmodRequest, ChownRequest, SymlinkRequest)


async def _changed(
    call: Call, services: Services, verb: str, cls: type[_Asked], request: Callable[[_Asked, bytes, str | None], msgspec.Struct]
) -> Answer:
    """A request of JSON with a path, and the file as it is then."""
    asked = wire_files.decode(await call.json(), cls)
    made = request(asked, check_name("path", asked.path), check_user(asked.user))
    await services.sandboxes.usable(call.tenant, call.params["id"])
    where = _Where(call.params["id"], b"", None)
    if isinstance(made, guest.FileRemove):
        expect(Done, await _ask(call, services, verb, where, made))
        return Answer(204)
    return _answer(file_info(await _one(call, services, verb, where, made)))


async def mkdir(call: Call, services: Services) -> Answer:
    """POST .../files/mkdir."""

    def request(asked: MkdirRequest, path: bytes, user: str | None) -> guest.FileMkdir:
        return guest.FileMkdir(path, user, asked.mode, asked.parents)

    return await _changed(call, services, "file_mkdir", MkdirRequest, request)


async def move(call: Call, services: Services) -> Answer:
    """POST .../files/move."""

    def request(asked: MoveRequest, path: bytes, user: str | None) -> guest.FileMove:
        return guest.FileMove(path, user, check_name("to", asked.to), asked.replace)

    return await _changed(call, services, "file_move", MoveRequest, request)


async def remove(call: Call, services: Services) -> Answer:
    """POST .../files/remove."""

    def request(asked: RemoveRequest, path: bytes, user: str | None) -> guest.FileRemove:
        return guest.FileRemove(path, user, asked.recursive, asked.missing_ok)

    return await _changed(call, services, "file_remove", RemoveRequest, request)


async def chmod(call: Call, services: Services) -> Answer:
    """POST .../files/chmod."""

    def request(asked: ChmodRequest, path: bytes, user: str | None) -> guest.FileChmod:
        return guest.FileChmod(path, user, asked.mode, asked.recursive)

    return await _changed(call, services, "file_chmod", ChmodRequest, request)


async def chown(call: Call, services: Services) -> Answer:
    """POST .../files/chown."""

    def request(asked: ChownRequest, path: bytes, user: str | None) -> guest.FileChown:
        if asked.owner is None and asked.group is None:
            raise InvalidArgument("owner and group are both missing", hint="give one of them, by name or number")
        owner, group = _check_owner("owner", asked.owner), _check_owner("group", asked.group)
        return guest.FileChown(path, user, owner, group, asked.recursive)

    return await _changed(call, services, "file_chown", ChownRequest, request)


async def symlink(call: Call, services: Services) -> Answer:
    """POST .../files/symlink."""

    def request(asked: SymlinkRequest, path: bytes, user: str | None) -> guest.FileSymlink:
        return guest.FileSymlink(path, user, check_name("target", asked.target), asked.replace)

    return await _changed(call, services, "file_symlink", SymlinkRequest, request)


def _check_owner(field: str, text: str | None) -> str | None:
    """A name or number of an owner or a group, or None; InvalidArgument otherwise."""
    if text is None or (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32 - 1):
        return text
    try:
        return check_user(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"{field}: {text[:32]!r} is no name and no number", hint="as in /etc/passwd or /etc/group of the guest"
        ) from None


CHANGES: dict[str, Callable[[Call, Services], Awaitable[Answer]]] = {
    "mkdir": mkdir,
    "move": move,
    "remove": remove,
    "chmod": chmod,
    "chown": chown,
    "symlink": symlink,
}
