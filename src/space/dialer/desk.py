"""Who asks the dialer what: the node arranges, workers dial; a worker's socket is whom it dials for, and nothing that it says is.

One sandbox has so many dials at once, so many that wait, so many names that are looked up; one that asks faster, or does not take its
answers, waits in its own socket. A socket that was dialled belongs to the dialer until the worker says that it has it: one that nobody
takes in time is shut down, wherever it is by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import assert_never

import msgspec

from space.core.policy.document import DocumentRefused, digest, read
from space.core.rates import Bucket
from space.core.wire import dialing
from space.core.wire.dialing import Answer, DialingRefused, Request, Took
from space.dialer.connect import Connected
from space.dialer.dial import Dialer
from space.dialer.documents import contents
from space.dialer.policies import Refused as NotDialled
from space.dialer.records import Records
from space.dialer.resolve import Resolver, Share
from space.model.errors import Conflict, Internal, InvalidArgument, NotFound, SpaceError
from space.rpc import dialer_api as api
from space.rpc.asking import Refused
from space.rpc.packets import MOST, Packets, send_with, taken

log = logging.getLogger("space.dialer")

_MOST_CONTROL = 16
MINTER = "minter"  # who dials token endpoints: no sandbox has this name


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox. dials: at once, until the worker has the socket; waiting: beyond those, before more are refused. lookups: names.

    rate, burst: messages a second and at once. take: seconds that a worker has to take a socket. record: seconds for a record.
    """

    dials: int = 64
    waiting: int = 256
    lookups: int = 16
    rate: float = 1000.0
    burst: int = 2000
    take: float = 5.0
    record: float = 5.0


@dataclass(slots=True, eq=False)
class Sandbox:
    """One life of one. dials: under way or waiting, by their ids. offered: sent with their sockets, and not yet taken."""

    name: str
    generation: int
    sock: socket.socket
    dialer: Dialer
    room: asyncio.Semaphore
    messages: Bucket
    dials: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    offered: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    end: Packets | None = None

    def close(self) -> None:
        """Hang up; what is under way is given up, and its sockets are closed."""
        if self.end is not None:
            self.end.close()
        for task in tuple(self.dials.values()):
            task.cancel()


