"""The one session to the node: kept up with back-off, its levels handed on, its calls typed.

    down --connect, info, watch, list--> up --session ends--> down --(back-off)--> ...

While it is down every call is `Unavailable` at once; nothing is queued, so nothing is done late that a caller gave up on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from space.config import logs
from space.control import limits
from space.core.wire.events import Message
from space.model.errors import DeadlineExceeded, InvalidArgument, ProtocolError, SpaceError, Unavailable
from space.rpc.node_api import Asked, Create, Empty, NodeInfo, SandboxList, SandboxState
from space.rpc.session import Session
from space.rpc.stream import Stream

log = logging.getLogger("space.control.link")
T = TypeVar("T")
_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0
_CONNECT_SECONDS = 10.0
# A node that has just begun may probe its accelerator first, with a guest.
_INFO_SECONDS = 60.0


class LinkLost(Unavailable):
    """The session ended during the call: it may have been carried out or not."""


class Listener(Protocol):
    """Who is told what the node holds. Calls are short and do not wait."""

    def node_up(self, info: NodeInfo, levels: list[SandboxState]) -> None:
        """A new session; `levels` is everything on the node."""

    def node_level(self, level: SandboxState) -> None:
        """A sandbox is now like this."""

    def node_down(self) -> None:
        """The session has ended."""


@dataclass(frozen=True, slots=True)
class _Up:
    session: Session
    info: NodeInfo


class NodeLink:
    """The link. `run` keeps it; everything else uses it."""

    def __init__(self, socket: Path, listener: Listener, *, accept: Callable[[NodeInfo], None] = lambda info: None) -> None:
        """accept: raises if this server must not serve such a node; that ends `run`."""
        self._socket = socket
        self._listener = listener
        self._accept = accept
        self._up: _Up | None = None
        self._risen = asyncio.Event()
        self.last_info: NodeInfo | None = None

    @property
    def is_up(self) -> bool:
        return self._up is not None

    async def wait_up(self) -> None:
        """Until there is a session."""
        await self._risen.wait()

    async def run(self) -> None:
        """Keep a session until cancelled, or until `accept` refuses the node."""
        delay = _FIRST_DELAY
        while True:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    session = await Session.connect(self._socket)
            except (SpaceError, TimeoutError) as error:
                log.warning("no connection to the node (again in %.2f s): %s", delay, error)
            else:
                began = asyncio.get_running_loop().time()
                try:
                    await self._follow(session)
                except (SpaceError, TimeoutError) as error:
                    log.warning("the session to the node ended: %s", error)
                finally:
                    self._down()
                    await session.aclose()
                if asyncio.get_running_loop().time() - began > _LONGEST_DELAY:
                    delay = _FIRST_DELAY
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _follow(self, session: Session) -> None:
        async with asyncio.timeout(_INFO_SECONDS):
            info = await _call(session, "info", Empty(), NodeInfo)
        try:
            self._accept(info)
        except InvalidArgument as error:
            raise Refused(str(error)) from error
        # The watch comes first, so that no change falls between the list and it; its older levels lose by their revision.
        levels = _Levels(await session.open("watch", Empty(), finish=True))
        reading = asyncio.create_task(levels.read())
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                there = await _list(session)
            self.last_info = info
            self._listener.node_up(info, there)
            self._up = _Up(session, info)
            self._risen.set()
            log.info("connected to the node: isolation %s, %d sandboxes", info.isolation, len(there))
            levels.tell(self._listener.node_level)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _down(self) -> None:
        if self._up is not None:
            self._up = None
            self._risen.clear()
            self._listener.node_down()

    def _session(self) -> Session:
        if self._up is None:
            raise Unavailable("the node is not connected", hint="it is being restarted if it died; repeat in a few seconds")
        return self._up.session

    async def call(self, verb: str, request: Any, answer: type[T], *, seconds: float = limits.CALL_SECONDS) -> T:
        """One request, one message. Unavailable, LinkLost, DeadlineExceeded, or the node's fault."""
        return _as(answer, verb, await self.ask(verb, request, seconds=seconds))

    async def ask(self, verb: str, request: Any, *, seconds: float = limits.CALL_SECONDS) -> bytes:
        """As `call`; the message as it came."""
        session = self._session()
        try:
            async with asyncio.timeout(seconds):
                return await session.call(verb, _marked(request))
        except TimeoutError:
            raise DeadlineExceeded(f"{verb} was not answered within {seconds:g} s") from None
        except SpaceError as error:
            if session.closed.done():
                raise LinkLost(f"the connection to the node was lost during {verb}") from error
            raise

    def create(self, request: Create) -> AsyncIterator[SandboxState]:
        """Make a sandbox: every phase it goes through."""
        return self.states("create", request)

    def states(self, verb: str, request: Any) -> AsyncIterator[SandboxState]:
        """Every phase that a sandbox goes through on the way that `verb` asks for."""
        return self.messages(verb, request, SandboxState)

    async def messages(self, verb: str, request: Any, cls: Any) -> AsyncIterator[Any]:
        """Every message of the answer, each of `cls`, which may be a union. Unavailable, LinkLost, or the node's fault."""
        session = self._session()
        try:
            async with await session.open(verb, _marked(request), finish=True) as stream:
                async for event in stream:
                    if isinstance(event, Message):
                        yield decoded(event, cls)
        except SpaceError as error:
            if session.closed.done():
                raise LinkLost(f"the connection to the node was lost during {verb}") from error
            raise

    async def list(self) -> list[SandboxState]:
        """Every sandbox of the node. Unavailable, DeadlineExceeded, ProtocolError."""
        try:
            async with asyncio.timeout(limits.CALL_SECONDS):
                return await _list(self._session())
        except TimeoutError:
            raise DeadlineExceeded(f"the node did not list its sandboxes within {limits.CALL_SECONDS:g} s") from None

    async def open(self, verb: str, request: Any, *, bulk: bool = False, finish: bool = False) -> Stream:
        """An open stream: a context manager that resets it, and ends the work behind it, when it is left before the end."""
        return await self._session().open(verb, _marked(request), bulk=bulk, finish=finish)


