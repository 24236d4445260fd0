"""`/files`: a file out, and files in, as they lie: an upload writes in place, as the guest's root, and gives the file to its user."""

from __future__ import annotations

import mimetypes
import posixpath
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.types import Message as Sent
from starlette.types import Send

from space.control.answers import Answer
from space.control.call import Call
from space.control.content import ContentAnswer, wish
from space.control.e2b.envd import entries, file_wire
from space.control.e2b.envd.connect import Fault
from space.control.e2b.envd.encodings import Packed, gzip_wanted, plain
from space.control.e2b.envd.people import known, path_of, user_of
from space.control.e2b.envd.room import Room
from space.control.transfer import Count, upload
from space.core.wire import entries as verbs
from space.core.wire import files as guest
from space.core.wire import multipart
from space.core.wire.entries import Entry
from space.core.wire.events import Message
from space.core.wire.guest import expect
from space.model.errors import Conflict, GuestError, Internal, InvalidArgument, NoCapacity, SpaceError, Unsupported

_FIELD = b"file"
_META = "x-metadata-"
_MOST_KEY = 246
_MOST_METADATA = 4096
# Pieces of an upload are put together to this much, so that a small file is one write.
_PIECE = 64 << 10
_ROOT = "root"
_MEDIA = "application/octet-stream"


class NotEnoughSpace(NoCapacity):
    """The sandbox's disk is full."""

    status, title = 507, "Insufficient storage"


@dataclass(frozen=True, slots=True)
class Files:
    """The endpoint, for one call."""

    call: Call
    room: Room

    def _arguments(self) -> tuple[str, str | None]:
        """Path and user, as given. InvalidArgument."""
        raw = self.call.scope["query_string"]
        try:
            found = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="surrogateescape", max_num_fields=100))
        except ValueError as error:
            raise InvalidArgument(f"the query is not right: {error}", hint="percent-encode what is not ASCII") from None
        return found.get("path", ""), found.get("username") or None

    def _user(self, given: str | None) -> str:
        return known(given) if given is not None else user_of(self.call.headers, self.room.user)

    # -- out ----------------------------------------------------------------------------------------------------------

    async def read(self, send: Send) -> None:
        """GET. SpaceError only before the head has gone out, then CutOff; ClientGone."""
        path, given = self._arguments()
        user = self._user(given)
        asked = wish(self.call.headers)
        packs = gzip_wanted(self.call.headers.get("accept-encoding")) and not asked.ranged and asked.suffix is None
        try:
            raw = path_of(path)
            if not raw.startswith(b"/") or given is not None or asked.suffix is not None:
                entry = await self.call.while_there(entries.stat(self.room.services, self.room.sandbox, path, user))
                raw = entry.path
                if asked.suffix is not None:
                    asked = asked.of_size(await self._size(raw))
            told = _Told(Packed(send) if packs else send, raw)
            await ContentAnswer(self.call, self.room.services, self.room.sandbox, raw, _ROOT, asked).send(told)
        except (SpaceError, Fault) as error:
            raise _plain(error, path) from None

    async def _size(self, raw: bytes) -> int:
        request = entries.forward(self.room.sandbox, guest.FileStat(raw, _ROOT, True))
        return expect(guest.FileAnswer, await self.room.services.link.ask("file_stat", request)).file.size

    # -- in -----------------------------------------------------------------------------------------------------------

    async def write(self, send: Send) -> None:
        """POST. SpaceError; ClientGone."""
        path, given = self._arguments()
        user, metadata = self._user(given), metadata_of(self.call.headers)
        body = plain(self.call.pieces(None), self.call.headers.get("content-encoding", ""))
        try:
            match self.call.media_type:
                case "multipart/form-data":
                    written = await self._parts(body, path, user, metadata)
                case "application/octet-stream":
                    if not path:
                        raise InvalidArgument("the query has no path", hint="a body of bytes needs one")
                    written = [await self._one(body, path, user, metadata)]
                case other:
                    raise Unsupported(f"media type {other[:80]!r} is not understood", hint="multipart/form-data, application/octet-stream")
        except (SpaceError, Fault) as error:
            raise _plain(error, path) from None
        told = [file_wire.WrittenFile(file_wire.text(one.path), file_wire.text(one.file.name), "file", _kept(one)) for one in written]
        await Answer(200, msgspec.json.encode(told), "application/json").send(send)

    async def _parts(self, body: AsyncIterator[bytes], path: str, user: str, metadata: list[verbs.Pair]) -> list[Entry]:
        coming = _events(body, self.call.headers.get("content-type", ""))
        written: list[Entry] = []
        async for event in coming:
            if not isinstance(event, multipart.Part):
                continue  # of a field that is no file
            if event.name != _FIELD:
                continue
            target = path or (event.file_name or b"").decode("utf-8", "surrogateescape")
            if not target:
                raise InvalidArgument("a part has no file name, and the query no path")
            one = await self._one(_part(coming), target, user, metadata)
            if any(other.path == one.path for other in written):
                raise InvalidArgument(f"you cannot upload multiple files to the same path '{target[:200]}'")
            written.append(one)
        if not written:
            raise InvalidArgument(f"the body has no part of the name {_FIELD.decode()!r}")
        return written

    async def _one(self, pieces: AsyncIterator[bytes], path: str, user: str, metadata: list[verbs.Pair]) -> Entry:
        """A file, written. SpaceError; ClientGone."""
        request = entries.forward(self.room.sandbox, verbs.EntryWrite(path_of(path), user, metadata))
        count = Count()
        try:
            with self.room.services.activity.during(self.room.sandbox):
                async with await self.room.services.link.open("entry_write", request, bulk=True) as stream:

                    async def finish() -> None:
                        await stream.send_message(guest.Content(count.size, count.crc32))
                        await stream.close()

                    entry = await upload(_together(pieces), stream, "the file", count, finish, _entry)
        except SpaceError as error:
            raise entries.told(error, user) from None
        if entry.file.kind == "file" and entry.file.size != count.size:
            raise GuestError(f"the file did not arrive whole: {count.size} bytes were sent, and it has {entry.file.size}")
        return entry


