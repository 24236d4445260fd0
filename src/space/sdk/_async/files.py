"""Single files of a sandbox: read, write, list, watch. For trees of many files `AsyncSandbox.upload` and `download` are faster."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Any, Self

from space.model.errors import Conflict, ConnectionFailed, InvalidArgument, NotFound, ProtocolError, RateLimited, StreamCut, Unavailable
from space.model.files import FileChange, FileInfo
from space.sdk.answers import file_change, file_info, problem_document
from space.sdk.content import Overflow, Reading
from space.sdk.request import Tally

from ._wait import Content, pieces_of, sleep
from .client import HEARTBEAT_LIMIT_SECONDS, AsyncClient

CONTENT_SECONDS = 150.0  # between two pieces of a file; the server gives up after 120 s
PAGE = 1000


class AsyncFiles:
    """The files of a sandbox. Paths are absolute, or begin at the user's home; links are followed within the guest.

    user: whose rights count (`user` unless given). Names that are no UTF-8 hold surrogates, as `os.fsdecode` makes them.
    All raise NotFound, PermissionDenied, Conflict (there already, not empty, a directory where a file is wanted), NoCapacity (disk full).
    """

    def __init__(self, client: AsyncClient, sandbox_path: str) -> None:
        self._client = client
        self._sandbox = sandbox_path
        self._path = f"{sandbox_path}/files"

    # -- contents ------------------------------------------------------------------------------------------------------
    async def read(self, path: str, *, offset: int = 0, length: int | None = None, user: str | None = None) -> bytes:
        """The bytes of a file, from `offset` on, `length` at most; b"" from its end on. All of it is held in memory: see `stream`."""
        content = bytearray()
        async with aclosing(self.stream(path, offset=offset, length=length, user=user)) as pieces:
            async for piece in pieces:
                content += piece
        return bytes(content)

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None) -> str:
        """A file as text. UnicodeDecodeError when it is not in that encoding, unless `errors` says otherwise."""
        return (await self.read(path, user=user)).decode(encoding, errors)

    async def stream(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a file in pieces, as they come: for files that are larger than memory.

        The end comes only when all announced bytes have; a connection that breaks goes on from the byte it stood at, as long as the file is
        the same one: Conflict when it was changed or replaced on the way, StreamCut when it breaks four times in a row without a byte.
        """
        reading = Reading(offset, length)
        if reading.done:
            await self.stat(path, follow=True, user=user)
        while not reading.done:
            try:
                async with aclosing(self._piecewise(path, reading, user)) as pieces:
                    async for piece in pieces:
                        yield piece
            except (ConnectionFailed, StreamCut, Unavailable, RateLimited) as fault:
                pause = reading.wait_after(fault)
                if pause is None:
                    raise
                await sleep(pause)

    async def _piecewise(self, path: str, reading: Reading, user: str | None) -> AsyncGenerator[bytes, None]:
        async with self._client.stream(
            "GET", f"{self._path}/content", params=_at(path, user), headers=reading.headers(), seconds=CONTENT_SECONDS, allowed=(416,)
        ) as response:
            if reading.begin(response.status_code, response.headers):
                async with aclosing(self._client.pieces(response, CONTENT_SECONDS)) as pieces:
                    async for piece in pieces:
                        reading.take(piece)
                        yield piece
                reading.finish()

    async def write(
        self,
        path: str,
        data: Content,
        *,
        mode: int | None = None,
        append: bool = False,
        parents: bool = False,
        exclusive: bool = False,
        user: str | None = None,
    ) -> FileInfo:
        """Write a file whole, or `append` to it. data: bytes, text (as UTF-8), a file opened with "rb", an iterable of bytes; of any size.

        Others see the old file or the new one, never a part; a write that is cancelled, interrupted or cut off leaves the old one (when
        appending: what had arrived is there). Size and checksum of what the guest holds are compared with what was sent: StreamCut if
        they differ. mode: permission bits (an existing file keeps its own unless given). parents: make missing directories. exclusive:
        Conflict when it exists. Bytes and text are sent again after a lost connection, unless `append` or `exclusive`.
        """
        if str(path).endswith("/"):
            raise InvalidArgument(f"{path!r} ends in /, as no file's name does", hint="name the file")
        params = _at(path, user) | _flags(append=append, parents=parents, exclusive=exclusive)
        if mode is not None:
            if not isinstance(mode, int):
                raise InvalidArgument(f"a mode is a number, not {mode!r}", hint="such as 0o644")
            params["mode"] = f"0{mode:o}"
        again = isinstance(data, (bytes, bytearray, memoryview, str)) and not append and not exclusive
        tally = Tally()

        def body() -> AsyncIterator[bytes]:
            return self._counted(data, tally)

        answer = await self._client.call(
            "PUT",
            f"{self._path}/content",
            params=params,
            body=body,
            headers={"content-type": "application/octet-stream"},
            seconds=CONTENT_SECONDS,
            repeatable=again,
        )
        if not isinstance(answer, dict):
            raise ProtocolError("the server's answer to a write is no object", hint="is the server of another version?")
        tally.compare(answer.get("bytes_written"), answer.get("crc32"))
        return file_info(answer)

    async def _counted(self, data: Content, tally: Tally) -> AsyncIterator[bytes]:
        tally.bytes = tally.crc32 = 0
        async for piece in pieces_of(data):
            yield tally.add(piece)

    # -- names ---------------------------------------------------------------------------------------------------------
    async def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What a path is. follow: of a link, what it leads to."""
        return file_info(await self._client.call("GET", f"{self._path}/stat", params=_at(path, user) | {"follow": "1" if follow else "0"}))

    async def is_directory(self, path: str, *, user: str | None = None) -> bool:
        """Whether a path is a directory, or a link to one."""
        try:
            return (await self.stat(path, user=user)).kind == "directory"
        except NotFound:
            return False

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether there is something at this path (a link that leads nowhere is not). NotFound when there is no such sandbox."""
        try:
            await self.stat(path, user=user)
        except NotFound:
            await self._client.call("GET", self._sandbox)  # the sandbox itself may be what was not found
            return False
        return True

    async def list(self, path: str = ".", *, depth: int = 1, user: str | None = None) -> AsyncGenerator[FileInfo, None]:
        """What is in a directory, in byte order, down to `depth` levels; names are relative to `path`. Fetched page by page."""
        params = _at(path, user) | {"depth": str(depth), "limit": str(PAGE)}
        while True:
            answer = await self._client.call("GET", self._path, params=params)
            try:
                files, cursor = [file_info(item) for item in answer["files"]], answer.get("next_cursor")
            except (KeyError, TypeError, AttributeError) as error:
                raise ProtocolError("the server's answer holds no list of files", hint="is the server of another version?") from error
            for file in files:
                yield file
            if not cursor:
                return
            params["cursor"] = str(cursor)

    async def mkdir(self, path: str, *, mode: int | None = None, parents: bool = False, user: str | None = None) -> FileInfo:
        """Make a directory. parents: the missing ones above it as well, and one that is there is no error."""
        return await self._do("mkdir", path, user, parents, mode=mode, parents=parents)

    async def move(self, path: str, to: str, *, replace: bool = False, user: str | None = None) -> FileInfo:
        """Rename; `to` is the new name. replace: what is there goes. Unsupported across file systems."""
        return await self._do("move", path, user, False, to=to, replace=replace)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None) -> None:
        """Remove a file, a link itself, an empty directory, or with `recursive` all that is in it."""
        body = _body(path, user, recursive=recursive, missing_ok=missing_ok)
        await self._client.call("POST", f"{self._path}/remove", json=body, repeatable=missing_ok)

    async def chmod(self, path: str, mode: int, *, recursive: bool = False, user: str | None = None) -> FileInfo:
        """Set the permission bits, such as 0o755."""
        return await self._do("chmod", path, user, True, mode=mode, recursive=recursive)

    async def chown(
        self,
        path: str,
        *,
        owner: str | int | None = None,
        group: str | int | None = None,
        recursive: bool = False,
        user: str = "root",
    ) -> FileInfo:
        """Set owner and group, by name or number; links themselves are changed. Only root may, who does it unless `user` is given."""
        names = {name: None if value is None else str(value) for name, value in (("owner", owner), ("group", group))}
        return await self._do("chown", path, user, True, **names, recursive=recursive)

    async def symlink(self, path: str, target: str, *, replace: bool = False, user: str | None = None) -> FileInfo:
        """Make `path` a symbolic link that says `target`."""
        return await self._do("symlink", path, user, False, target=target, replace=replace)

    def watch(self, path: str, *, recursive: bool = False, user: str | None = None) -> AsyncWatch:
        """Changes below a path, from when the block is entered:

        async with sandbox.files.watch("/srv", recursive=True) as changes:
            async for change in changes: ...
        """
        return AsyncWatch(self._client, f"{self._path}/watch", _at(path, user) | _flags(recursive=recursive))

    async def _do(self, verb: str, path: str, user: str | None, again: bool, **more: Any) -> FileInfo:
        body = _body(path, user, **more)
        return file_info(await self._client.call("POST", f"{self._path}/{verb}", json=body, repeatable=again))