class Desk:
    """Every socket of the dialer but those that it dials. dialer: what a dial stands on, for all sandboxes."""

    def __init__(self, dialer: Dialer, resolver: Resolver, records: Records, clock: Callable[[], float], limits: Limits = Limits()) -> None:
        self._dialer = dialer
        self._policies = dialer.policies
        self._resolver = resolver
        self._records = records
        self._clock = clock
        self._limits = limits
        self._control: set[Packets] = set()
        self._sandboxes: dict[str, Sandbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, sock: socket.socket) -> None:
        """A connection of somebody who may arrange."""
        if len(self._control) >= _MOST_CONTROL:
            log.warning("refused a connection: %d are open", len(self._control))
            sock.close()
            return
        ends: list[Packets] = []
        end = Packets(
            sock,
            lambda message, descriptor: self._controlled(ends[0], message, descriptor),
            lambda: self._control.discard(ends[0]),
            descriptors=True,
            most=MOST,
        )
        ends.append(end)
        self._control.add(end)

    async def aclose(self) -> None:
        """Hang up on everybody, and wait until nothing is under way."""
        under_way = [*self._tasks, *(task for one in self._sandboxes.values() for task in one.dials.values())]
        for end in self._control:
            end.close()
        for sandbox in self._sandboxes.values():
            sandbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    # -- control -------------------------------------------------------------------------------------------------
    def _controlled(self, end: Packets, message: bytes, descriptor: int | None) -> None:
        try:
            question = api.CONTROL.decode(message)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
            log.warning("hung up on a socket that sent no question (%s, %d bytes)", type(error).__name__, len(message))
            if descriptor is not None:
                os.close(descriptor)
            end.hang_up()
            return
        if isinstance(question, api.PutPolicy):  # parsing one may take as long as many dials: in a thread, while others go on
            task = asyncio.get_running_loop().create_task(self._put(end, question, descriptor), name="put policy")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        end.send(api.encode(self._arranged(question, descriptor)))

    async def _put(self, end: Packets, question: api.PutPolicy, descriptor: int | None) -> None:
        answer: api.Answer = api.Done(question.id)
        try:
            try:
                if descriptor is None:
                    raise InvalidArgument("PutPolicy comes with one memfd, and this came without")
                if not self._policies.has(question.digest):
                    data = contents(descriptor)
                    if digest(data) != question.digest:
                        raise InvalidArgument(f"the document's digest is {digest(data)}, not {question.digest}")
                    self._policies.add(await asyncio.get_running_loop().run_in_executor(None, read, data))
            except DocumentRefused as error:
                raise InvalidArgument(str(error)) from None
        except Exception as error:  # noqa: BLE001 (the boundary: whatever it is, the peer gets a code and a sentence)
            answer = _refusal(question.id, error)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        end.send(api.encode(answer))

    def _arranged(self, question: api.ToControl, descriptor: int | None) -> api.Answer:
        sock = None if descriptor is None else taken(descriptor)
        try:
            match question:
                case api.Bind():
                    self._bind(question, sock)
                    sock = None
                case api.BindAudit():
                    self._records.bind(_wanted(question, sock))
                    sock = None
                case api.BindMinter():
                    self._seat(_wanted(question, sock), MINTER, 0)
                    sock = None
                case api.SetPolicy():
                    self._life(question.sandbox, question.generation)
                    self._policies.put(question.sandbox, question.policy_generation, question.digest)
                case api.End():
                    self._end(question.sandbox, question.generation)
                case api.DropPolicies():
                    self._policies.keep(question.keep)
                case api.Describe():
                    return self._standing(question)
                case api.PutPolicy():
                    raise InvalidArgument("a policy is put by itself")
                case _:
                    assert_never(question)
        except Exception as error:  # noqa: BLE001 (the boundary)
            return _refusal(question.id, error)
        finally:
            if sock is not None:
                sock.close()
        return api.Done(question.id)

    def _bind(self, question: api.Bind, sock: socket.socket | None) -> None:
        sock = _wanted(question, sock)
        before = self._sandboxes.get(question.sandbox)
        if before is not None and before.generation > question.generation:
            raise Conflict(f"{question.sandbox} lives as generation {before.generation}, {question.generation} has ended")
        self._policies.put(question.sandbox, question.policy_generation, question.digest)
        self._seat(sock, question.sandbox, question.generation)

    def _seat(self, sock: socket.socket, name: str, generation: int) -> None:
        """Whoever speaks over that socket dials for that one from now on."""
        before = self._sandboxes.get(name)
        if before is not None:
            before.close()
        limits = self._limits
        mine = replace(self._dialer, resolver=Share(self._resolver, limits.lookups), record=self._records.of(name, generation))
        room, messages = asyncio.Semaphore(limits.dials), Bucket(limits.rate, limits.burst)
        made = Sandbox(name, generation, sock, mine, room, messages)
        made.end = Packets(
            sock, lambda message, _: self._said(made, message), lambda: self._lost(made), most=dialing.MOST_BYTES + 1
        )  # descriptors that come along are dropped by the kernel
        self._sandboxes[name] = made

    def _end(self, sandbox: str, generation: int) -> None:
        held = self._sandboxes.get(sandbox)
        if held is not None and held.generation <= generation:
            del self._sandboxes[sandbox]
            self._policies.remove(sandbox)
            self._records.forget(sandbox)
            held.close()

    def _life(self, sandbox: str, generation: int) -> Sandbox:
        held = self._sandboxes.get(sandbox)
        if held is None or held.generation != generation:
            raise NotFound(f"{sandbox} of generation {generation} is not bound")
        return held

    def _standing(self, question: api.Describe) -> api.Standing:
        later = sorted(name for name in self._sandboxes if name > question.after and name != MINTER)
        bindings = [self._described(self._sandboxes[name]) for name in later[: api.PAGE]]
        resolvers = [f"{server.address} port {server.port}" for server in self._resolver.servers]
        return api.Standing(question.id, len(self._policies), bindings, self._records.bound, resolvers, len(later) > api.PAGE)

    def _described(self, sandbox: Sandbox) -> api.Binding:
        held = self._policies.held(sandbox.name)
        number, name = (0, "") if held is None else (held.number, held.digest)
        return api.Binding(sandbox.name, sandbox.generation, name, number, len(sandbox.dials), sandbox.end is not None and sandbox.end.open)

    # -- a sandbox's worker --------------------------------------------------------------------------------------
    def _lost(self, sandbox: Sandbox) -> None:
        sandbox.close()

    def _said(self, sandbox: Sandbox, message: bytes) -> None:
        assert sandbox.end is not None
        if not sandbox.messages.take(self._clock()):
            sandbox.end.hold(self._limits.burst / self._limits.rate / 10)  # a flood waits in its own socket
        try:
            said = dialing.decode(message)
        except DialingRefused as error:
            log.warning("hung up on the worker of %s, which sent no request: %s", sandbox.name, type(error).__name__)
            sandbox.end.hang_up()
            return
        if isinstance(said, Took):
            took = sandbox.offered.get(said.id)
            if took is not None and not took.done():
                took.set_result(None)
        elif said.id in sandbox.dials:
            log.warning("hung up on the worker of %s, which gave a number twice", sandbox.name)
            sandbox.end.hang_up()
        elif len(sandbox.dials) >= self._limits.dials + self._limits.waiting:
            sandbox.end.send(dialing.encode(Answer(said.id, said.name, said.port, reason="dialer_busy")))
        else:
            task = asyncio.get_running_loop().create_task(self._dial(sandbox, said), name=f"dial for {sandbox.name}")
            sandbox.dials[said.id] = task
            task.add_done_callback(lambda _: sandbox.dials.pop(said.id, None))

    async def _dial(self, sandbox: Sandbox, request: Request) -> None:
        assert sandbox.end is not None
        async with sandbox.room:
            try:
                ended = await sandbox.dialer.dial(sandbox.name, request.generation, request.target, request.port)
            except Exception:
                log.exception("a dial for %s failed", sandbox.name)
                ended = NotDialled("dialer_failed")
            if isinstance(ended, Connected):
                with ended.sock:
                    if await self._given(sandbox, request, ended):
                        return
                    ended = NotDialled("not_taken")
            said = Answer(request.id, request.name, request.port, reason=ended.reason, denied=ended.denied)
            sandbox.end.send(dialing.encode(said))

    async def _given(self, sandbox: Sandbox, request: Request, connected: Connected) -> bool:
        """Whether the answer went out. Returns once the worker has the socket, or the socket is of no use to anybody any more."""
        took: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sandbox.offered[request.id] = took
        answer = Answer(request.id, request.name, request.port, str(connected.address))
        try:
            send_with(sandbox.sock, dialing.encode(answer), connected.sock.fileno())
        except OSError:  # it takes no answers, or is gone
            del sandbox.offered[request.id]
            return False
        try:
            async with asyncio.timeout(self._limits.take):
                await took
        except TimeoutError:
            _shut(connected.sock)
            log.warning("a worker of %s did not take a socket in %g s: it was shut down", sandbox.name, self._limits.take)
        except BaseException:
            _shut(connected.sock)
            raise
        finally:
            del sandbox.offered[request.id]
        return True


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _wanted(question: api.Bind | api.BindAudit | api.BindMinter, sock: socket.socket | None) -> socket.socket:
    if sock is None:
        raise InvalidArgument(f"{type(question).__name__} comes with one SEQPACKET socket, and this came without")
    return sock


def _refusal(number: int, error: Exception) -> Refused:
    if not isinstance(error, SpaceError):
        log.error("%s", type(error).__name__, exc_info=error)
        error = Internal("the dialer failed; its log says where")
    return Refused(number, error.code, error.message[:1000], (error.hint or "")[:1000])
