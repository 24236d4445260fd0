"""Builds of templates: a recipe's steps in a sandbox that nobody else sees, each kept as a disk under its digest.

    base or the last step that is kept -> builder boots -> what came goes into its memory -> step, sync, keep -> ... -> ready? -> template

The host runs and unpacks nothing. A build that ends early, for whatever reason, leaves the steps that were done and no builder; a node that
dies leaves a builder of a tenant that is none, which the next one removes.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from importlib import resources
from types import MappingProxyType
from typing import Any

import msgspec

from space.config.artefacts import Store, TemplateManifest
from space.core.template import plan
from space.core.template.model import Copy, FromTemplate, Recipe, Run, Settings, Write
from space.core.template.recipe import RecipeRefused, parse
from space.core.wire import files as wire_files
from space.core.wire import guest as wire
from space.model.errors import BuildFailed, DeadlineExceeded, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.ids import new_process_id, new_sandbox_id
from space.model.rootd import KeepTemplate, RebaseTemplate
from space.model.sandbox import DEFAULT_TEMPLATE, MIB, Phase
from space.node.binding import Held as HeldPolicy
from space.node.board import Board
from space.node.imagesettings import settings_of_image
from space.node.ledger import Record
from space.node.reader import Reader
from space.node.relay import TREE_PUT, Held
from space.node.sandbox import Sandbox
from space.node.surroundings import Surroundings
from space.node.templates import Templates
from space.rpc import node_api as api
from space.rpc.session import Data, Stream

log = logging.getLogger(__name__)

# No tenant has this name (it does not begin with a letter).
TENANT = "-build"
PLACE = "/dev/shm/space-build"  # noqa: S108 (in the guest's memory, half of which it may take)
SYNC = ("sync",)
_MOST_BUILDS = 2
_MOST_SAID = 64 << 10
_READY_PAUSE = 1.0


class BuildStage(StrEnum):
    """Where a build has got to; a test can stop there."""

    BOOTED = "booted"  # the builder, from the base or the last step that is kept
    BROUGHT = "brought"  # what came along is in its memory
    RAN = "ran"  # a step's work is done
    KEPT = "kept"  # its disk is kept
    PROVED = "proved"  # it starts, and is ready
    COMMITTED = "committed"  # it is a template


# A test's hook. The product passes none, and no setting reaches it.
BuildTrace = Callable[[BuildStage], Awaitable[None]]


async def _no_trace(stage: BuildStage) -> None:
    """What the product traces."""


class Builds:
    """Every build of a node."""

    trace: BuildTrace = staticmethod(_no_trace)

    def __init__(self, around: Surroundings, store: Store, templates: Templates) -> None:
        self._around = around
        self._store = store
        self._templates = templates
        self._running: set[str] = set()

    async def build(self, stream: Stream, asked: api.TemplateBuild) -> TemplateManifest:
        """The template of a recipe; its log goes to `stream`, whose DATA is what came with it. BuildFailed names the step."""
        recipe = _parsed(asked.recipe)
        if asked.name:
            recipe = replace(recipe, name=asked.name)
        base = self._base(recipe, asked)
        try:
            layers = plan.layers(recipe, base.digest, asked.inputs, asked.downloads, salt=asked.tenant, policies=asked.policies)
        except plan.InputMissing as error:
            raise InvalidArgument(str(error)) from None
        for digest in asked.policies.values():
            self._around.egress.policies.check(digest)
        return await self._build(stream, asked.tenant, recipe, base, layers, asked.policies)

    async def over(self, stream: Stream, tenant: str, recipe: Recipe, base: TemplateManifest) -> TemplateManifest:
        """The template of a recipe that brings nothing along, over a template that stands; all else is that one's."""
        return await self._build(stream, tenant, recipe, base, plan.layers(recipe, base.digest, {}, salt=tenant))

    async def _build(
        self,
        stream: Stream,
        tenant: str,
        recipe: Recipe,
        base: TemplateManifest,
        layers: tuple[plan.Layer, ...],
        policies: Mapping[str, str] = MappingProxyType({}),
    ) -> TemplateManifest:
        if len(self._running) >= _MOST_BUILDS:
            raise NoCapacity(f"{len(self._running)} builds run on this node", hint="wait for one to end")
        name = new_sandbox_id()
        self._running.add(name)
        needed = Counter(layer.digest for layer in layers)
        self._templates.needed += needed
        try:
            await self._templates.make_room()
            return await _Build(self._around, self._store, stream, tenant, recipe, base, layers, policies, self.trace).run(name)
        finally:
            self._templates.needed -= needed
            self._running.discard(name)
            await self._templates.make_room()

    def _base(self, recipe: Recipe, asked: api.TemplateBuild) -> TemplateManifest:
        if asked.base:
            manifest = self._store.template_by_digest(asked.base)
            if manifest.tenant not in ("", asked.tenant) or manifest.kind != "template":
                raise NotFound(f"template {asked.base} is not on this machine")
        elif isinstance(recipe.base, FromTemplate):
            manifest = self._store.template(recipe.base.reference.partition(":")[0])
        else:
            manifest = self._store.template(DEFAULT_TEMPLATE)
        self._store.stands(manifest)
        return manifest


