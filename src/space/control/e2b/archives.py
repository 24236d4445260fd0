"""Archives that E2B's clients upload for COPY steps: kept by the client's own digest, a tenant's own, until nobody used one for a week.

The digest is the client's word and is believed for nothing but its own tenant's cache. Nothing is unpacked here: a build's guest does that.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from space.model.errors import InvalidArgument, NotFound, TooLarge, Unavailable
from space.model.sandbox import MIB

MOST: Final = 512 * MIB
_MOST_OF_TENANT: Final = 2048 * MIB
_KEPT_SECONDS: Final = 7 * 86_400.0
_CHUNK: Final = 256 << 10
_NAME = re.compile(r"[0-9a-f]{64}\Z")
_STAGED = ".staged-"


class Archives:
    """Below one directory of control's own."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def sweep(self) -> None:
        """Remove what a killed process left, and what nobody has used for a week."""
        for path in self._place.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.name.startswith(_STAGED) or path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    path.unlink()

    def has(self, tenant: str, name: str) -> bool:
        """Whether it is there. InvalidArgument for what is no digest."""
        return self._path(tenant, name).is_file()

    def size(self, tenant: str, name: str) -> int:
        """Bytes. NotFound."""
        try:
            return self._path(tenant, name).stat().st_size
        except FileNotFoundError:
            raise NotFound(f"the files with hash {name} were not uploaded") from None

    async def put(self, tenant: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Keep one, whole or not at all. TooLarge, Unavailable where the disk takes nothing."""
        final = self._path(tenant, name)
        final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged = final.with_name(f"{_STAGED}{secrets.token_hex(8)}")
        try:
            with staged.open("xb") as file:
                taken = 0
                async for piece in pieces:
                    taken += len(piece)
                    if taken > MOST:
                        raise TooLarge(f"an archive of a COPY step has at most {MOST} bytes")
                    await asyncio.to_thread(file.write, piece)
            self._make_room(final.parent, taken)
            staged.rename(final)
        except OSError as error:
            raise Unavailable(f"the archive could not be kept: {error.strerror}") from error
        finally:
            staged.unlink(missing_ok=True)

    async def stream(self, tenant: str, names: Sequence[str]) -> AsyncIterator[bytes]:
        """A tar stream with each as `files/<name>`. NotFound."""
        for name in names:
            path = self._path(tenant, name)
            info = tarfile.TarInfo(f"files/{name}")
            try:
                file = await asyncio.to_thread(path.open, "rb")
            except FileNotFoundError:
                raise NotFound(f"the files with hash {name} were not uploaded") from None
            with file:
                os.utime(path)
                left = info.size = os.fstat(file.fileno()).st_size
                yield info.tobuf(tarfile.PAX_FORMAT)
                while left:
                    data = await asyncio.to_thread(file.read, min(_CHUNK, left))
                    if not data:
                        raise Unavailable(f"the archive {name} became shorter while it was read")
                    left -= len(data)
                    yield data
                yield bytes(-info.size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _make_room(self, place: Path, more: int) -> None:
        """The least recently used go."""
        known = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in place.iterdir() if not path.name.startswith(_STAGED))
        over = sum(size for _, size, _ in known) + more - _MOST_OF_TENANT
        for _, size, path in known:
            if over <= 0:
                return
            path.unlink()
            over -= size

    def _path(self, tenant: str, name: str) -> Path:
        if not _NAME.match(name):
            raise InvalidArgument(f"{name[:80]!r} is no SHA-256 in hex digits")
        return self._place / tenant / name
