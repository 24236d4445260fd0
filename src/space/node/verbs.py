"""What control may ask of a node (`rpc.node_api`), verb by verb. Errors leave as RESET with their code."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from space.model.errors import SpaceError, Unsupported
from space.model.sandbox import Phase
from space.node import becoming
from space.node.credentials import CredentialVerbs, NodesHouse
from space.node.egress_verbs import EgressVerbs
from space.node.guest import FED
from space.node.life_verbs import LifeVerbs
from space.node.node import Node
from space.node.process_verbs import ProcessVerbs, decode, pages
from space.node.relay import FORWARDED, TREE_GET, TREE_PUT, Script, relay
from space.node.sandbox import Sandbox
from space.node.template_verbs import TemplateVerbs
from space.rpc import node_api as api
from space.rpc.session import Stream

log = logging.getLogger(__name__)
Verb = Callable[[Stream, bytes], Awaitable[None]]
_EMPTY = msgspec.msgpack.encode(api.Empty())
_ON_THE_WAY = frozenset({Phase.REQUESTED.value, Phase.PREPARING.value})


class Verbs:
    """The handler of control's sessions."""

    def __init__(self, node: Node, more: Mapping[str, Verb] | None = None) -> None:
        """more: verbs that have nothing to do with a sandbox that is there."""
        self._node = node
        self._table: dict[str, Verb] = {
            "info": self._info,
            "create": self._create,
            "delete": self._delete,
            "list": self._list,
            "watch": self._watch,
            "noop": self._noop,
            "metrics": self._metrics,
            "history": self._history,
            **LifeVerbs(node).table,
            **ProcessVerbs(node).table,
            **TemplateVerbs(node).table,
            **EgressVerbs(node).table,
            **CredentialVerbs(NodesHouse(node)).table,
            **{verb: functools.partial(_under, self._forward, verb) for verb in FORWARDED if verb != "watch"},
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
            **(more or {}),
        }

    async def __call__(self, stream: Stream, verb: str, request: bytes) -> None:
        """Serve one stream."""
        serve = self._table.get(verb)
        if serve is None:
            raise Unsupported(f"a node has no verb {verb[:40]!r}")
        try:
            await serve(stream, request)
        except SpaceError as error:
            log.info("%s refused: %s: %s", verb, error.code, error)  # the line that the request's id leads to
            raise

    async def _info(self, stream: Stream, request: bytes) -> None:
        decode(api.Empty, request)
        await stream.send_message(await self._node.info(), last=True)

    async def _create(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Create, request)
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
        await stream.send_message(await self._node.delete(decode(api.Target, request)), last=True)

    async def _list(self, stream: Stream, request: bytes) -> None:
        decode(api.Empty, request)
        for page in pages(self._node.around.board.states()):
            await stream.send_message(api.SandboxList(page))

    async def _watch(self, stream: Stream, request: bytes) -> None:
        """Until control resets it, or its session ends: both cancel this. A request that names a sandbox is for its guest."""
        if request != _EMPTY:
            await self._forward(stream, "watch", request)
            return
        with self._node.around.board.watch() as watch:
            async for state in watch:
                await stream.send_message(state)

    async def _noop(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(decode(api.Target, request))
        try:
            await sandbox.guest().noop()
        except SpaceError as error:
            raise await sandbox.explain(error) from error
        await stream.send_message(api.Done(), last=True)

    async def _metrics(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(decode(api.Target, request))
        try:
            said = await sandbox.metrics()
        except SpaceError as error:
            raise await sandbox.explain(error) from error
        await stream.send_message(said, last=True)

    async def _history(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.History, request)
        self._node.find(api.Target(asked.sandbox))
        await stream.send_message(self._node.around.history.get(asked.sandbox, asked.since_us), last=True)

    async def _forward(self, stream: Stream, verb: str, request: bytes) -> None:
        asked = decode(api.Forward, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        if verb == "connect":
            await becoming.waited(sandbox)
        opening = sandbox.guest().open_forwarded(verb, asked.request)
        await self._pass(stream, sandbox, opening, FORWARDED[verb], feed=verb in FED)

    async def _tree_put(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Tree, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        await self._pass(stream, sandbox, sandbox.guest().open_tree("tree_put", asked), TREE_PUT, feed=True)

    async def _tree_get(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Tree, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        await self._pass(stream, sandbox, sandbox.guest().open_tree("tree_get", asked), TREE_GET, feed=False)

    @staticmethod
    async def _pass(stream: Stream, sandbox: Sandbox, opening: Awaitable[Stream], script: Script, *, feed: bool) -> None:
        with sandbox.guest().held_to_protocol():
            await relay(stream, await opening, script, feed=feed, explain=sandbox.explain)


async def _under(serve: Callable[[Stream, str, bytes], Awaitable[None]], verb: str, stream: Stream, request: bytes) -> None:
    await serve(stream, verb, request)
