"""The node's end of a guest's channel: requests in the host's words turned into the guest's, and its answers held to the protocol.

What a guest answers is hostile. One that breaks the protocol loses its session, and with it its sandbox; nobody else notices.

Where a snapshot ends the machine's pipes, the session is parted with before it and taken up in another one after it. What is called
meanwhile waits; what was under way fails as `Parted`, which those hear of who do not go on by themselves (processes do).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from space.core.wire import guest as wire
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ProtocolError,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unsupported,
)
from space.model.rootd import SandboxOp
from space.model.sandbox import MAX_ARGUMENTS as _MOST_REQUEST
from space.node import limits
from space.node.vmm.seam import Machine, Pipe
from space.rpc import node_api as api
from space.rpc.session import Parted, Session, Stream

log = logging.getLogger(__name__)
T = TypeVar("T")
_ENTROPY = 64
_AGAIN = 0.05  # seconds: a guest that hangs up all the time costs the node little
_EMPTY = wire.Empty()
_UNFOLLOWED = "the session with the guest ended with a snapshot, and no other followed"
_ON_BULK = frozenset({"file_list", "file_read", "file_write", "connect", "entry_list", "entry_write"})
# Verbs of which the host sends more than the request.
FED = frozenset({"file_write", "connect", "entry_write", "entry_watch"})


class Guest:
    """One session with one guest."""

    def __init__(self, session: Session, life: int) -> None:
        self._session = session
        self._life = life
        self._whole = asyncio.Event()  # not while one session has ended and the next is not there
        self._whole.set()

    @classmethod
    async def open(cls, control: Pipe, bulk: Pipe, op: SandboxOp, *, reconnect: bool) -> Guest:
        """The session over these pipes, which it owns from now on. As long as the boot takes: bound it."""
        life = wire.life(op.sandbox, op.generation)
        return cls(await Session.open_guest(control, bulk, life, reconnect=reconnect), life)

    async def broken(self) -> SpaceError:
        """Until the session is over, and no other is to follow it; why."""
        while True:
            error = await asyncio.shield(self._session.closed)
            if not isinstance(error, Parted):
                return error
            await self._whole.wait()
            if self._is_parted:
                return SandboxDied(_UNFOLLOWED)

    async def aclose(self) -> None:
        """End the session; its streams fail. Idempotent."""
        await self._session.aclose()
        self._whole.set()

    async def settle(self) -> None:
        """Say nothing more until `go_on`, and have it read what was said: its pipes may be gone when it is talked to again."""
        if not await self._session.settle(limits.SETTLE):
            log.info("the guest has not read in %g s what it was sent", limits.SETTLE)

    def go_on(self) -> None:
        """It is talked to again, over the same pipes."""
        self._session.go_on()

    def part(self) -> None:
        """Its pipes are about to end: the session does now, and calls wait until it is taken up."""
        self._whole.clear()
        self._session.part("the call was cut off by a snapshot of its sandbox")

    async def take_up(self, control: Pipe, bulk: Pipe) -> None:
        """Another session with the same guest, over these."""
        self._session = await Session.open_guest(control, bulk, self._life, reconnect=True)
        self._whole.set()

    def hold(self) -> None:
        """The guest is going to be stopped: its silence means nothing."""
        self._session.hold()

    def release(self) -> None:
        """It runs again."""
        self._session.release()

    # -- calls with one answer -----------------------------------------------------------------------------------

    async def configure(self, *, hostname: str, env: Mapping[str, str]) -> wire.Configured:
        """Entropy, clock, name, environment. Repeated after a pause and an adoption, for the clock: all else is the same again."""
        request = wire.Configure(
            realtime_ns=time.time_ns(), entropy=os.urandom(_ENTROPY), hostname=hostname, env=environment(env), generation=self._life
        )
        with self.held_to_protocol():
            return wire.expect(wire.Configured, await (await self._peer()).call("configure", request))

    async def prepare_snapshot(self) -> None:
        """Its files are on its disk."""
        with self.held_to_protocol():
            wire.expect(wire.Done, await (await self._peer()).call("prepare_snapshot", wire.PrepareSnapshot(drop_caches=False)))

    async def imprint(self, hostname: str) -> None:
        """Make a restored machine another one: fresh entropy, machine-id and boot id."""
        request = wire.Imprint(os.urandom(_ENTROPY), hostname, secrets.token_hex(16), str(uuid.uuid4()))
        with self.held_to_protocol():
            wire.expect(wire.Imprinted, await (await self._peer()).call("imprint", request))

    async def claim(self, env: Mapping[str, str], *, hostname: str | None = None) -> None:
        """Give an imprinted machine its life: clock and environment. hostname: where it was imprinted under another."""
        request = wire.Claim(time.time_ns(), self._life, environment(env), resolv=None, hostname=hostname)
        with self.held_to_protocol():
            wire.expect(wire.Configured, await (await self._peer()).call("claim", request))

    async def grow(self, mib: int) -> None:
        """Have a machine whose disk is larger than its snapshot's fill it. Conflict where its daemon is older than that."""
        try:
            with self.held_to_protocol():
                wire.expect(wire.Configured, await self._answer("grow", wire.Grow(mib << 20)))
        except Unsupported as error:
            raise Conflict(
                "the guest of this snapshot is of a version that cannot enlarge its disk", hint="`space template rebake` makes a newer one"
            ) from error

    async def shutdown(self) -> None:
        """Have it end its processes, write its files and turn itself off; its VMM's end is the answer that counts."""
        with self.held_to_protocol():
            wire.expect(wire.Done, await (await self._peer()).call("shutdown", _EMPTY))

    async def noop(self) -> None:
        """A round trip to the daemon."""
        with self.held_to_protocol():
            wire.expect(wire.Done, await self._answer("noop"))

    async def metrics(self) -> wire.Metrics:
        """The guest's figures."""
        with self.held_to_protocol():
            return wire.expect(wire.Metrics, await self._answer("metrics"))

    async def processes(self) -> list[wire.Kept]:
        """Every process that it keeps."""
        with self.held_to_protocol():
            return wire.expect(wire.Processes, await self._answer("processes")).processes

    async def forget(self, process: str) -> None:
        """Kill what is left of a kept process and drop its output; idempotent."""
        with self.held_to_protocol(), suppress(NotFound):
            wire.expect(wire.Done, await self._answer("forget", wire.Process(process)))

    # -- streams -------------------------------------------------------------------------------------------------

    async def open_exec(self, asked: api.Exec, *, keep: str) -> Stream:
        """The stream of a new process, which outlives it under the name `keep` until the host closes the stream, after the guest."""
        if not asked.argv:
            raise InvalidArgument("argv is empty: it begins with the program")
        request = wire.Exec(
            argv=[_bytes(word, "argv") for word in asked.argv],
            cwd=None if asked.cwd is None else _bytes(asked.cwd, "cwd"),
            env=environment(asked.env),
            user=asked.user,
            timeout_ms=asked.timeout_ms,
            stdin=asked.stdin,
            pty=None if asked.pty is None else wire.Window(asked.pty.rows, asked.pty.cols),
            keep=keep,
        )
        payload = msgspec.msgpack.encode(request)
        if len(payload) > _MOST_REQUEST:
            raise TooLarge(
                f"argv and environment have {len(payload)} bytes, at most {_MOST_REQUEST} fit", hint="send it as a file, or by stdin"
            )
        return await (await self._peer()).open("launch" if asked.stays else "exec", payload, hold=True)

    async def open_unkept(self, argv: list[bytes], user: str | None, *, cwd: bytes | None = b"/", seconds: float = 10.0) -> Stream:
        """The stream of a command of our own, which nobody keeps and no list has."""
        request = wire.Exec(argv=argv, cwd=cwd, env=[], user=user, timeout_ms=int(seconds * 1000), stdin=False, pty=None, keep=None)
        return await (await self._peer()).open("exec", request, finish=True)

    async def open_attach(self, process: str, stdout: int, stderr: int) -> Stream:
        """The stream of a kept process, its output from these offsets on."""
        return await (await self._peer()).open("attach", wire.Attach(process, stdout, stderr), hold=True)

    async def open_forwarded(self, verb: str, request: bytes) -> Stream:
        """The stream of a verb whose request is passed on as it is; InvalidArgument when it is not one of the guest's."""
        try:
            wire.decode_request(wire.REQUESTS[verb], request)
        except ProtocolError as error:
            raise InvalidArgument(error.message) from None
        if len(request) > _MOST_REQUEST:
            raise TooLarge(f"the request has {len(request)} bytes, at most {_MOST_REQUEST} fit")
        return await (await self._peer()).open(verb, request, bulk=verb in _ON_BULK, finish=verb not in FED)

    async def open_tree(self, verb: str, asked: api.Tree) -> Stream:
        """The stream of a tree, in (`tree_put`) or out (`tree_get`)."""
        return await (await self._peer()).open(
            verb, wire.Tree(_bytes(asked.path, "path"), asked.user), bulk=True, finish=verb == "tree_get"
        )

    @contextmanager
    def held_to_protocol(self) -> Iterator[None]:
        """A ProtocolError within is the guest's doing, and the end of its session."""
        try:
            yield
        except ProtocolError as error:
            self._session.die(error)
            raise

    async def _peer(self) -> Session:
        """The session, once there is one."""
        await self._whole.wait()
        if self._is_parted:
            raise SandboxDied(_UNFOLLOWED)
        return self._session

    @property
    def _is_parted(self) -> bool:
        return self._session.closed.done() and isinstance(self._session.closed.result(), Parted)

    async def _answer(self, verb: str, request: msgspec.Struct = _EMPTY) -> bytes:
        try:
            async with asyncio.timeout(limits.ANSWER):
                return await (await self._peer()).call(verb, request)
        except TimeoutError:
            raise DeadlineExceeded(f"the guest did not answer {verb} within {limits.ANSWER:.0f} s") from None


