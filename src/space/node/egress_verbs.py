"""What control may ask of egress (`rpc.node_api`): policy_put, set_policy, egress_answer, egress_counters, set_labels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from space.model.errors import InvalidArgument
from space.node.binding import Held
from space.node.node import Node
from space.node.process_verbs import decode
from space.rpc import node_api as api
from space.rpc.session import Data, Stream


class EgressVerbs:
    """Part of the table of `verbs`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.table: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "policy_put": self._policy_put,
            "set_policy": self._set_policy,
            "egress_answer": self._answer,
            "egress_counters": self._counters,
            "set_labels": self._set_labels,
        }

    async def _policy_put(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.PolicyPut, request)
        document = bytearray()
        async for event in stream:
            if isinstance(event, Data):
                document += event.payload
                if len(document) > asked.bytes:
                    break
        if len(document) != asked.bytes:
            raise InvalidArgument(f"a policy of {asked.bytes} bytes was announced, and {len(document)} came")
        await self._node.around.egress.policies.put(asked.digest, bytes(document))
        await stream.send_message(api.Done(), last=True)

    async def _set_policy(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.SetPolicy, request)
        sandbox = self._node.find(api.Target(asked.sandbox, asked.generation))
        self._node.around.egress.policies.check(asked.policy)
        await sandbox.set_policy(Held(asked.policy, asked.policy_generation))
        await stream.send_message(api.Done(), last=True)

    async def _set_labels(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.SetLabels, request)
        self._node.find(api.Target(asked.sandbox)).set_labels(asked.labels)
        await stream.send_message(api.Done(), last=True)

    async def _answer(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.EgressAnswer, request)
        self._node.find(api.Target(asked.sandbox))
        await self._node.around.egress.answer(asked.sandbox, asked.ask, allow=asked.allow)
        await stream.send_message(api.Done(), last=True)

    async def _counters(self, stream: Stream, request: bytes) -> None:
        sandbox = self._node.find(decode(api.Target, request))
        await stream.send_message(await self._node.around.egress.counters(sandbox.record.sandbox), last=True)
