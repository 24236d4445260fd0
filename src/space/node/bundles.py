"""Templates as files: one goes out of the node, or comes in and is one, whole or not at all.

A file that comes is hostile: it is unpacked 128 KiB at a time into a disk that rootd staged, which is no template before every block came
and the digest was right; its size is bounded by what its header says, which is bounded by the tenant's quota, and by what is free.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar, cast

import zstandard

from space.config import manifest as manifests
from space.config.artefacts import CERTIFICATE, Store, TemplateManifest
from space.config.shelf import DISK
from space.core.template import plan
from space.core.template.bundle import BLOCK, END, ZEROS, Block, BundleRefused, Content, Header, Reader, head, pack
from space.core.template.model import FromTemplate, Recipe, Run, Write
from space.model.errors import BuildFailed, Conflict, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.rootd import SealTemplate, StageTemplate
from space.model.sandbox import DEFAULT_TEMPLATE, MIB
from space.node.builder import Builds
from space.node.surroundings import Surroundings
from space.node.templates import Templates
from space.rpc import node_api as api
from space.rpc.session import Data, Stream

log = logging.getLogger(__name__)
T = TypeVar("T")

OURS = "/usr/local/share/ca-certificates/space.crt"  # where set-up puts it (`setup.root`)
_LEVEL = 3
_WINDOW = 8 << 20  # what unpacking may take of memory; packing at this level needs 2 MiB
_SLICE = 64  # blocks that one step of a thread reads
_MOST_AT_ONCE = 2
_LEAST_FREE = 256 * MIB
_IMPORT = ".import-"


class Bundles:
    """One a node."""

    def __init__(self, around: Surroundings, store: Store, templates: Templates, builds: Builds) -> None:
        self._around, self._store, self._templates, self._builds = around, store, templates, builds
        self._busy: set[str] = set()
        self._staged: set[str] = set()

    async def tidy(self) -> None:
        """Remove what an import of an earlier node left."""
        place = self._store.own
        if place is None or not place.is_dir():
            return
        for entry in list(place.iterdir()):
            if entry.name.startswith(_IMPORT) and not (place / entry.name.removeprefix(_IMPORT)).exists():
                with suppress(SpaceError):
                    await self._around.rootd.drop_template(entry.name.removeprefix(_IMPORT), force=True)

    async def export(self, stream: Stream, tenant: str, digest: str) -> api.Exported:
        """Send it. NotFound."""
        manifest = self._templates.own(tenant, digest)
        with self._turn(f"export {digest} {id(stream)}"):
            disk = await self._opened(manifest)
            try:
                content = Content()
                for blocks in _slices(disk, manifest.disk_bytes):
                    await _in_thread(functools.partial(_digested, content, disk, blocks))
                header = Header(content.digest(), manifest.disk_bytes, replace(manifest, tenant="").settings(), manifest.root)
                return await self._sent(stream, header, disk)
            finally:
                os.close(disk)

    async def _opened(self, manifest: TemplateManifest) -> int:
        if manifest.tenant:
            return await self._around.rootd.open_template(manifest.digest)
        return os.open(self._store.directory(manifest.digest) / DISK, os.O_RDONLY | os.O_CLOEXEC)

    @staticmethod
    async def _sent(stream: Stream, header: Header, disk: int) -> api.Exported:
        packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
        size = crc = 0

        async def send(data: bytes) -> None:
            nonlocal size, crc
            size, crc = size + len(data), zlib.crc32(data, crc)
            await stream.send(data)

        await send(packer.compress(head(header)))
        for blocks in _slices(disk, header.disk_bytes):
            await send(await _in_thread(functools.partial(_packed, packer, disk, blocks)))
        await send(packer.compress(END) + packer.flush())
        return api.Exported(header.content, size, crc)

    async def take(self, stream: Stream, asked: api.TemplateImport) -> TemplateManifest:
        """What comes is a template of the tenant's. InvalidArgument says why it is none; NoCapacity: no room for its disk."""
        now = self._store.template(DEFAULT_TEMPLATE)
        self._store.stands(now)
        with self._turn(f"import {id(stream)}"):
            await self._templates.make_room()
            coming = _Coming(self, asked, now)
            try:
                await coming.receive(stream)
                manifest = await coming.commit()
            finally:
                await coming.end()
        return await self._trusting(asked.tenant, manifest, coming.header, now)

    async def _trusting(self, tenant: str, manifest: TemplateManifest, header: Header, now: TemplateManifest) -> TemplateManifest:
        """A disk of another machine trusts that machine's root: a step in a builder makes it trust the one of this."""
        if not header.root or not now.root or header.root == now.root:
            return manifest
        certificate = (self._store.authority(now.root) / CERTIFICATE).read_text()
        trusted = Run(("/bin/sh", "-ec", "if command -v update-ca-certificates; then update-ca-certificates; fi"))
        recipe = Recipe(base=FromTemplate(manifest.name), steps=(Write(OURS, certificate), trusted), name=manifest.name)
        try:
            made = await self._builds.over(cast("Stream", _Mute()), tenant, recipe, manifest)
        except BuildFailed as error:
            log.warning("template %s goes on trusting the root of where it was made: %s", manifest.digest, error)
            return manifest
        await self._around.rootd.drop_template(manifest.digest, force=True)
        return made

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        if len(self._busy) >= _MOST_AT_ONCE:
            raise NoCapacity(f"{len(self._busy)} templates are on their way in or out of this node", hint="wait for one to end")
        self._busy.add(name)
        try:
            yield
        finally:
            self._busy.discard(name)

    # -- what `_Coming` asks -------------------------------------------------------------------------------------

    def there(self, tenant: str, digest: str) -> TemplateManifest | None:
        """A template that is here already."""
        try:
            found = self._store.template_by_digest(digest)
        except NotFound:
            return None
        return found if found.tenant == tenant else None

    def claim(self, digest: str) -> None:
        """It is this import's to write; Conflict while another does."""
        if digest in self._staged:
            raise Conflict(f"template {digest} is being imported already", hint="wait for the other import to end")
        self._staged.add(digest)

    async def stage(self, digest: str, disk_bytes: int) -> int:
        """An empty disk of that size, to write."""
        return await self._around.rootd.stage_template(StageTemplate(digest, disk_bytes // MIB))

    async def seal(self, digest: str, onto: str, settings: str) -> TemplateManifest:
        """What was staged is a template."""
        await self._around.rootd.seal_template(SealTemplate(digest, onto, settings))
        return self._store.template_by_digest(digest)

    async def forget(self, digest: str, *, drop: bool) -> None:
        """It is staged no longer."""
        self._staged.discard(digest)
        if drop:
            with suppress(SpaceError):  # rootd is away: it removes what is staged when it begins
                await self._around.rootd.drop_template(digest, force=True)


class _Coming:
    """One import. Its bytes are unpacked and written in a thread, which asks for the disk once the header is there."""

    def __init__(self, bundles: Bundles, asked: api.TemplateImport, now: TemplateManifest) -> None:
        self._bundles, self._asked, self._now = bundles, asked, now
        self._reader = Reader(asked.most_mib * MIB)
        self._loop = asyncio.get_running_loop()
        self._settings: manifests.TemplateManifest | None = None
        self._digest = ""
        self._there: TemplateManifest | None = None
        self._disk: int | None = None
        self._committed = False
        self._stopped = False
        self._written = 0

    @property
    def header(self) -> Header:
        assert self._reader.header is not None, "it was committed"
        return self._reader.header

    async def receive(self, stream: Stream) -> None:
        """All of it."""
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_writer(self, closefd=False)  # type: ignore[arg-type]
        try:
            async for event in stream:
                if isinstance(event, Data):
                    await _in_thread(functools.partial(unpacker.write, event.payload), self.stop)
            self._reader.close()
        except BundleRefused as refused:
            raise InvalidArgument(f"this is no template that can be imported: {refused}") from None
        except zstandard.ZstdError as error:
            raise InvalidArgument(f"this is no template that can be imported: its packing is broken ({str(error)[:120]})") from None
        except OSError as error:
            raise NoCapacity(
                f"the template's disk cannot be written: {error.strerror}", hint="free space below the data directory"
            ) from None

    async def commit(self) -> TemplateManifest:
        """It is a template."""
        if self._there is not None:
            return self._there
        assert self._disk is not None, "a file without blocks has a header"
        assert self._settings is not None, "they came with the header"
        await _in_thread(functools.partial(os.fsync, self._disk))
        made = await self._bundles.seal(self._digest, self._now.digest, self._settings.settings())
        self._committed = True
        return made

    async def end(self) -> None:
        """Nothing is left of an import that was not committed."""
        if self._disk is not None:
            os.close(self._disk)
        if self._digest:
            await asyncio.shield(self._bundles.forget(self._digest, drop=not self._committed))

    # -- in the thread -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Write nothing more."""
        self._stopped = True

    def write(self, data: bytes) -> int:
        """What was unpacked, a piece of it."""
        if self._stopped:
            raise BundleRefused("the import was given up")
        for found in self._reader.receive(data):
            if isinstance(found, Header):
                asyncio.run_coroutine_threadsafe(self._begin(found), self._loop).result()
            elif self._disk is not None:
                if self._written % 256 == 0 and _free(self._disk) < _LEAST_FREE:
                    raise NoCapacity("the data's file system is nearly full", hint="`space prune`, or free space below the data directory")
                self._written += 1
                os.pwrite(self._disk, found.data, found.offset)
        return len(data)

    async def _begin(self, header: Header) -> None:
        asked, now = self._asked, self._now
        try:
            author = manifests.settings(header.settings)
        except (ValueError, RecursionError) as error:
            raise BundleRefused(f"its settings: {str(error)[:200]}") from None
        if author["kind"] != "template":
            raise BundleRefused(f"it is a {author['kind']}")
        author |= {"tenant": asked.tenant, "name": asked.name or author["name"], "created_us": time.time_ns() // 1000}
        self._settings = replace(now, **author)
        machine = {"kernel": now.kernel, "initramfs": now.initramfs, "qemu": now.qemu, "root": now.root, "tenant": asked.tenant}
        told = {name: value for name, value in author.items() if name != "created_us"}
        digest = plan.template_digest(header.content, {"imported": header.disk_bytes, **machine, "settings": told})
        self._there = self._bundles.there(asked.tenant, digest)
        if self._there is None:
            self._bundles.claim(digest)
            self._digest = digest
            self._disk = await self._bundles.stage(digest, header.disk_bytes)


class _Mute:
    """The stream of a build that nobody follows, and that nothing comes along with but an empty archive."""

    async def send(self, data: bytes, lane: int = 0) -> None:
        pass

    async def send_message(self, message: object, *, last: bool = False) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Data]:
        yield Data(0, bytes(1024))


async def _in_thread(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Do it there. When this is cancelled it is over in the thread as well, so that descriptors can be closed."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it is not news
        raise


def _slices(disk: int, size: int) -> Iterator[list[int]]:
    """Offsets of blocks with data in them, some at a time."""
    some: list[int] = []
    for offset in _offsets(disk, size):
        some.append(offset)
        if len(some) == _SLICE:
            yield some
            some = []
    if some:
        yield some


def _offsets(disk: int, size: int) -> Iterator[int]:
    at = 0
    while at < size:
        try:
            begin = os.lseek(disk, at, os.SEEK_DATA)
        except OSError:  # only a hole from here on
            return
        end = os.lseek(disk, begin, os.SEEK_HOLE)
        at = max(at, begin // BLOCK * BLOCK)
        while at < min(end, size):
            yield at
            at += BLOCK


def _read(disk: int, offsets: list[int]) -> Iterator[Block]:
    for offset in offsets:
        data = os.pread(disk, BLOCK, offset)
        if data and data != ZEROS[: len(data)]:
            yield Block(offset, data.ljust(BLOCK, b"\0"))


def _digested(content: Content, disk: int, offsets: list[int]) -> None:
    for block in _read(disk, offsets):
        content.add(block)


def _packed(packer: zstandard.ZstdCompressionObj, disk: int, offsets: list[int]) -> bytes:
    return b"".join(packer.compress(pack(block)) for block in _read(disk, offsets))


def _free(disk: int) -> int:
    facts = os.fstatvfs(disk)
    return facts.f_bavail * facts.f_frsize
