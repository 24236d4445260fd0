"""Verbs about the lives of a sandbox (`rpc.life_api`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from space.model.sandbox import Phase
from space.node.node import Node
from space.node.process_verbs import decode
from space.node.sandbox import Sandbox
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Stream

Verb = Callable[[Stream, bytes], Awaitable[None]]
_OPENING = frozenset({Phase.REQUESTED.value, Phase.PREPARING.value})


class LifeVerbs:
    """Part of the handler of control's sessions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.table: dict[str, Verb] = {
            "pause": self._pause,
            "resume": self._resume,
            "suspend": self._suspend,
            "stop": self._stop,
            "wake": self._wake,
            "checkpoint": self._checkpoint,
            "checkpoints": self._checkpoints,
            "drop_checkpoint": self._drop_checkpoint,
            "rollback": self._rollback,
            "fork": self._fork,
            "bake": self._bake,
            "template_snapshot": self._template_snapshot,
            "sandbox_export": self._export,
            "sandbox_import": self._import,
        }

    def _find(self, sandbox: str) -> Sandbox:
        return self._node.find(api.Target(sandbox))

    async def _pause(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.find(decode(api.Target, request)).pause(), last=True)

    async def _resume(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.find(decode(api.Target, request)).resume(), last=True)

    async def _suspend(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(decode(api.Target, request))
        await self._through(stream, sandbox, sandbox.suspend())

    async def _stop(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(decode(api.Target, request))
        await self._through(stream, sandbox, sandbox.stop())

    async def _wake(self, stream: Stream, request: bytes) -> None:
        asked = decode(life_api.Wake, request)
        sandbox = self._find(asked.sandbox)
        await self._through(stream, sandbox, sandbox.wake(asked))

    async def _rollback(self, stream: Stream, request: bytes) -> None:
        asked = decode(life_api.Rollback, request)
        sandbox = self._find(asked.sandbox)
        await self._through(stream, sandbox, sandbox.rollback(asked))

    async def _checkpoint(self, stream: Stream, request: bytes) -> None:
        asked = decode(life_api.Checkpoint, request)
        await stream.send_message(await self._find(asked.sandbox).checkpoint(asked), last=True)

    async def _checkpoints(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(decode(api.Target, request))
        await stream.send_message(life_api.CheckpointList(sandbox.checkpoints()), last=True)

    async def _drop_checkpoint(self, stream: Stream, request: bytes) -> None:
        asked = decode(life_api.CheckpointTarget, request)
        await self._find(asked.sandbox).drop_checkpoint(asked.checkpoint)
        await stream.send_message(api.Done(), last=True)

    async def _fork(self, stream: Stream, request: bytes) -> None:
        forking = asyncio.ensure_future(self._node.fork(decode(life_api.Fork, request)))
        forking.add_done_callback(lambda done: done.cancelled() or done.exception())
        instant, children = await asyncio.shield(forking)  # once begun it is done, so that its snapshot is somebody's
        await stream.send_message(life_api.Forked(instant.taken.stopped_ms))
        coming = {child.record.sandbox for child in children}
        with self._node.around.board.watch() as watch:
            async for state in watch:
                if state.sandbox not in coming:
                    continue
                await stream.send_message(state)
                if state.phase not in _OPENING:
                    coming.discard(state.sandbox)
                if not coming:
                    return

    async def _bake(self, stream: Stream, request: bytes) -> None:
        await self._node.bake(decode(life_api.Bake, request))
        await stream.send_message(api.Done(), last=True)

    async def _template_snapshot(self, stream: Stream, request: bytes) -> None:
        manifest = await self._node.keep_as_template(decode(life_api.TemplateSnapshot, request))
        await stream.send_message(self._node.templates.info(manifest), last=True)

    async def _export(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.parcels.export(stream, decode(api.Target, request)), last=True)

    async def _import(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.parcels.take(stream, decode(life_api.Import, request)), last=True)

    async def _through(self, stream: Stream, sandbox: Sandbox, work: Coroutine[Any, Any, api.SandboxState]) -> None:
        """Do it, and tell every phase on the way. It goes on when whoever asked leaves."""
        doing = asyncio.ensure_future(work)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())
        told = 0
        with self._node.around.board.watch(sandbox.record.sandbox) as watch:
            states = aiter(watch)
            while not doing.done():
                following = asyncio.ensure_future(anext(states))
                await asyncio.wait({doing, following}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    await asyncio.wait({following})
                    break
                state = following.result()
                told = state.revision
                await stream.send_message(state)
            last = await doing
        if last.revision > told or not told:
            await stream.send_message(last)
