"""Who asks the minter what: the node hands it the two sockets that it needs, and the broker has one secret at a time exchanged.

Several exchanges may be under way; one that takes too long is given up. Without the dialer there is none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import msgspec

from space.config.egress import Endpoint
from space.minter.exchange import exchange
from space.model.errors import Internal, InvalidArgument, NotFound, SpaceError, Unavailable
from space.model.secret import Secret
from space.rpc import minter_api as api
from space.rpc.asking import Refused
from space.rpc.dialer_client import DialSocket
from space.rpc.packets import Packets, taken

log = logging.getLogger("space.minter")

_MOST_CONTROL = 16
POLICY_GENERATION = 0  # of the dialer's policy for the minter, which never changes


@dataclass(frozen=True, slots=True)
class Limits:
    """exchanges: at once; more wait in the broker's socket's questions and are refused. seconds: for one, from dial to answer."""

    exchanges: int = 64
    seconds: float = 20.0


class Desk:
    """Every socket of the minter but those to endpoints."""

    def __init__(self, endpoints: Mapping[str, Endpoint], tls: ssl.SSLContext, limits: Limits = Limits()) -> None:
        self._endpoints = endpoints
        self._tls = tls
        self._limits = limits
        self._control: set[Packets] = set()
        self._broker: Packets | None = None
        self._dialer: DialSocket | None = None
        self._under_way: set[asyncio.Task[None]] = set()

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
            most=4096,
        )
        ends.append(end)
        self._control.add(end)

    async def aclose(self) -> None:
        """Hang up on everybody; what is under way is given up."""
        for end in [*self._control, *([] if self._broker is None else [self._broker])]:
            end.close()
        if self._dialer is not None:
            self._dialer.close()
        under_way = tuple(self._under_way)
        for task in under_way:
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
        sock = None if descriptor is None else taken(descriptor)
        try:
            answer = self._arranged(question, sock)
        except SpaceError as error:
            if sock is not None:
                sock.close()
            answer = Refused(question.id, error.code, error.message, error.hint or "")
        end.send(api.encode(answer))

    def _arranged(self, question: api.ToControl, sock: socket.socket | None) -> api.Answer:
        match question:
            case api.BindBroker():
                self._bind_broker(_wanted(question, sock))
            case api.BindDialer():
                before, self._dialer = self._dialer, DialSocket(_wanted(question, sock))
                if before is not None:
                    before.close()
            case api.Describe():
                if sock is not None:
                    sock.close()
                broker = self._broker is not None and self._broker.open
                return api.Standing(question.id, sorted(self._endpoints), broker, self._dialer is not None and self._dialer.open)
            case _:
                assert_never(question)
        return api.Done(question.id)

    def _bind_broker(self, sock: socket.socket) -> None:
        if self._broker is not None:
            self._broker.close()
        ends: list[Packets] = []
        end = Packets(sock, lambda message, _: self._asked(ends[0], message), lambda: None)
        ends.append(end)
        self._broker = end

    # -- the broker ----------------------------------------------------------------------------------------------
    def _asked(self, end: Packets, message: bytes) -> None:
        try:
            question = api.BROKER.decode(message)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
            log.warning("hung up on the broker, which sent no question (%s, %d bytes)", type(error).__name__, len(message))
            end.hang_up()
            return
        if len(self._under_way) >= self._limits.exchanges:
            end.send(api.encode(Refused(question.id, Unavailable.code, f"{self._limits.exchanges} exchanges are under way")))
            return
        task = asyncio.get_running_loop().create_task(self._answer(end, question), name=f"exchange with {question.endpoint}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, end: Packets, question: api.Exchange) -> None:
        answer: api.Answer
        try:
            status, body = await self._exchanged(question)
            answer = api.Token(question.id, status, body.reveal())
        except SpaceError as error:
            log.warning("no token of %s: %s", question.endpoint, error.message)
            answer = Refused(question.id, error.code, error.message, error.hint or "")
        except Exception as error:  # noqa: BLE001 - the boundary; and the words of a foreign error may quote what it was given
            log.error("an exchange with %s failed: %s", question.endpoint, type(error).__name__)  # noqa: TRY400
            internal = Internal("the minter failed; its log says where")
            answer = Refused(question.id, internal.code, internal.message)
        end.send(api.encode(answer))

    async def _exchanged(self, question: api.Exchange) -> tuple[int, Secret]:
        endpoint = self._endpoints.get(question.endpoint)
        if endpoint is None:
            raise NotFound(f"there is no token endpoint {question.endpoint}", hint="the operator names them in token_endpoints")
        if self._dialer is None or not self._dialer.open:
            raise Unavailable("the minter has no dialer yet", hint="repeat in a moment")
        try:
            async with asyncio.timeout(self._limits.seconds):
                answer, sock = await self._dialer.dial(endpoint.host, endpoint.port, POLICY_GENERATION)
                if sock is None:
                    raise Unavailable(f"the endpoint {question.endpoint} cannot be dialled: {answer.reason}")
                basic = Secret(question.basic) if question.basic else None
                return await exchange(sock, self._tls, endpoint, Secret(question.form), basic)
        except TimeoutError:
            raise Unavailable(f"the endpoint {question.endpoint} did not answer within {self._limits.seconds:g} s") from None


def _wanted(question: api.BindBroker | api.BindDialer, sock: socket.socket | None) -> socket.socket:
    if sock is None:
        raise InvalidArgument(f"{type(question).__name__} comes with one SEQPACKET socket, and this came without")
    return sock