async def greeted(machine: Machine, greet: Callable[[Pipe, Pipe], Awaitable[T]]) -> T:
    """What `greet` makes of fresh pipes. Bound it.

    After a snapshot a guest's kernel that is slow may end pipes that it had let in (`Machine.ends_pipes`): then others are greeted.
    """
    while True:
        pipes = await machine.connect()
        try:
            return await greet(*pipes)
        except SandboxDied as error:
            if not machine.ends_pipes or isinstance(error.__cause__, ProtocolError):
                raise
            await asyncio.sleep(_AGAIN)


def environment(env: Mapping[str, str]) -> list[wire.Pair]:
    """An environment as Linux has it; InvalidArgument for a name that cannot be one."""
    for name in env:
        if not name or "=" in name:
            raise InvalidArgument(f"not a name of an environment variable: {name[:64]!r}")
    return [(_bytes(name, "env"), _bytes(value, "env")) for name, value in env.items()]


def environment_fits(env: Mapping[str, str]) -> None:
    """Whether `configure` can carry it; InvalidArgument or TooLarge when not."""
    size = len(msgspec.msgpack.encode(environment(env)))
    if size > _MOST_REQUEST:
        raise TooLarge(f"the environment has {size} bytes, at most {_MOST_REQUEST} fit")


def _bytes(text: str, what: str) -> bytes:
    # names that are no UTF-8 travel as surrogates (PEP 383), as Python shows them
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} holds a character that is none: {text[:64]!r}") from None
    if b"\0" in raw:
        raise InvalidArgument(f"{what} holds a NUL character, which Linux cannot pass: {text[:64]!r}")
    return raw
