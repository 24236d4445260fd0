"""The dialer, as the node sees it, and as a worker does."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Self

from space.core.wire import dialing
from space.core.wire.dialing import Answer, DialingRefused, Request, Took
from space.model.errors import Unavailable
from space.rpc import dialer_api as api
from space.rpc.asking import Asker
from space.rpc.packets import Packets

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def sealed(data: bytes, name: str = "policy") -> int:
    """A descriptor of a memfd that holds these bytes for good; the caller closes it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class DialerControl:
    """The node's, over a connected socket, which it takes over. ended: called when the dialer hangs up."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None] | None = None) -> None:
        self._asker = Asker(sock, api.Answer, who="the dialer", ended=ended)

    @classmethod
    def connect(cls, path: Path, ended: Callable[[], None] | None = None) -> Self:
        """Unavailable when nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the dialer cannot be reached at {path}: {error.strerror}") from error
        return cls(sock, ended)

    def close(self) -> None:
        """Hang up. What is bound stays bound."""
        self._asker.close()

    async def put_policy(self, digest: str, document: bytes) -> None:
        """The dialer holds that document when this returns. InvalidArgument: it is none, or not of that digest."""
        descriptor = sealed(document)
        try:
            await self._do(api.PutPolicy(self._asker.number(), digest), descriptor)
        finally:
            os.close(descriptor)

    async def bind(self, sock: socket.socket, sandbox: str, generation: int, digest: str, policy_generation: int) -> None:
        """Hand over the other end of a worker's socket; this end is closed here in any case. NotFound: the digest. Conflict: older."""
        with sock:
            await self._do(api.Bind(self._asker.number(), sandbox, generation, digest, policy_generation), sock.fileno())

    async def set_policy(self, sandbox: str, generation: int, digest: str, policy_generation: int) -> None:
        """That policy holds when this returns. NotFound: the sandbox or the digest. Conflict: a newer one is held."""
        await self._do(api.SetPolicy(self._asker.number(), sandbox, generation, digest, policy_generation))

    async def end(self, sandbox: str, generation: int) -> None:
        """Nothing is dialled for that life any more."""
        await self._do(api.End(self._asker.number(), sandbox, generation))

    async def bind_audit(self, sock: socket.socket) -> None:
        """Hand over a socket that the keeper of the records has as its source `dialer`; this end is closed here."""
        with sock:
            await self._do(api.BindAudit(self._asker.number()), sock.fileno())

    async def bind_minter(self, sock: socket.socket) -> None:
        """Hand over the other end of the minter's socket; this end is closed here in any case."""
        with sock:
            await self._do(api.BindMinter(self._asker.number()), sock.fileno())

    async def drop_policies(self, keep: tuple[str, ...]) -> None:
        """Of the others, those that no sandbox is bound to are gone."""
        await self._do(api.DropPolicies(self._asker.number(), keep))

    async def describe(self) -> api.Standing:
        """How it stands, every binding."""
        bindings: list[api.Binding] = []
        while True:
            number = self._asker.number()
            after = bindings[-1].sandbox if bindings else ""
            page = await self._asker.ask(number, api.encode(api.Describe(number, after)), api.Standing)
            bindings += page.bindings
            if not page.more or not page.bindings:
                return api.Standing(page.id, page.policies, bindings, page.recorded, page.resolvers)

    async def _do(self, question: api.ToControl, descriptor: int | None = None) -> None:
        await self._asker.ask(question.id, api.encode(question), api.Done, descriptor)


class DialSocket:
    """A worker's. Its numbers begin anywhere, and an answer has to name what was asked: what a worker before this one asked is closed."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: dict[int, tuple[Request, asyncio.Future[tuple[Answer, socket.socket | None]]]] = {}
        self._number = secrets.randbits(52)
        self._packets = Packets(sock, self._received, self._lost, descriptors=True, most=dialing.MOST_BYTES, burst=16)

    async def dial(self, target: str | IPv4Address, port: int, generation: int) -> tuple[Answer, socket.socket | None]:
        """The answer, and where its reason is empty the connected socket, which the caller closes. generation: of the policy.

        Unavailable: the dialer is gone, or does not take questions. A cancelled call leaves no socket.
        """
        if not self._packets.open:
            raise Unavailable("the dialer is gone")
        self._number = (self._number + 1) % 2**53
        request = Request(self._number, generation, str(target), port, isinstance(target, IPv4Address))
        future: asyncio.Future[tuple[Answer, socket.socket | None]] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = (request, future)
        try:
            self._sock.send(dialing.encode(request), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            return await future
        except OSError as error:
            raise Unavailable(f"the dialer does not take questions: {error.strerror}") from error
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None and (sock := future.result()[1]) is not None:
                sock.close()
            raise
        finally:
            self._waiting.pop(request.id, None)

    @property
    def open(self) -> bool:
        """Whether the dialer has not hung up."""
        return self._packets.open

    def close(self) -> None:
        """Hang up; what waits fails."""
        self._packets.hang_up()

    def _received(self, message: bytes, descriptor: int | None) -> None:
        sock = None if descriptor is None else socket.socket(fileno=descriptor)
        given = False
        try:
            answer = dialing.decode_answer(message)
        except DialingRefused:
            if sock is not None:
                sock.close()
            self._packets.hang_up()
            return
        request, future = self._waiting.get(answer.id, (None, None))
        ours = request is not None and (request.name, request.port) == (answer.name, answer.port)
        if future is not None and ours and not future.done():
            if (sock is None) != bool(answer.reason):
                future.set_exception(Unavailable("the dialer said one thing and sent another"))
            else:
                future.set_result((answer, sock))
                given = True
        if sock is not None:
            if not given:
                sock.close()
            self._packets.send(dialing.encode(Took(answer.id)))

    def _lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(Unavailable("the dialer is gone"))