def _entry(message: Message) -> Entry:
    return expect(verbs.EntryAnswer, message.payload).entry


def _kept(entry: Entry) -> dict[str, str]:
    return file_wire.metadata_of(entry)


async def _events(body: AsyncIterator[bytes], content_type: str) -> AsyncIterator[multipart.Event]:
    try:
        decoder = multipart.Decoder(multipart.boundary_of(content_type))
        async for piece in body:
            for event in decoder.feed(piece):
                yield event
        decoder.end()
    except multipart.BadMultipart as error:
        raise InvalidArgument(str(error)) from None


async def _part(coming: AsyncIterator[multipart.Event]) -> AsyncIterator[bytes]:
    """The bytes of the part that has begun."""
    async for event in coming:
        match event:
            case multipart.Piece(data):
                yield data
            case multipart.PartEnd():
                return
            case _:
                break
    raise InvalidArgument("the body ends in the middle of a part")


async def _together(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def metadata_of(headers: Mapping[str, str]) -> list[verbs.Pair]:
    """What X-Metadata-* headers say. InvalidArgument."""
    found: list[verbs.Pair] = []
    for name, value in headers.items():
        key = name.lower().removeprefix(_META)
        if not name.lower().startswith(_META):
            continue
        if not key or len(key) > _MOST_KEY:
            raise InvalidArgument(f"a key of metadata has 1 to {_MOST_KEY} characters")
        if not all(" " <= letter <= "~" for letter in key + value):
            raise InvalidArgument(f"metadata {key[:64]!r}: keys and values are printable ASCII")
        found.append((key.encode(), value.encode()))
    if (size := sum(len(key) + len(value) for key, value in found)) > _MOST_METADATA:
        raise InvalidArgument(f"metadata of {size} bytes is larger than {_MOST_METADATA}")
    return found


def _plain(error: SpaceError | Fault, path: str) -> SpaceError:
    """A fault in the statuses of this endpoint."""
    match error:
        case Fault():
            return InvalidArgument(error.message)
        case Conflict() if "of the kind directory" in error.message:
            return InvalidArgument(f"path '{path[:200]}' is a directory")
        case Conflict():
            return InvalidArgument(error.message)
        case NoCapacity() if "disk" in error.message or "space" in error.message:
            return NotEnoughSpace(error.message)
        case GuestError():
            return Internal(error.message)
        case _:
            return error


@dataclass(slots=True)
class _Told:
    """An answer whose head says what the bytes are, by the file's name."""

    send: Send
    path: bytes

    async def __call__(self, message: Sent) -> None:
        if message["type"] == "http.response.start" and message["status"] in (200, 206):
            name = posixpath.basename(self.path).decode("utf-8", "replace")
            media = mimetypes.guess_type(name, strict=False)[0] or _MEDIA
            head = [(key, value) for key, value in message["headers"] if key != b"content-type"]
            shown = f"inline; filename*=UTF-8''{quote(name, safe='')}".encode()
            message = {**message, "headers": [*head, (b"content-type", media.encode()), (b"content-disposition", shown)]}
        await self.send(message)
