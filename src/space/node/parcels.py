"""Suspended sandboxes as files: memory, device state and disk of one go out, or come in and are another one that is suspended.

    header: sizes, what it needs to go on, the sandbox as the ledger has it, the processes that run in it; all of it sealed
    memory | device state | disk        each from a whole block on, without blocks of zeros

A device state is loaded by the VMM, and a memory says what the guest's kernel does next: what somebody made up would be a program for
both. So a file is sealed by a key that only this installation has, over the digest of all its blocks, and one without that seal is refused
before anything of it is written. What comes is another sandbox with an identity of its own, as a child of a fork is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from space.core.template.bundle import SANDBOX, BundleRefused, Header
from space.core.wire.spool import Head
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound
from space.model.ids import new_snapshot_id
from space.model.rootd import SealSnapshot, StageSnapshot
from space.model.sandbox import MIB, Phase
from space.node import blocks
from space.node.blocks import Incoming, Part
from space.node.ledger import Record
from space.node.sandbox import Sandbox
from space.node.stages import Stage
from space.node.surroundings import Surroundings
from space.node.templates import Templates
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.rootd_client import StagedSnapshot
from space.rpc.session import Stream

_MOST_AT_ONCE = 2
_MOST_BYTES = 1 << 41
# What of a sandbox's row goes along.
_KEPT = ("template", "digest", "cpus", "memory_mib", "disk_mib", "env", "accelerator", "user", "cwd")


class Parcels:
    """One a node. find: a sandbox of it; arrived: one that is at rest is its own from now on."""

    def __init__(
        self, around: Surroundings, templates: Templates, find: Callable[[api.Target], Sandbox], arrived: Callable[[Record], Sandbox]
    ) -> None:
        self._around, self._templates, self._find, self._arrived = around, templates, find, arrived
        self._busy = 0

    async def export(self, stream: Stream, target: api.Target) -> api.Exported:
        """Send it. Conflict unless it is suspended."""
        sandbox = self._find(target)
        record = sandbox.record
        if record.phase is not Phase.SUSPENDED or not record.snapshot:
            words = f"sandbox {record.sandbox} is {record.phase.value}, and a file is made of one that is suspended"
            raise Conflict(words, hint="suspend it first")
        heads = sandbox.processes.heads(sandbox.processes.instant())
        with self._turn():
            there = await self._around.rootd.open_snapshot(record.snapshot)
            try:  # its blocks stay for whoever has them open, whatever becomes of the sandbox
                told = {
                    "manifest": there.manifest,
                    "sandbox": {name: getattr(record, name) for name in _KEPT},
                    "bytes": record.snapshot_bytes,
                    "heads": base64.b64encode(msgspec.msgpack.encode(heads)).decode(),
                }
                files = (there.memory, there.state, there.disk)
                parts = _parts(files, [os.fstat(each).st_size for each in files])
                content, size = await blocks.digest(parts), _whole(parts)
                body = json.dumps(told, sort_keys=True)
                header = Header(content, size, json.dumps({"body": body, "seal": self._seal(content, size, body)}))
                await self._around.trace(record.sandbox, Stage.SEND, "before")
                sent = await blocks.send(stream, header, SANDBOX, parts)
                await self._around.trace(record.sandbox, Stage.SEND, "after")
                return sent
            finally:
                there.close()

    async def take(self, stream: Stream, asked: life_api.Import) -> life_api.Imported:
        """What comes is a suspended sandbox of that id. InvalidArgument says why it is none; NoCapacity, NotFound (its template)."""
        with self._turn():
            await self._templates.make_room()
            coming = _Coming(self, asked)
            try:
                await coming.receive(stream)
                return await coming.commit()
            finally:
                await coming.end()

    def _seal(self, content: str, size: int, body: str) -> str:
        return hmac.new(self._around.export_key, f"{content}\n{size}\n{body}".encode(), hashlib.sha256).hexdigest()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._busy >= _MOST_AT_ONCE:
            raise NoCapacity(f"{self._busy} sandboxes are on their way in or out of this node", hint="wait for one to end")
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    # -- what `_Coming` asks -------------------------------------------------------------------------------------

    def opened(self, header: Header) -> dict[str, Any]:
        """What a header says, if this installation sealed it."""
        try:
            raw = json.loads(header.settings)
            body, seal = raw["body"], raw["seal"]
            true = hmac.compare_digest(seal, self._seal(header.content, header.disk_bytes, body))
            told: dict[str, Any] = json.loads(body) if true else {}
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise BundleRefused(f"its header is not one: {type(error).__name__}") from None
        if not true:
            raise BundleRefused("it was not stored by this installation, or changed since; its memory would be a program for the VMM")
        return told

    async def stage(self, tenant: str, snapshot: str, told: dict[str, Any]) -> StagedSnapshot:
        """Files for it, if its template is the tenant's."""
        row, manifest = told["sandbox"], told["manifest"]
        try:
            self._templates.own(tenant, row["digest"])
        except NotFound:
            words = f"its template {row['template']} ({row['digest']}) is not on this machine"
            raise NotFound(words, hint="import the template first") from None
        return await self._around.rootd.stage_snapshot(StageSnapshot(snapshot, row["memory_mib"], manifest["state_bytes"], row["disk_mib"]))

    async def seal(self, asked: life_api.Import, snapshot: str, told: dict[str, Any]) -> Record:
        """What was staged is a snapshot, and there is a row that names it."""
        around = self._around
        await around.trace(asked.sandbox, Stage.TAKE, "before")
        await around.rootd.seal_snapshot(SealSnapshot(snapshot, asked.sandbox, 1, json.dumps(told["manifest"])))
        heads = msgspec.msgpack.decode(base64.b64decode(told["heads"]), type=list[Head])
        around.archive.of(asked.sandbox).inherit(heads)
        record = Record(
            sandbox=asked.sandbox, tenant=asked.tenant, generation=1, phase=Phase.SUSPENDED, snapshot=snapshot,
            snapshot_bytes=told["bytes"], forked=True, **told["sandbox"],
        )  # fmt: skip
        try:
            sandbox = self._arrived(record)
        except BaseException:
            around.archive.discard(asked.sandbox)
            raise
        try:
            await around.ledger.durable()
        except BaseException:
            sandbox.ask_delete()
            raise
        await around.trace(asked.sandbox, Stage.TAKE, "after")
        return record

    async def forget(self, snapshot: str) -> None:
        """It is staged no longer, or was sealed for nothing."""
        await self._around.releases.snapshot(snapshot)