class AsyncWatch:
    """Changes of files as they happen: `FileChange`, and `Overflow` when some were lost (look again). A context manager and an iterator.

    It ends after the deletion of what is watched. StreamCut when the connection breaks: what happened meanwhile is not known.
    """

    def __init__(self, client: AsyncClient, path: str, params: dict[str, str]) -> None:
        self._client = client
        self._path = path
        self._params = params
        self._stack = AsyncExitStack()
        self._lines: AsyncGenerator[dict[str, Any], None] | None = None
        self._gone = False

    async def __aenter__(self) -> Self:
        try:
            response = await self._stack.enter_async_context(
                self._client.stream(
                    "GET", self._path, params=self._params, headers={"accept": "application/x-ndjson"}, seconds=HEARTBEAT_LIMIT_SECONDS
                )
            )
            self._lines = self._client.lines(response, HEARTBEAT_LIMIT_SECONDS)
            while (await self._line()).get("kind") != "watching":
                pass
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop watching. Idempotent."""
        if self._lines is not None:
            lines, self._lines = self._lines, None
            await lines.aclose()
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange | Overflow:
        while True:
            if self._gone:
                raise StopAsyncIteration
            line = await self._line()
            match line.get("kind"):
                case "heartbeat" | "watching":
                    continue
                case "overflow":
                    return Overflow()
                case _:
                    change = file_change(line)
                    self._gone = change.kind == "deleted" and not change.path
                    return change

    async def _line(self) -> dict[str, Any]:
        if self._lines is None:
            raise Conflict("the watch is not open", hint="use it with `async with`")
        async for line in self._lines:
            if line.get("kind") == "error":
                document = line.get("problem", line)
                raise problem_document(document, str(document.get("code")))
            return line
        raise StreamCut("the watch broke off", hint="watch again, and look at what is there")


def _at(path: str, user: str | None) -> dict[str, str]:
    if not path:
        raise InvalidArgument("the path is empty")
    return {"path": path} | ({"user": user} if user is not None else {})


def _flags(**flags: bool) -> dict[str, str]:
    return {name: "1" for name, given in flags.items() if given}


def _body(path: str, user: str | None, **more: Any) -> dict[str, Any]:
    return _at(path, user) | {name: value for name, value in more.items() if value is not None}
