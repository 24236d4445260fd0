"""The dialer's contract in this process: what `DialerControl` gives the node, with workers' sockets answered from a table.

It resolves nothing and reads no policy: `places` says what leads where, and everything else is refused, as is everything of a sandbox whose
policy's digest is empty, and everything until there is a keeper of records.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from space.core.policy.document import digest as digest_of
from space.core.wire import dialing
from space.core.wire.dialing import Answer, DialingRefused, Request
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.rpc import dialer_api as api
from space.rpc.packets import Packets, send_with


@dataclass(slots=True)
class Bound:
    """One sandbox. asked: what its workers wanted."""

    generation: int
    digest: str
    policy_generation: int
    end: Packets
    sock: socket.socket
    asked: list[Request]


class FakeDialer:
    """Within an event loop. places: (name or dotted address, port) -> where that is here. fails: raised by the next call, once."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.bound: dict[str, Bound] = {}
        self.places: dict[tuple[str, int], tuple[str, int]] = {}
        self.audit: socket.socket | None = None
        self.minter: socket.socket | None = None
        self.fails: Exception | None = None
        self.calls: list[str] = []

    async def put_policy(self, digest: str, document: bytes) -> None:
        self._called("put_policy")
        if digest_of(document) != digest:
            raise InvalidArgument(f"the document is {digest_of(document)}, not {digest}")
        self.documents[digest] = document

    async def bind(self, sock: socket.socket, sandbox: str, generation: int, digest: str, policy_generation: int) -> None:
        with sock:
            self._called("bind")
            self._known(digest)
            before = self.bound.get(sandbox)
            if before is not None and (before.generation > generation or before.policy_generation > policy_generation):
                raise Conflict(f"{sandbox} is bound in a later life, or under a newer policy")
            if before is not None:
                before.end.close()
            mine = sock.dup()
        asked: list[Request] = []

        def received(message: bytes, _: int | None) -> None:
            self._asked(sandbox, message)

        end = Packets(mine, received, lambda: None, most=dialing.MOST_BYTES + 1)
        self.bound[sandbox] = Bound(generation, digest, policy_generation, end, mine, asked)

    async def set_policy(self, sandbox: str, generation: int, digest: str, policy_generation: int) -> None:
        self._called("set_policy")
        bound = self.bound.get(sandbox)
        if bound is None or bound.generation != generation:
            raise NotFound(f"{sandbox} of generation {generation} is not bound")
        self._known(digest)
        if bound.policy_generation > policy_generation or (bound.policy_generation == policy_generation and bound.digest != digest):
            raise Conflict(f"{sandbox} has policy {bound.policy_generation}")
        bound.digest, bound.policy_generation = digest, policy_generation

    async def end(self, sandbox: str, generation: int) -> None:
        self._called("end")
        if (bound := self.bound.get(sandbox)) is not None and bound.generation <= generation:
            self.bound.pop(sandbox).end.close()

    async def bind_audit(self, sock: socket.socket) -> None:
        self._called("bind_audit")
        if self.audit is not None:
            self.audit.close()
        self.audit = sock

    async def bind_minter(self, sock: socket.socket) -> None:
        self._called("bind_minter")
        if self.minter is not None:
            self.minter.close()
        with sock:
            self.minter = sock.dup()

    async def drop_policies(self, keep: tuple[str, ...]) -> None:
        self._called("drop_policies")
        used = {*keep, *(bound.digest for bound in self.bound.values())}
        self.documents = {digest: data for digest, data in self.documents.items() if digest in used}

    async def describe(self) -> api.Standing:
        self._called("describe")
        bindings = [
            api.Binding(sandbox, one.generation, one.digest, one.policy_generation, 0, one.end.open)
            for sandbox, one in sorted(self.bound.items())
        ]
        return api.Standing(1, len(self.documents), bindings, self.audit is not None, [])

    def close(self) -> None:
        """Everything, as when the process ends."""
        for bound in self.bound.values():
            bound.end.close()
        self.bound.clear()
        if self.audit is not None:
            self.audit.close()
            self.audit = None
        if self.minter is not None:
            self.minter.close()
            self.minter = None

    def _called(self, what: str) -> None:
        self.calls.append(what)
        fails, self.fails = self.fails, None
        if fails is not None:
            raise fails

    def _known(self, digest: str) -> None:
        if digest and digest not in self.documents:
            raise NotFound(f"there is no policy document {digest}", hint="put it first")

    def _asked(self, sandbox: str, message: bytes) -> None:
        bound = self.bound[sandbox]
        try:
            request = dialing.decode(message)
        except DialingRefused:
            bound.end.hang_up()
            return
        if not isinstance(request, Request):
            return
        bound.asked.append(request)
        refused = self._refusal(bound, request)
        if refused is not None:
            bound.end.send(dialing.encode(refused))
            return
        place = self.places[request.name, request.port]
        try:
            with socket.create_connection(place, timeout=5) as sock:
                sock.setblocking(False)
                send_with(bound.sock, dialing.encode(Answer(request.id, request.name, request.port, place[0])), sock.fileno())
        except OSError:
            bound.end.send(dialing.encode(Answer(request.id, request.name, request.port, reason="connect_failed")))

    def _refusal(self, bound: Bound, request: Request) -> Answer | None:
        def no(reason: str, *, denied: bool = False) -> Answer:
            return Answer(request.id, request.name, request.port, reason=reason, denied=denied)

        if not bound.digest:
            return no("no_policy", denied=True)
        if request.generation != bound.policy_generation:
            return no("policy_generation")
        if self.audit is None:
            return no("record_failed")
        return None if (request.name, request.port) in self.places else no("name_not_allowed", denied=True)
