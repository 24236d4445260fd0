"""Who asks the broker what: each socket is one of three kinds, and its kind and its binding decide, never what it says of itself.

A message that is none of its kind's, a descriptor where none belongs, or an end that does not read: hung up on. A refusal is an answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from space.broker.credentials import Credentials
from space.broker.heads import Heads
from space.broker.leases import Bound
from space.broker.lives import Lives
from space.broker.roots import Roots
from space.broker.store import Store
from space.core.credentials.grant import Life
from space.core.rates import Bucket
from space.model.errors import Internal, InvalidArgument, PermissionDenied, SpaceError, Unavailable
from space.rpc import broker_api as api
from space.rpc.asking import Refused
from space.rpc.audit_client import RecordSocket
from space.rpc.minter_client import MinterSocket
from space.rpc.packets import Packets, taken

log = logging.getLogger("space.broker")

_MOST_CONTROL = 16
_MOST_QUESTION = 4096
_MOST_ASKED = 20_480  # a path may be long
_MOST_LEASES = 64  # of a sandbox that are under way
_ASK_RATE, _ASK_BURST = 500.0, 1000


class Desk:
    """Every socket of the broker."""

    def __init__(
        self, roots: Roots, lives: Lives, heads: Heads, store: Store, now: Callable[[], datetime], clock: Callable[[], float]
    ) -> None:
        self._roots = roots
        self._lives = lives
        self._heads = heads
        self._now = now
        self._clock = clock
        self._control: set[Packets] = set()
        self._sandboxes: dict[str, tuple[int, Packets]] = {}
        self._writers: dict[str, Packets] = {}
        self._minter: MinterSocket | None = None
        self._credentials = Credentials(store, lambda: self._minter, now, self._alarm, clock)
        self._lending = self._credentials.lending
        self._leases: dict[Packets, set[asyncio.Task[None]]] = {}

    def connected(self, sock: socket.socket) -> None:
        """A connection of somebody who may register others."""
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
            most=api.MOST_CONTROL,
        )
        ends.append(end)
        self._control.add(end)

    def close(self) -> None:
        """Hang up on everybody; what is being lent is given up."""
        for tasks in self._leases.values():
            for task in tasks:
                task.cancel()
        self._lending.close()
        for end in [*self._control, *(end for _, end in self._sandboxes.values()), *self._writers.values()]:
            end.close()
        if self._minter is not None:
            self._minter.close()

    # -- control -------------------------------------------------------------------------------------------------
    def _controlled(self, end: Packets, message: bytes, descriptor: int | None) -> None:
        sock: socket.socket | None = None
        answer: api.Answer
        question = _decoded(api.CONTROL, end, message)
        if question is None:
            if descriptor is not None:
                os.close(descriptor)
            return
        try:
            if isinstance(question, api.WITH_SOCKET):
                sock, descriptor = None if descriptor is None else taken(descriptor), None
                if sock is None:
                    raise InvalidArgument(f"{type(question).__name__} comes with one SEQPACKET socket, and this came without")
            answer = self._arranged(question, sock)
            sock = None
        except Exception as error:  # noqa: BLE001 (the boundary: whatever it is, the peer gets a code and a sentence)
            answer = _refusal(question.id, error)
        finally:
            if descriptor is not None:
                os.close(descriptor)
            if sock is not None:
                sock.close()
        end.send(api.encode(answer))

    def _arranged(self, question: api.ToControl, sock: socket.socket | None) -> api.Answer:
        match question:
            case api.MakeRoot():
                return api.Certificate(question.id, self._roots.make(question.template, question.generation, self._now()))
            case api.GetRoot():
                return api.Certificate(question.id, self._roots.certificate(question.template, question.generation))
            case api.ForgetRoot():
                self._roots.forget(question.template, question.generation)
            case api.BindSandbox():
                assert sock is not None
                self._bind_sandbox(question, sock)
            case api.EndSandbox():
                self._lives.end(question.sandbox, question.generation)
                self._lending.end(question.sandbox, question.generation)
                self._unbind(question.sandbox, question.generation)
            case api.BindWriter():
                assert sock is not None
                self._bind_writer(question, sock)
            case api.BindMinter():
                assert sock is not None
                before, self._minter = self._minter, MinterSocket(sock)
                if before is not None:
                    before.close()
            case api.BindAudit():
                assert sock is not None
                self._lending.bind_audit(RecordSocket(sock))
            case api.BeginAnew():
                self._heads.begin_anew(question.writer)
            case api.HeadKey():
                return api.PublicKey(question.id, self._heads.public)
            case api.GetHead():
                return api.Head(question.id, *self._heads.at(question.writer, question.what))
            case _:
                return self._credentials.answer(question)
        return api.Done(question.id)

    def _bind_sandbox(self, question: api.BindSandbox, sock: socket.socket) -> None:
        sandbox, generation = question.sandbox, question.generation
        self._lives.begin(sandbox, generation, (question.template, question.template_generation))
        self._unbind(sandbox, generation)
        asks = Bucket(_ASK_RATE, _ASK_BURST)
        ends: list[Packets] = []
        bounds: list[Bound] = []
        end = Packets(
            sock,
            lambda message, _: self._asked(ends[0], bounds[0], asks, message),
            lambda: self._forget_end(sandbox, ends[0]),
            most=_MOST_ASKED,
        )
        ends.append(end)
        self._sandboxes[sandbox] = (generation, end)
        life = Life(question.tenant, sandbox, question.template_name, question.labels, question.forked)
        bounds.append(self._lending.bind(life, generation, lambda grants: end.send(api.encode(grants))))

    def _unbind(self, sandbox: str, generation: int) -> None:
        bound = self._sandboxes.get(sandbox)
        if bound is not None and bound[0] <= generation:
            del self._sandboxes[sandbox]
            bound[1].close()

    def _forget_end(self, sandbox: str, end: Packets) -> None:
        bound = self._sandboxes.get(sandbox)
        if bound is not None and bound[1] is end:
            del self._sandboxes[sandbox]

    # -- a sandbox's worker --------------------------------------------------------------------------------------
    def _asked(self, end: Packets, bound: Bound, asks: Bucket, message: bytes) -> None:
        question = _decoded(api.SANDBOX, end, message)
        if question is None:
            return
        if not asks.take(self._clock()):
            end.hold(_ASK_BURST / _ASK_RATE / 10)  # a flood waits in its own socket
        try:
            if isinstance(question, api.AskCredential):
                self._ask_lease(end, bound, question)
                return
            if isinstance(question, api.AskGrants):
                self._lending.tell_again(bound)
                end.send(api.encode(api.Done(question.id)))
                return
            leaf = self._lives.leaf(bound.life.sandbox, bound.generation, question.name)
        except Exception as error:  # noqa: BLE001 (the boundary)
            end.send(api.encode(_refusal(question.id, error)))
            return
        end.send(api.encode(api.LeafOf(question.id, leaf.chain, leaf.key.reveal())))

    def _ask_lease(self, end: Packets, bound: Bound, question: api.AskCredential) -> None:
        under_way = self._leases.setdefault(end, set())
        if len(under_way) >= _MOST_LEASES:
            raise Unavailable("credential_unavailable", hint=f"{_MOST_LEASES} are being lent to this sandbox")
        task = asyncio.get_running_loop().create_task(self._lend(end, bound, question), name="lease")
        under_way.add(task)
        task.add_done_callback(partial(self._lease_over, end))

    def _lease_over(self, end: Packets, task: asyncio.Task[None]) -> None:
        under_way = self._leases.get(end)
        if under_way is not None:
            under_way.discard(task)
            if not under_way:
                del self._leases[end]

    async def _lend(self, end: Packets, bound: Bound, question: api.AskCredential) -> None:
        answer: api.Answer
        try:
            answer = await self._lending.lend(bound, question)
        except Exception as error:  # noqa: BLE001 (the boundary)
            answer = _refusal(question.id, error)
        end.send(api.encode(answer))

    def _alarm(self, alarm: api.Alarm) -> None:
        who = f"grant {alarm.grant} of {alarm.tenant}, asked by {alarm.sandbox} toward {alarm.host}"
        log.warning("alarm (%s, %d times): %s", alarm.kind, alarm.count, who)
        message = api.encode(alarm)
        for end in tuple(self._control):
            end.send(message)

    # -- a keeper of records -------------------------------------------------------------------------------------
    def _bind_writer(self, question: api.BindWriter, sock: socket.socket) -> None:
        writers = frozenset(question.writers)
        for writer in writers:
            before = self._writers.pop(writer, None)
            if before is not None:
                before.close()
        ends: list[Packets] = []
        end = Packets(
            sock, lambda message, _: self._vouching(ends[0], writers, message), lambda: self._forget_writer(ends[0]), most=_MOST_QUESTION
        )
        ends.append(end)
        self._writers.update(dict.fromkeys(writers, end))

    def _forget_writer(self, end: Packets) -> None:
        self._writers = {writer: one for writer, one in self._writers.items() if one is not end}

    def _vouching(self, end: Packets, writers: frozenset[str], message: bytes) -> None:
        question = _decoded(api.WRITER, end, message)
        if question is None:
            return
        try:
            end.send(api.encode(self._vouched(writers, question)))
        except Exception as error:  # noqa: BLE001 (the boundary)
            end.send(api.encode(_refusal(question.id, error)))

    def _vouched(self, writers: frozenset[str], question: api.ToWriter) -> api.Answer:
        if isinstance(question, api.HeadKey):
            return api.PublicKey(question.id, self._heads.public)
        if question.writer not in writers:
            raise PermissionDenied(f"this socket speaks for {', '.join(sorted(writers))}, not for {question.writer}")
        if isinstance(question, api.GetHead):
            return api.Head(question.id, *self._heads.at(question.writer, question.what))
        return api.Vouched(question.id, self._heads.vouch(question.writer, question.what, question.count, question.last))


def _decoded(decoder: msgspec.msgpack.Decoder[Any], end: Packets, message: bytes) -> Any:
    """The question; None, and hung up, when it is none. Nothing of the message goes into the log: it may hold anything."""
    try:
        return decoder.decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        log.warning("hung up on a socket that sent no question (%s, %d bytes)", type(error).__name__, len(message))
        end.hang_up()
        return None


def _refusal(number: int, error: Exception) -> Refused:
    if not isinstance(error, SpaceError):
        # Only where it happened: the words of a foreign error may quote what it was given.
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = "?" if where is None else f"{where.tb_frame.f_code.co_name}:{where.tb_lineno}"
        log.error("%s in %s", type(error).__name__, place)
        error = Internal("the broker failed; its log says where")
    return Refused(number, error.code, error.message[:1000], (error.hint or "")[:1000])