class _Build:
    def __init__(
        self,
        around: Surroundings,
        store: Store,
        stream: Stream,
        tenant: str,
        recipe: Recipe,
        base: TemplateManifest,
        layers: tuple[plan.Layer, ...],
        policies: Mapping[str, str],
        trace: BuildTrace,
    ) -> None:
        self._trace = trace
        self._policies = policies
        self._around, self._store, self._stream = around, store, stream
        self._tenant, self._recipe, self._base, self._layers = tenant, recipe, base, layers
        self._image = Settings()
        self._sandbox: Sandbox | None = None

    async def run(self, name: str) -> TemplateManifest:
        at = self._kept()
        for number in range(at):
            await self._say(number, "cached")
        if at == len(self._layers) and (whole := self._found(self._digest(self._settings()))):
            await self._dropped_input()
            return whole
        try:
            if at == len(self._layers) and self._settings().ready is None:
                await self._dropped_input()
            else:
                async with self._builder(name, self._layers[at - 1].digest if at else self._base.digest):
                    await self._trace(BuildStage.BOOTED)
                    await self._take_input()
                    await self._trace(BuildStage.BROUGHT)
                    for number in range(at, len(self._layers)):
                        await self._step(number)
                    await self._prove()
                    await self._trace(BuildStage.PROVED)
            return await self._commit()
        finally:
            await self._gone()

    # -- the cache -----------------------------------------------------------------------------------------------

    def _kept(self) -> int:
        """How many steps, from the last one that is kept back, need not be done."""
        for number in range(len(self._layers), 0, -1):
            step = self._found(self._layers[number - 1].digest)
            if step is not None:
                self._image = Settings(dict(step.env), step.user or None, step.cwd or None, step.start or None)
                return number
        return 0

    def _found(self, digest: str) -> TemplateManifest | None:
        try:
            found = self._store.template_by_digest(digest)
        except SpaceError:  # not there, or of another version: made anew
            return None
        return found if found.tenant == self._tenant else None

    # -- the builder ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _builder(self, name: str, digest: str) -> AsyncIterator[None]:
        around, recipe = self._around, self._recipe
        disk = max(recipe.disk_mib or 0, -(-self._base.disk_bytes // MIB))
        verdict = await around.accelerators.decide(self._base.kernel)
        record = Record(
            sandbox=name,
            tenant=TENANT,
            generation=1,
            template=self._base.name,
            digest=digest,
            cpus=1,
            memory_mib=recipe.memory_mib,
            disk_mib=disk,
            env={},
            phase=Phase.REQUESTED,
            accelerator=verdict.accelerator,
        )
        around.gate.enter(name, recipe.memory_mib)
        self._sandbox = Sandbox.create(record, replace(around, board=Board()))  # on a board of its own: nobody else is to see it
        await self._sandbox.opened()
        if self._sandbox.phase is not Phase.RUNNING:
            raise self._sandbox.fault or BuildFailed(f"the builder did not boot: {self._sandbox.record.reason}")
        yield

    async def _gone(self) -> None:
        if self._sandbox is not None:
            with suppress(DeadlineExceeded):  # its deletion goes on
                await asyncio.shield(self._sandbox.delete())
            self._around.archive.retire(self._sandbox.record.sandbox)

    @property
    def _running(self) -> Sandbox:
        assert self._sandbox is not None, "the builder was booted"
        return self._sandbox

    async def _take_input(self) -> None:
        """What came with the recipe, into the guest's memory."""
        guest = self._running.guest()
        await self._call("file_mkdir", wire_files.FileMkdir(PLACE.encode(), "root", 0o755, parents=True))
        held = Held(TREE_PUT)
        with guest.held_to_protocol():
            async with await guest.open_tree("tree_put", api.Tree(self._running.record.sandbox, PLACE, "root")) as tree:
                async for event in self._stream:
                    if isinstance(event, Data):
                        await tree.send(event.payload)
                await tree.close()
                async for event in tree:
                    if not isinstance(event, Data):
                        held.message(event.payload)
                held.close()

    async def _dropped_input(self) -> None:
        async for _ in self._stream:
            pass

    # -- steps ---------------------------------------------------------------------------------------------------

    async def _step(self, number: int) -> None:
        layer = self._layers[number]
        began = time.monotonic()
        await self._say(number, "begun")
        with _naming(number, layer.title):
            match layer.action:
                case Run() as run:
                    async with self._egress(run):
                        await self._execute(run)
                case Copy(source=source, to=to, owner=owner):
                    await self._execute(Run(("/bin/sh", "-ec", _COPY, "copy", f"{PLACE}/files/{source}", to, owner)))
                case Write() as write:
                    await self._write(write)
                case plan.Unpack(source=source, image=image):
                    await self._unpack(f"{PLACE}/files/{source}", image)
            await self._trace(BuildStage.RAN)
            await self._keep(layer.digest)
            await self._trace(BuildStage.KEPT)
        await self._say(number, "done", round((time.monotonic() - began) * 1000))

    @asynccontextmanager
    async def _egress(self, run: Run) -> AsyncIterator[None]:
        """Its policy holds while it runs, and none before and after; where that is not sure the build fails, and the builder goes."""
        if not run.egress:
            yield
            return
        sandbox = self._running
        number = sandbox.record.policy_generation + 1
        await sandbox.set_policy(HeldPolicy(self._policies[run.egress], number))
        try:
            yield
        finally:
            await sandbox.set_policy(HeldPolicy("", number + 1))

    async def _execute(self, run: Run, *, sink: _Said | None = None) -> int | None:
        """Run it; its output goes to the log. BuildFailed unless it ends with 0. sink: its output goes there, and the status counts."""
        env = {**self._image.env, **self._recipe.settings.env, **run.env, "SPACE_DOWNLOADS": f"{PLACE}/downloads"}
        asked = api.Exec(
            self._running.record.sandbox,
            list(run.argv),
            cwd=run.cwd or "/",
            env=env,
            user=run.user or "root",
            timeout_ms=run.timeout_seconds * 1000,
            process=new_process_id(),
        )
        process = self._running.processes.start(asked)
        with Reader(process) as reader:
            try:
                await process.running()
                to: Any = self._stream if sink is None else sink
                await reader.send(to, follow=True)
            except BaseException as error:
                process.left(kill=True)
                if isinstance(error, SpaceError):
                    raise await self._running.explain(error) from error
                raise
            end = process.spool.end
        process.left(kill=True)
        assert end is not None, "all was sent"
        if end.reason is not None:
            raise BuildFailed(f"the builder ended: {end.reason}")
        if end.code != 0 and (sink is None or end.code is None):
            raise BuildFailed(_ending(end, run.timeout_seconds))
        return end.code

    async def _write(self, write: Write) -> None:
        path = write.to.encode()
        request = wire_files.FileWrite(path, "root", write.mode, append=False, parents=True, exclusive=False)
        await self._call("file_write", request, write.text.encode())
        await self._call("file_chmod", wire_files.FileChmod(path, "root", write.mode, recursive=False))
        if write.owner != "root":
            await self._execute(Run(("chown", "--", f"{write.owner}:", write.to)))

    async def _unpack(self, source: str, image: str) -> None:
        """By a program in the guest, with what the base has; what it says of the image's settings is somebody else's word."""
        program = resources.files("space.node.inguest").joinpath("unpack.py").read_bytes()
        script = f"{PLACE}/unpack.py"
        await self._call(
            "file_write", wire_files.FileWrite(script.encode(), "root", 0o644, append=False, parents=True, exclusive=False), program
        )
        said, complaints = bytearray(), bytearray()
        command = Run(("python3", "-I", script, source, image), timeout_seconds=6 * 3600)
        if await self._execute(command, sink=_Said(said, complaints, self._stream)) != 0:
            raise BuildFailed(complaints.decode(errors="replace").strip().rpartition("\n")[2][:500] or "the image was not unpacked")
        self._image = settings_of_image(bytes(said))

    async def _call(self, verb: str, request: msgspec.Struct, data: bytes | None = None) -> None:
        guest = self._running.guest()
        with guest.held_to_protocol():
            async with await guest.open_forwarded(verb, msgspec.msgpack.encode(request)) as stream:
                if data is not None:
                    await stream.send(data)
                    await stream.send_message(wire_files.Content(len(data), zlib.crc32(data)), last=True)
                async for event in stream:
                    if not isinstance(event, Data):
                        wire.decode(event.payload)

    async def _keep(self, digest: str) -> None:
        """The disk as it is, all written: the guest syncs, its processors stop, rootd takes a reflink, they go on."""
        await self._execute(Run(SYNC, timeout_seconds=600))
        sandbox = self._running
        await sandbox.pause()
        try:
            settings = self._manifest(digest, "step", self._image).settings()
            await self._around.rootd.keep_template(KeepTemplate(sandbox.record.sandbox, sandbox.record.generation, digest, settings))
        finally:
            await sandbox.resume()

    # -- the template --------------------------------------------------------------------------------------------

    async def _prove(self) -> None:
        """Start it as a sandbox of it would, and wait until it is ready."""
        settings = self._settings()
        if settings.ready is None:
            return
        user, cwd = settings.user, settings.cwd
        if settings.start:
            asked = api.Exec(self._running.record.sandbox, list(settings.start), cwd=cwd, env=dict(settings.env), user=user, attach=False)
            await self._running.processes.start(asked).running()
        check = Run(settings.ready.argv, user, cwd, settings.env, settings.ready.timeout_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.ready.timeout_seconds):
                while await self._execute(check, sink=_Said()) != 0:  # noqa: ASYNC110 (a guest's own word)
                    await asyncio.sleep(_READY_PAUSE)
                return
        raise BuildFailed(f"it was not ready after {settings.ready.timeout_seconds} s: {' '.join(settings.ready.argv)[:200]}")

    async def _commit(self) -> TemplateManifest:
        settings = self._settings()
        digest = self._digest(settings)
        last = self._layers[-1].digest if self._layers else self._base.digest
        wanted = self._manifest(digest, "template", settings)
        await self._around.rootd.rebase_template(RebaseTemplate(last, self._base.digest, digest, wanted.settings()))
        await self._trace(BuildStage.COMMITTED)
        return self._store.template_by_digest(digest)

    def _settings(self) -> Settings:
        """The base's, under the image's, under the recipe's."""
        base, image, own = self._base, self._image, self._recipe.settings
        is_image = not isinstance(self._recipe.base, FromTemplate) and image != Settings()
        below = image if is_image else Settings(base.env, base.user or None, base.cwd or None, base.start or None)
        return Settings(
            {**below.env, **own.env},
            own.user or below.user,
            own.cwd or below.cwd,
            own.start if own.start is not None else below.start,
            own.ready,
        )

    def _digest(self, settings: Settings) -> str:
        last = self._layers[-1].digest if self._layers else self._base.digest
        machine = {"kernel": self._base.kernel, "initramfs": self._base.initramfs, "qemu": self._base.qemu, "root": self._base.root}
        return plan.template_digest(last, {**machine, "tenant": self._tenant, "settings": msgspec.to_builtins(settings)})

    def _manifest(self, digest: str, kind: str, settings: Settings) -> TemplateManifest:
        recipe, ready = self._recipe, settings.ready
        return replace(
            self._base,
            name=recipe.name,
            digest=digest,
            kind=kind,
            tenant=self._tenant,
            source=f"recipe over {self._base.name or self._base.digest}",
            env=dict(settings.env),
            user=settings.user or "",
            cwd=settings.cwd or "",
            start=settings.start or (),
            ready=ready.argv if ready else (),
            ready_seconds=ready.timeout_seconds if ready else 60,
            hooks=tuple(sorted(recipe.hooks)),
            created_us=time.time_ns() // 1000,
        )

    async def _say(self, number: int, state: Any, took_ms: int = 0) -> None:
        await self._stream.send_message(api.BuildStep(number + 1, len(self._layers), self._layers[number].title, state, took_ms))


# What is copied is a directory's contents, or a file to exactly that name.
_COPY = """
if [ -d "$1" ]; then mkdir -p -- "$2"; cp -RP -- "$1/." "$2/"; else mkdir -p -- "$(dirname -- "$2")"; cp -P -- "$1" "$2"; fi
chown -R -- "$3:" "$2"
"""


class _Said:
    """Where output goes that is no log of the recipe's: bounded, the rest is dropped. stream: gets standard error as well."""

    def __init__(self, out: bytearray | None = None, err: bytearray | None = None, stream: Stream | None = None) -> None:
        self._kept = (out, err)
        self._stream = stream

    async def send(self, data: bytes, lane: int = 0) -> None:
        kept = self._kept[lane]
        if kept is not None:
            kept += data
            del kept[: max(0, len(kept) - _MOST_SAID)]
        if lane and self._stream is not None:
            await self._stream.send(data, lane)

    async def send_message(self, message: msgspec.Struct) -> None:
        pass


def _parsed(text: str) -> Recipe:
    try:
        return parse(text)
    except RecipeRefused as refused:
        raise InvalidArgument(f"recipe: {refused}"[:4000], hint="docs/howto/templates.md has an example of each part") from None


def _ending(end: Any, seconds: int) -> str:
    if end.timed_out:
        return f"it did not end within {seconds} s"
    if end.oom_killed:
        return "it was killed for want of memory (memory_mib in the recipe gives the builder more)"
    return f"it was ended by signal {end.signal}" if end.signal is not None else f"it ended with status {end.code}"


@contextmanager
def _naming(number: int, title: str) -> Iterator[None]:
    try:
        yield
    except SpaceError as error:
        words = f"step {number + 1} ({title}): {error.message}"
        if isinstance(error, BuildFailed | NotFound | InvalidArgument):
            raise BuildFailed(words, hint=error.hint) from error
        error.message = words
        raise