class _Coming(Incoming):
    """One import."""

    def __init__(self, parcels: Parcels, asked: life_api.Import) -> None:
        super().__init__(SANDBOX, _MOST_BYTES)
        self._parcels, self._asked = parcels, asked
        self._snapshot = new_snapshot_id()
        self._staged: StagedSnapshot | None = None
        self._told: dict[str, Any] = {}
        self._committed = False

    async def begin(self, header: Header) -> None:
        """What it is, and its three files."""
        told = self._parcels.opened(header)
        if (wanted := told["sandbox"]["disk_mib"]) > self._asked.most_mib:
            words = f"its disk has {wanted} MiB, and {self._asked.most_mib} MiB may come"
            raise InvalidArgument(words, hint="delete a sandbox or a template")
        self._told = told
        self._staged = staged = await self._parcels.stage(self._asked.tenant, self._snapshot, told)
        descriptors = (staged.memory, staged.state, staged.disk)
        self.parts = _parts(descriptors, [os.fstat(each).st_size for each in descriptors])
        if _whole(self.parts) != header.disk_bytes:
            raise BundleRefused("its parts are not as large as all of it")

    async def commit(self) -> life_api.Imported:
        """It is a sandbox."""
        await self.synced()
        record = await self._parcels.seal(self._asked, self._snapshot, self._told)
        self._committed = True
        return life_api.Imported(
            record.template, record.cpus, record.memory_mib, record.disk_mib, dict(record.env), record.snapshot_bytes, record.digest
        )

    async def end(self) -> None:
        """Nothing is left of an import that was not committed."""
        if self._staged is None:
            return
        self._staged.close()
        if not self._committed:
            await asyncio.shield(self._parcels.forget(self._snapshot))


def key(path: Path) -> bytes:
    """This installation's, made when it is first asked for."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        made, staged = secrets.token_bytes(32), path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
            file.flush()
            os.fsync(file.fileno())
        staged.rename(path)
        return made


def _parts(descriptors: tuple[int, ...], sizes: list[int]) -> list[Part]:
    found: list[Part] = []
    for descriptor, size in zip(descriptors, sizes, strict=True):
        found.append(Part(descriptor, found[-1].end if found else 0, size))
    return found


def _whole(parts: list[Part]) -> int:
    """All of them, in whole MiB."""
    return -(-parts[-1].end // MIB) * MIB
