"""What control may ask of a node (`rpc.node_api`), verb by verb. Errors leave as RESET with their code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from space.config import logs
from space.model.errors import InvalidArgument, SpaceError, Unsupported
from space.model.sandbox import Phase
from space.node.node import Node
from space.node.relay import PROCESS, TREE, Script, relay
from space.node.sandbox import Sandbox
from space.rpc import node_api as api
from space.rpc.session import Stream

R = TypeVar("R", bound=msgspec.Struct)
_ON_THE_WAY = frozenset({Phase.REQUESTED.value, Phase.PREPARING.value})


class Verbs:
    """The handler of control's sessions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._table: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "info": self._info,
            "create": self._create,
            "delete": self._delete,
            "list": self._list,
            "watch": self._watch,
            "pause": self._pause,
            "resume": self._resume,
            "noop": self._noop,
            "metrics": self._metrics,
            "exec": self._exec,
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
        }

    async def __call__(self, stream: Stream, verb: str, request: bytes) -> None:
        """Serve one stream."""
        serve = self._table.get(verb)
        if serve is None:
            raise Unsupported(f"a node has no verb {verb[:40]!r}")
        await serve(stream, request)

    async def _info(self, stream: Stream, request: bytes) -> None:
        _decode(api.Empty, request)
        await stream.send_message(await self._node.info(), last=True)

    async def _create(self, stream: Stream, request: bytes) -> None:
        asked = _decode(api.Create, request)
        sandbox = await self._node.create(asked)
        last = sandbox.state
        with self._node.around.board.watch(asked.sandbox) as watch:
            if last.phase not in _ON_THE_WAY:
                await stream.send_message(last)
                return
            async for state in watch:
                await stream.send_message(state)
                if state.phase not in _ON_THE_WAY:
                    return

    async def _delete(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.delete(_decode(api.Target, request)), last=True)

    async def _list(self, stream: Stream, request: bytes) -> None:
        _decode(api.Empty, request)
        await stream.send_message(api.SandboxList(self._node.around.board.states()), last=True)

    async def _watch(self, stream: Stream, request: bytes) -> None:
        """Until control resets it, or its session ends: both cancel this."""
        _decode(api.Empty, request)
        with self._node.around.board.watch() as watch:
            async for state in watch:
                await stream.send_message(state)

    async def _pause(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.find(_decode(api.Target, request)).pause(), last=True)

    async def _resume(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(await self._node.find(_decode(api.Target, request)).resume(), last=True)

    async def _noop(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(_decode(api.Target, request))
        try:
            await sandbox.guest().noop()
        except SpaceError as error:
            raise await sandbox.explain(error) from error
        await stream.send_message(api.Done(), last=True)

    async def _metrics(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(_decode(api.Target, request))
        try:
            said = await sandbox.guest().metrics()
        except SpaceError as error:
            raise await sandbox.explain(error) from error
        usage = await self._node.around.rootd.usage(sandbox.op.sandbox, sandbox.op.generation)
        fields = msgspec.structs.asdict(said)
        found = api.Metrics(**fields, host_memory_bytes=usage.memory_bytes, host_cpu_ms=usage.cpu_usec // 1000)
        await stream.send_message(found, last=True)

    async def _exec(self, stream: Stream, request: bytes) -> None:
        asked = _decode(api.Exec, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        await self._pass(stream, sandbox, sandbox.guest().open_exec(asked), PROCESS, feed=asked.stdin)

    async def _tree_put(self, stream: Stream, request: bytes) -> None:
        asked = _decode(api.Tree, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        await self._pass(stream, sandbox, sandbox.guest().open_tree("tree_put", asked), TREE, feed=True)

    async def _tree_get(self, stream: Stream, request: bytes) -> None:
        asked = _decode(api.Tree, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        await self._pass(stream, sandbox, sandbox.guest().open_tree("tree_get", asked), TREE, feed=False)

    @staticmethod
    async def _pass(stream: Stream, sandbox: Sandbox, opening: Awaitable[Stream], script: Script, *, feed: bool) -> None:
        with sandbox.guest().held_to_protocol():
            await relay(stream, await opening, script, feed=feed, explain=sandbox.explain)


def _decode(kind: type[R], request: bytes) -> R:
    try:
        found = msgspec.msgpack.decode(request, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a request of {kind.__name__}: {error}") from None
    # Lines of this stream, and of what it starts, belong to that sandbox.
    logs.sandbox.set(getattr(found, "sandbox", "-"))
    return found