class _Levels:
    """A watch that is read from its beginning on: a node of many sandboxes tells more at once than may lie unread."""

    def __init__(self, watch: Stream) -> None:
        self._watch = watch
        self._kept: dict[str, SandboxState] = {}
        self._tell: Callable[[SandboxState], None] | None = None

    async def read(self) -> NoReturn:
        """Until it fails."""
        async for event in self._watch:
            if isinstance(event, Message):
                level = decoded(event, SandboxState)
                if self._tell is None:
                    self._kept[level.sandbox] = level
                else:
                    self._tell(level)
        raise ProtocolError("the node ended the watch")

    def tell(self, listener: Callable[[SandboxState], None]) -> None:
        """From now on, and the last of each that came before."""
        for level in self._kept.values():
            listener(level)
        self._kept.clear()
        self._tell = listener


class Refused(Exception):
    """The node must not be served like this; the sentence is for the operator."""


async def _call(session: Session, verb: str, request: Any, answer: type[T]) -> T:
    return _as(answer, verb, await session.call(verb, request))


async def _list(session: Session) -> list[SandboxState]:
    found: list[SandboxState] = []
    async with await session.open("list", Empty(), finish=True) as stream:
        async for event in stream:
            if isinstance(event, Message):
                found += decoded(event, SandboxList).sandboxes
    return found


def _marked(request: Any) -> Any:
    """With the id of the API request that it is for, which a client saw and by which an operator finds the node's lines."""
    known = logs.request_id.get()
    return msgspec.structs.replace(request, request_id=known) if known != "-" and isinstance(request, Asked) else request


def _as(answer: type[T], verb: str, payload: bytes) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=answer)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the node answered {verb} with something else: {error}") from None


def decoded(event: Message, cls: Any) -> Any:
    """A message of the node as `cls`, which may be a union; ProtocolError otherwise."""
    try:
        return msgspec.msgpack.decode(event.payload, type=cls)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the node's message is not right: {error}") from None
