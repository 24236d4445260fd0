"""A worker's surroundings as they are in the product: other processes, each behind a socket that was handed to it. It can open none itself.

    signer    the broker      a leaf for a name
    audit     the keeper      every record, before what it tells of goes on
    dialer    the dialer      a connected socket for a name that its own copy of the policy allows
    zygote    and the node    policies, replaced sockets, questions to a person, counts

Each may go away and be replaced while connections stand; meanwhile what needs it is refused. A question's number begins anywhere, so that
an answer to an earlier worker, which waits in a socket that outlives workers, is nobody's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv4Network

from space.audit.records import MOST_MESSAGE, MOST_TOGETHER, encode_record, together
from space.core.policy import document
from space.core.policy.kept import Kept
from space.core.policy.synthetic import SyntheticAddresses
from space.core.policy.verdict import Allow, Asked, Stack
from space.core.rates import Bucket
from space.core.wire import workertalk as talk
from space.gateway import inner
from space.gateway.budgets import Spending
from space.gateway.judgement import query_keys
from space.gateway.lending import Lender
from space.gateway.loans import NONE
from space.gateway.loans import Grants as Granted
from space.gateway.records import Connected, NameDecided, Record, Repeated, Requested
from space.gateway.surroundings import Dialled, DialRefused, Leaf, Limits, Ruling, Surroundings
from space.model.errors import Unavailable
from space.rpc.audit_client import RecordSocket
from space.rpc.broker_api import Credential, Grants
from space.rpc.broker_client import Signer
from space.rpc.dialer_client import DialSocket
from space.rpc.packets import Packets

log = logging.getLogger("space.gateway")

MOST_ASKS = 32  # that wait for a person at a time
_COUNT_SECONDS = 1.0
_LEND_SECONDS = 30.0  # a token may have to be fetched first
_MOST_ALARMS = 64
NO_POLICY = Stack(())


class Outside:
    """Within an event loop. changed: called when another policy holds. roots: the authorities of upstreams, as text. unrecorded: called
    when what has happened could not be recorded: whatever is open must end.
    """

    def __init__(
        self, sandbox: str, zygote: socket.socket, roots: str, changed: Callable[[], None], unrecorded: Callable[[Exception], None]
    ) -> None:
        self._sandbox = sandbox
        self._unrecorded = unrecorded
        self._told: list[bytes] = []  # records of this turn of the loop
        self._told_size = 0
        self._behind = False  # the keeper did not take the last ones
        self._roots = roots
        self._changed = changed
        self._bundles: Mapping[str, str] = {}
        self._signer: Signer | None = None
        self._audit: RecordSocket | None = None
        self._dialer: DialSocket | None = None
        self._asks: dict[int, asyncio.Future[bool]] = {}
        self._ask_rate = Bucket(2.0, 20)
        self._totals = dict.fromkeys(("connections", "requests", "denied", "names", "sent", "received"), 0)
        self._counting: asyncio.TimerHandle | None = None
        self._granted: Granted = NONE
        self._learnt = False  # whether the broker has told what there is
        self._lender = Lender(self._lend, time.monotonic, _LEND_SECONDS)
        self._alarms: dict[tuple[talk.Alarming, str, str], int] = {}
        self._alarm_rate = Bucket(1.0, 10)
        self.ruling = Ruling(0, NO_POLICY)
        self.now: Callable[[], tuple[int, int]] = lambda: (0, 0)  # connections and upstreams
        self._zygote = Packets(zygote, self._heard, self._alone, descriptors=True, most=inner.MOST, burst=16)

    def surroundings(self, network: IPv4Network, memory: Kept, limits: Limits) -> Surroundings:
        """What the worker is given."""
        return Surroundings(
            sandbox=self._sandbox,
            ruling=lambda: self.ruling,
            names=SyntheticAddresses(network, kept=memory, first=secrets.randbits(30)),
            dial=self._dial,
            leaf=self._leaf,
            record=self._record,
            clock=time.monotonic,
            bundle=self._bundle,
            ask=self._ask,
            grants=lambda: self._granted,
            lender=self._lender,
            alarm=self._alarm,
            spending=Spending(memory),
            limits=limits,
        )

    # -- policy ----------------------------------------------------------------------------------------------------
    def take_policy(self, generation: int, descriptor: int | None) -> str:
        """That document holds from now on. Why it cannot be read, and then nothing is allowed; empty when it holds."""
        words = ""
        try:
            if descriptor is None:
                raise document.DocumentRefused("there is no policy")
            found = document.read(read_all(descriptor))
            self.ruling, self._bundles = Ruling(generation, found.stack), found.bundles
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it: what cannot be read allows nothing
            words = str(error)[: inner.MOST_WORDS] or type(error).__name__
            self.ruling, self._bundles = Ruling(generation, NO_POLICY), {}
        return words

    def _bundle(self, name: str | None) -> str:
        return self._roots if name is None else f"{self._roots}\n{self._bundles[name]}"

    # -- the other processes ---------------------------------------------------------------------------------------
    def replace(self, what: inner.What, sock: socket.socket) -> None:
        """That socket from now on; what waits for an answer over the earlier one fails."""
        earlier: Signer | RecordSocket | DialSocket | None
        if what == "signer":
            earlier, self._signer = self._signer, Signer(sock, secrets.randbits(52), unasked=self._told_of)
            self._learnt = False
        elif what == "audit":
            earlier, self._audit = self._audit, RecordSocket(sock)
        else:
            earlier, self._dialer = self._dialer, DialSocket(sock)
        if earlier is not None:
            earlier.close()

    async def _leaf(self, name: str) -> Leaf:
        if self._signer is None:
            raise Unavailable("there is no broker")
        signer = self._signer
        if not self._learnt:  # nothing is spoken of with a guest before it is known what it may have
            await signer.grants()
            self._learnt = self._learnt or signer is self._signer
        return Leaf(*await signer.leaf(name))

    async def _lend(self, grant: str, host: str, port: int, method: str, path: str, request: str, approved: bool) -> Credential:
        if self._signer is None:
            raise Unavailable("there is no broker")
        return await self._signer.credential(grant, host, port, method, path, request, approved=approved)

    def _told_of(self, message: object) -> None:
        """The broker says what the sandbox has from now on: what was lent of others is dropped, and what goes on with it ends."""
        if not isinstance(message, Grants):
            return
        self._granted, self._learnt = Granted(message.grants), True
        self._lender.forget({one.name: one for one in message.grants})
        self._changed()

    def _alarm(self, kind: talk.Alarming, grant: str, host: str) -> None:
        """For the node; more than some a second are counted, and told with the next."""
        key = kind, grant, host
        self._alarms[key] = self._alarms.get(key, 0) + 1
        if len(self._alarms) > _MOST_ALARMS:
            self._alarms.pop(next(iter(self._alarms)))
        if self._alarm_rate.take(time.monotonic()):
            for (one, of, at), count in self._alarms.items():
                self._say(talk.Alarm(kind=one, grant=of, host=at, count=count))
            self._alarms.clear()

    def _record(self, record: Record) -> None:
        data = encode_record(record)
        if self._told_size + len(data) > MOST_MESSAGE - 3 or len(self._told) == MOST_TOGETHER:
            self._tell()
        self._told.append(data)
        self._told_size += len(data)
        # A name is not answered when that cannot be recorded; and who is known to take nothing is not told later.
        if isinstance(record, NameDecided) or self._behind or self._audit is None or not self._audit.open:
            self._tell()
        elif len(self._told) == 1:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._count(record)

    def _tell(self) -> None:
        """One message of what has happened in this turn. Unavailable: it is not taken."""
        told, self._told, self._told_size = self._told, [], 0
        if not told:
            return
        self._behind = True
        if self._audit is None:
            raise Unavailable("there is no keeper of records")
        self._audit.note(together(told))
        self._behind = False

    def _tell_all(self) -> None:
        """At the end of a turn: before the loop writes what it was given to write."""
        try:
            self._tell()
        except Unavailable as error:
            self._unrecorded(error)

    async def _dial(self, target: str | IPv4Address, port: int) -> Dialled | DialRefused:
        if self._dialer is None:
            return DialRefused("dialer_unavailable")
        try:
            answer, sock = await self._dialer.dial(target, port, self.ruling.generation)
        except Unavailable:
            return DialRefused("dialer_unavailable")
        if sock is None:
            return DialRefused(answer.reason, denied=answer.denied)
        if not _is(sock, answer.address, target, port):
            sock.close()
            log.error("the dialer sent another socket than it said for %s port %d", target, port)
            return DialRefused("dialer_odd")
        sock.setblocking(False)
        return Dialled(sock, answer.address)

    # -- the node --------------------------------------------------------------------------------------------------
    async def _ask(self, asked: Asked) -> bool:
        path = shown(asked)
        if path is None or len(self._asks) >= MOST_ASKS or not self._ask_rate.take(time.monotonic()):
            return False
        number = talk.new_ask()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asks[number] = future
        verdict = self.ruling.stack.request(asked)
        rule = verdict.rule.name if isinstance(verdict, Allow) and verdict.rule is not None else ""
        self._say(
            talk.Ask(
                ask=number,
                host=asked.name,
                port=asked.port,
                scheme=asked.scheme,
                method=asked.method[:64],
                path=path,
                rule=rule[:256],
            )
        )
        try:
            return await future
        finally:
            del self._asks[number]
            if future.cancelled() or not future.done():
                self._say(talk.AskOver(number))

    def _count(self, record: Record) -> None:
        totals = self._totals
        match record:
            case Requested():
                totals["requests"] += 1
                totals["denied"] += bool(record.reason)
            case NameDecided():
                totals["names"] += 1
                totals["denied"] += bool(record.reason)
            case Connected():
                totals["connections"] += 1
                totals["sent"] += record.sent
                totals["received"] += record.received
            case Repeated():
                totals["denied"] += record.count
        if self._counting is None:
            self._counting = asyncio.get_running_loop().call_later(_COUNT_SECONDS, self.flush)

    def flush(self) -> None:
        """Tell the counts, if they are others than the last that were told."""
        self._tell_all()
        if self._counting is not None:
            self._counting.cancel()
            self._counting = None
            connections, upstreams = self.now()
            self._say(talk.Counted(**self._totals, open=connections, upstreams=upstreams))

    def _say(self, message: talk.Up) -> None:
        self.up(inner.Message(talk.encode(message)))

    def up(self, message: inner.Up) -> None:
        """To the zygote."""
        self._zygote.send(inner.encode(message))

    # -- what the zygote says --------------------------------------------------------------------------------------
    def _heard(self, data: bytes, descriptor: int | None) -> None:
        message = inner.from_zygote(data)
        match message:
            case inner.Policy(generation=generation):
                words = self.take_policy(generation, descriptor)
                if descriptor is not None:
                    os.close(descriptor)
                self._changed()
                self.up(inner.Applied(generation, words))
            case inner.Replace(what=what):
                if descriptor is not None:
                    self.replace(what, socket.socket(fileno=descriptor))
            case inner.Message(data=said):
                answer = talk.from_node(said)
                future = self._asks.get(answer.ask)
                if future is not None and not future.done():
                    future.set_result(answer.allow)

    def _alone(self) -> None:
        """The zygote is gone; the kernel ends this process at that moment as well."""
        os._exit(0)


def shown(asked: Asked) -> str | None:
    """What a person reads of it: the path, and the keys of the query. None: not all of it fits, and nobody agrees to what is not shown."""
    keys = query_keys(asked.path)
    path = asked.path.text + ("?" + "&".join(keys) if keys else "")
    parts = [part for part in (asked.path.query or "").split("&") if part]
    whole = len(keys) == len(parts) and all(
        key == "(no key)" or part.partition("=")[0] == key for key, part in zip(keys, parts, strict=True)
    )
    return path if whole and len(path) <= talk.MOST_PATH else None


def read_all(descriptor: int) -> bytes:
    """All of a memfd, whatever its position. DocumentRefused when it is longer than a policy may be."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size > document.MOST_BYTES:
        raise document.DocumentRefused(f"a policy document of {size} bytes, at most {document.MOST_BYTES} are possible")
    found = bytearray()
    while len(found) < size and (piece := os.pread(descriptor, size - len(found), len(found))):
        found += piece
    return bytes(found)


def _is(sock: socket.socket, address: str, target: str | IPv4Address, port: int) -> bool:
    """Whether it is connected to exactly that."""
    try:
        peer = sock.getpeername()
        internet = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    except OSError:
        return False
    return internet and peer[:2] == (address, port) and (isinstance(target, str) or address == str(target))
