"""Policies by digest: the documents that control put here, for whoever decides of a sandbox's traffic.

One file each, staged and renamed, in the node's directory; a document whose digest is not its name is not there. Those that no
sandbox has go, the longest unused first, once they are more than `limits.SPARE_POLICIES` bytes: control puts a policy before it names
it, so a fresh one stays. The empty digest stands for a document that allows nothing, which every node has.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from space.core.policy import document
from space.model.errors import InvalidArgument, NoCapacity, NotFound
from space.node import limits

NOTHING = document.compose({})
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Policies:
    """One a node. used: digests that sandboxes have now."""

    def __init__(self, directory: Path, used: Callable[[], Iterable[str]] = tuple) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory = directory
        self.used = used
        self._literals: dict[str, bool] = {"": False}

    def check(self, digest: str) -> None:
        """NotFound when it is not here."""
        if digest and not (self._directory / digest).exists():
            raise NotFound(f"this node has no policy {digest[:32]}", hint="put it, then ask again")

    async def put(self, digest: str, data: bytes) -> None:
        """Keep it. InvalidArgument when it is no policy document of that digest; NoCapacity when the disk is full."""
        if (found := document.digest(data)) != digest:
            raise InvalidArgument(f"a policy with digest {found} came as {digest}")
        await self._read(digest, data)
        staged = self._directory / f".{digest}"
        try:
            staged.write_bytes(data)
            staged.replace(self._directory / digest)
        except OSError as error:
            staged.unlink(missing_ok=True)
            raise NoCapacity(f"the policy cannot be kept: {error.strerror}", hint="free space on the host's disk") from error
        self._drop_spare(digest)

    async def literals(self, digest: str) -> bool:
        """Whether some address may be dialled that no name stands for: then the slot's filter lets such packets in. NotFound."""
        if digest not in self._literals:
            await self._read(digest, self.document(digest))
        return self._literals[digest]

    def document(self, digest: str) -> bytes:
        """Its bytes. NotFound."""
        if not digest:
            return NOTHING
        self.check(digest)
        path = self._directory / digest
        data = path.read_bytes()
        if document.digest(data) != digest:  # torn by a power cut: written without fsync, since control has it as well
            path.unlink(missing_ok=True)
            raise NotFound(f"the policy {digest} of this node was torn", hint="put it again")
        os.utime(path)
        return data

    def sealed(self, digest: str) -> int:
        """A memfd of its bytes that nobody can change any more, which the caller owns. NotFound."""
        data = self.document(digest)
        descriptor = os.memfd_create("policy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    async def _read(self, digest: str, data: bytes) -> None:
        """A large one takes a tenth of a second, in a thread."""
        try:
            read = await asyncio.to_thread(document.read, data)
        except document.DocumentRefused as refused:
            raise InvalidArgument(f"no policy: {refused}") from None
        if len(self._literals) >= limits.KNOWN_POLICIES:
            self._literals = {"": False}
        self._literals[digest] = read.literals

    def _drop_spare(self, fresh: str) -> None:
        used = {fresh, *self.used()}
        spare = []
        for path in self._directory.iterdir():
            facts = path.stat()
            if path.name not in used:
                spare.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in spare)
        for _, size, path in sorted(spare):
            if total <= limits.SPARE_POLICIES:
                return
            path.unlink()
            total -= size
