"""The zygote: holds what each sandbox's worker will need, and forks the worker when something waits at one of the sandbox's listeners.

One thread, one plain epoll, no event loop, no secret. Of a guest it sees that something waits, and never a byte of it; what a worker
says is counted, cut and passed on. Whoever does not take what it is told is hung up on, if it is the node, or killed, if it is a worker:
it is forked again. A worker that is to end with its sandbox, or with us, is asked to tell what it was about, and killed if it does not
in time. Nothing is waited for here but in the one poll.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec

from space.gateway import bindings, inner
from space.gateway.bindings import Bound, Living
from space.model.errors import Conflict, Internal, InvalidArgument, NotFound, SpaceError
from space.rpc import gateway_api as api
from space.rpc.asking import Refused
from space.rpc.packets import receive_with

log = logging.getLogger("space.gateway")

APPLY_SECONDS = 1.0
STOP_SECONDS = 0.25
MOST_PEERS = 16
_BURST = 64  # messages of one socket at a wake-up
_UP_RATE, _UP_BURST = 100.0, 400.0  # messages a second of one worker; one that says more waits
_CREDENTIALS = struct.Struct("=iII")


class Starter(Protocol):
    """How workers begin and end: the kernel's part."""

    def start(self, bound: Bound, channel: int) -> int:
        """Fork a worker whose end of the socket to us is `channel`; its pid. OSError."""

    def signal(self, bound: Bound, pidfd: int, number: int) -> None:
        """Send SIGTERM, at which a worker tells what it was about and ends, or SIGKILL; the pidfd says when it is dead."""


class Zygote:
    """uids: who may connect, besides by the socket's own mode."""

    def __init__(
        self, listener: socket.socket, uids: Collection[int], starter: Starter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._uids = uids
        self._starter = starter
        self._clock = clock
        self._epoll = select.epoll()
        self._does: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._peers: dict[int, socket.socket] = {}
        self._bound: dict[str, Bound] = {}  # by sandbox: one life of each at a time
        self._slots: dict[int, str] = {}
        self._stopped = False
        listener.setblocking(False)
        self._listener = listener
        self._watch(listener.fileno(), self._accept)

    # -- the loop ------------------------------------------------------------------------------------------------
    def run(self, wake: int) -> None:
        """Until a byte comes on `wake`. Workers end with this process."""
        self._watch(wake, self._stop)
        while not self._stopped:
            self.step()
        self._part()

    def _part(self) -> None:
        """Let workers tell what they were about; those that do not in time end with us."""
        deadline = self._clock() + STOP_SECONDS
        living = [bound for bound in self._bound.values() if bound.worker is not None]
        for bound in living:
            assert bound.worker is not None
            self._starter.signal(bound, bound.worker.pidfd, signal.SIGTERM)
        while any(bound.worker is not None for bound in living) and self._clock() < deadline:
            self.step(0.05)

    def step(self, longest: float | None = None) -> None:
        """Wait for what comes next, and do it."""
        timeout = longest
        if self._timers:
            due = max(0.0, self._timers[0][0] - self._clock())
            timeout = due if timeout is None else min(due, timeout)
        for number, _ in self._epoll.poll(timeout):
            do = self._does.get(number)
            if do is not None:
                do()
        while self._timers and self._timers[0][0] <= self._clock():
            heapq.heappop(self._timers)[2]()

    def fileno(self) -> int:
        """The epoll's descriptor: a child closes it."""
        return self._epoll.fileno()

    def _stop(self) -> None:
        self._stopped = True

    def _watch(self, number: int, do: Callable[[], None]) -> None:
        self._does[number] = do
        self._epoll.register(number, select.EPOLLIN)

    def _unwatch(self, number: int) -> None:
        """Before it is closed: others hold the same open file, for which the kernel would go on to report."""
        if self._does.pop(number, None) is not None:
            self._epoll.unregister(number)

    def _at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._order), do))

    # -- whoever asks --------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        with suppress(OSError):
            peer, _ = self._listener.accept()
            pid, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if uid not in self._uids or len(self._peers) >= MOST_PEERS:
                log.warning("refused a connection of uid %d, pid %d: %d are connected", uid, pid, len(self._peers))
                peer.close()
                return
            peer.setblocking(False)
            self._peers[peer.fileno()] = peer
            self._watch(peer.fileno(), partial(self._read, peer))

    def _hang_up(self, peer: socket.socket) -> None:
        if self._peers.get(peer.fileno()) is peer:
            del self._peers[peer.fileno()]
            self._unwatch(peer.fileno())
            peer.close()

    def _send(self, peer: socket.socket, message: object) -> None:
        if self._peers.get(peer.fileno()) is peer:
            try:
                peer.send(api.encode(message), socket.MSG_NOSIGNAL)
            except OSError as error:
                log.warning("hung up on a connection that does not take what it is told: %s", error.strerror)
                self._hang_up(peer)

    def _tell(self, message: api.Unasked) -> None:
        for peer in list(self._peers.values()):
            self._send(peer, message)

    def _read(self, peer: socket.socket) -> None:
        for _ in range(_BURST):
            if peer.fileno() not in self._peers:
                return
            try:
                got = receive_with(peer, api.MOST_BYTES, api.BEFORE_CGROUPS + api.MOST_CGROUPS)
            except BlockingIOError:
                return
            if got is None:
                self._hang_up(peer)
                return
            self._asked(peer, *got)

    def _asked(self, peer: socket.socket, data: bytes, given: list[int]) -> None:
        try:
            question = api.CONTROL.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError):
            log.warning("hung up on a socket that sent no question (%d bytes)", len(data))
            bindings.close_all(given)
            self._hang_up(peer)
            return
        try:
            self._do(peer, question, given)
        except SpaceError as error:
            self._send(peer, Refused(question.id, error.code, error.message[:1000], error.hint or ""))
        except Exception:
            log.exception("%s failed", type(question).__name__)
            self._send(peer, Refused(question.id, Internal.code, "the gateway failed; its log says why"))
        finally:
            bindings.close_all(given)  # what is kept was taken out

    def _do(self, peer: socket.socket, question: api.ToControl, given: list[int]) -> None:
        done = partial(self._send, peer, api.Done(question.id))
        match question:
            case api.Bind():
                self._bind(question, given, done)
            case api.SetPolicy():
                self._set_policy(peer, question, given)
            case api.Reconnect():
                self._reconnect(question, given)
                done()
            case api.Say():
                worker = self._get(question).worker
                if worker is None:
                    raise NotFound(f"no worker of {question.sandbox} lives")
                self._down(self._get(question), inner.Message(question.message))
                done()
            case api.End():
                bound = self._bound.get(question.sandbox)
                if bound is None or bound.generation != question.generation:
                    done()
                else:
                    self._end(bound, done)
            case api.Describe():
                self._send(peer, self._standing(question))

    def _standing(self, question: api.Describe) -> api.Standing:
        slots = sorted(slot for slot in self._slots if slot > question.after)
        found = [self._bound[self._slots[slot]] for slot in slots[: api.MOST_PART]]
        return api.Standing(
            question.id,
            [
                api.Binding(
                    one.sandbox, one.generation, one.slot, one.policy_generation, 0 if one.worker is None else one.worker.pid, one.refused
                )
                for one in found
            ],
            len(slots) > api.MOST_PART,
        )

    def _get(self, question: api.SetPolicy | api.Reconnect | api.Say) -> Bound:
        bound = self._bound.get(question.sandbox)
        if bound is None or bound.generation != question.generation or bound.ending:
            raise NotFound(f"life {question.generation} of {question.sandbox} is not bound")
        return bound

    # -- bindings ------------------------------------------------------------------------------------------------
    def _bind(self, question: api.Bind, given: list[int], done: Callable[[], None]) -> None:
        held = bindings.checked(question, given)
        there = self._bound.get(question.sandbox)
        if there is not None and there.generation > question.generation:
            raise Conflict(f"{question.sandbox} is bound in its life {there.generation}, and {question.generation} is earlier")
        if self._slots.get(question.slot, question.sandbox) != question.sandbox:
            raise Conflict(f"slot {question.slot} is bound to {self._slots[question.slot]}", hint="end that life first")
        given.clear()
        bound = Bound(question.sandbox, question.generation, question.slot, question.synthetic, held)
        if there is None:
            self._begin(bound, done)
        else:
            self._end(there, lambda: self._begin_after(bound, done))

    def _begin_after(self, bound: Bound, done: Callable[[], None]) -> None:
        """Once the earlier life is gone, unless another one came first: then that one ends as well."""
        there = self._bound.get(bound.sandbox)
        if there is not None:
            self._end(there, lambda: self._begin_after(bound, done))
        elif bound.slot in self._slots:
            log.warning("%s was not bound: slot %d is another's by now", bound.sandbox, bound.slot)
            bound.close()
            done()  # `Describe` tells what is; the slot's other sandbox was bound later
        else:
            self._begin(bound, done)

    def _begin(self, bound: Bound, done: Callable[[], None]) -> None:
        self._bound[bound.sandbox] = bound
        self._slots[bound.slot] = bound.sandbox
        self._listen(bound)
        done()

    def _listen(self, bound: Bound) -> None:
        for number in bound.listeners:
            self._watch(number, partial(self._came, bound))

    def _deafen(self, bound: Bound) -> None:
        for number in bound.listeners:
            self._unwatch(number)

    def _end(self, bound: Bound, then: Callable[[], None]) -> None:
        bound.ending = True
        bound.after.append(then)
        worker = bound.worker
        if worker is None:
            self._gone(bound)
        elif not worker.asked:
            worker.asked = "asked to"
            self._starter.signal(bound, worker.pidfd, signal.SIGTERM)
            self._at(self._clock() + STOP_SECONDS, partial(self._overdue, bound, worker))

    def _overdue(self, bound: Bound, worker: Living) -> None:
        if bound.worker is worker:
            self._starter.signal(bound, worker.pidfd, signal.SIGKILL)

    def _gone(self, bound: Bound) -> None:
        """It has no worker (any more), and nobody wants it."""
        self._deafen(bound)
        bound.close()
        del self._bound[bound.sandbox], self._slots[bound.slot]
        after, bound.after = bound.after, []
        for then in after:
            then()

    def _set_policy(self, peer: socket.socket, question: api.SetPolicy, given: list[int]) -> None:
        bound = self._get(question)
        if question.policy_generation < bound.policy_generation:
            raise Conflict(f"{bound.sandbox} has policy generation {bound.policy_generation}, and {question.policy_generation} is earlier")
        refusal: InvalidArgument | None = None
        try:
            if len(given) != 1:
                raise InvalidArgument(f"a policy comes in one memfd, and this came with {len(given)} descriptors")
            bindings.check_policy(given[0])
        except InvalidArgument as error:
            refusal = error
        if bound.policy is not None:
            os.close(bound.policy)
        bound.policy = None if refusal is not None else given.pop()
        bound.policy_generation = question.policy_generation
        bound.refused = "" if refusal is None else refusal.message
        if bound.worker is None or bound.worker.asked:
            answered = refusal
        else:
            worker, deadline = bound.worker, self._clock() + APPLY_SECONDS
            tell = partial(self._applied, peer, question.id, bound, refusal)
            worker.waiting.append((question.policy_generation, deadline, tell))
            self._at(deadline, partial(self._late, bound, worker))
            self._down(bound, inner.Policy(question.policy_generation), bound.policy)
            return
        if answered is not None:
            raise answered
        self._send(peer, api.Done(question.id))

    def _applied(self, peer: socket.socket, number: int, bound: Bound, refusal: InvalidArgument | None, words: str) -> None:
        """words: of the worker, why it cannot read it."""
        said = refusal.message if refusal is not None else words
        if not said:
            self._send(peer, api.Done(number))
            return
        message = f"the policy of {bound.sandbox} cannot be read, and nothing is allowed: {said}"
        self._send(peer, Refused(number, InvalidArgument.code, message[:1000], ""))

    def _late(self, bound: Bound, worker: Living) -> None:
        if bound.worker is worker and any(deadline <= self._clock() for _, deadline, _ in worker.waiting):
            self._kill(bound, f"its policy was not applied within {APPLY_SECONDS:g} s")

    def _reconnect(self, question: api.Reconnect, given: list[int]) -> None:
        bound = self._get(question)
        if len(given) != 1:
            raise InvalidArgument(f"Reconnect comes with one socket, and this came with {len(given)} descriptors")
        bindings.check_channel(given[0])
        place = bindings.PLACES[question.what]
        os.close(bound.held[place])
        bound.held[place] = given.pop()
        if bound.worker is not None and not bound.worker.asked:
            self._down(bound, inner.Replace(question.what), bound.held[place])

    # -- workers -------------------------------------------------------------------------------------------------
    def _came(self, bound: Bound) -> None:
        """Something waits at a listener. While a worker lives they are its own to watch."""
        if bound.worker is not None or bound.ending or self._stopped:
            return
        now = self._clock()
        if now < bound.rest:
            self._deafen(bound)
            self._at(bound.rest, partial(self._rested, bound))
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = self._starter.start(bound, theirs.fileno())
                pidfd = os.pidfd_open(pid)
            except OSError as error:
                log.error("no worker for %s: %s", bound.sandbox, error)  # noqa: TRY400 (its words are enough)
                ours.close()
                bound.crashed(now, 0.0)
                return
        ours.setblocking(False)
        worker = bound.worker = Living(pid, pidfd, ours, now, at=now, allowance=_UP_BURST)
        self._deafen(bound)
        self._watch(ours.fileno(), partial(self._heard, bound, worker))
        self._watch(pidfd, partial(self._died, bound, worker))
        self._tell(api.WorkerStarted(bound.sandbox, bound.generation, pid))

    def _rested(self, bound: Bound) -> None:
        if self._bound.get(bound.sandbox) is bound and bound.worker is None and not bound.ending and bound.listeners[0] not in self._does:
            self._listen(bound)

    def _down(self, bound: Bound, message: inner.Down, descriptor: int | None = None) -> None:
        worker = bound.worker
        assert worker is not None
        try:
            socket.send_fds(worker.channel, [inner.encode(message)], [] if descriptor is None else [descriptor], socket.MSG_NOSIGNAL)
        except OSError as error:
            self._kill(bound, f"it does not take what it is told: {error.strerror}")

    def _kill(self, bound: Bound, why: str) -> None:
        worker = bound.worker
        assert worker is not None
        if not worker.asked:
            worker.asked = why
            self._starter.signal(bound, worker.pidfd, signal.SIGKILL)

    def _heard(self, bound: Bound, worker: Living) -> None:
        now = self._clock()
        worker.allowance = min(_UP_BURST, worker.allowance + (now - worker.at) * _UP_RATE)
        worker.at = now
        for _ in range(_BURST):
            if worker.allowance < 1:
                self._unwatch(worker.channel.fileno())
                worker.held = True
                self._at(now + 1 / 4, partial(self._listen_to, bound, worker))
                return
            try:
                got = receive_with(worker.channel, inner.MOST, 0)
            except BlockingIOError:
                return
            if got is None:
                self._deaf_to(bound, worker)
                return
            worker.allowance -= 1
            try:
                self._said(bound, worker, inner.from_worker(got[0]))
            except inner.InnerRefused as error:
                self._kill(bound, str(error))
                return

    def _listen_to(self, bound: Bound, worker: Living) -> None:
        if bound.worker is worker and worker.held:
            worker.held = False
            self._watch(worker.channel.fileno(), partial(self._heard, bound, worker))

    def _deaf_to(self, bound: Bound, worker: Living) -> None:
        """Its end is closed: it is ending, as its pidfd will tell in a moment, or it is no longer what we forked."""
        self._unwatch(worker.channel.fileno())
        self._at(self._clock() + APPLY_SECONDS, partial(self._silent, bound, worker))

    def _silent(self, bound: Bound, worker: Living) -> None:
        if bound.worker is worker:
            self._kill(bound, "it has closed its socket")

    def _said(self, bound: Bound, worker: Living, message: inner.Up) -> None:
        match message:
            case inner.Message(data=data):
                self._tell(api.Heard(bound.sandbox, bound.generation, data))
            case inner.Logged(words=words):
                log.warning("worker of %s: %s", bound.sandbox, words)
            case inner.Applied(generation=generation, words=words):
                if words:
                    log.warning("policy %d of %s cannot be read, nothing is allowed: %s", generation, bound.sandbox, words)
                if generation == bound.policy_generation:
                    bound.refused = bound.refused or words
                told = [one for one in worker.waiting if one[0] <= generation]
                worker.waiting = [one for one in worker.waiting if one[0] > generation]
                for _, _, tell in told:
                    tell(words)

    def _died(self, bound: Bound, worker: Living) -> None:
        found = os.waitid(os.P_PIDFD, worker.pidfd, os.WEXITED | os.WNOHANG)
        if found is None:
            return
        with suppress(BlockingIOError):  # its last words
            for _ in range(_BURST):
                got = receive_with(worker.channel, inner.MOST, 0)
                if got is None:
                    break
                with suppress(inner.InnerRefused):
                    self._said(bound, worker, inner.from_worker(got[0]))
        self._unwatch(worker.channel.fileno())
        self._unwatch(worker.pidfd)
        worker.channel.close()
        os.close(worker.pidfd)
        bound.worker = None
        asked_by_node = bound.ending
        crashed = not asked_by_node and (bool(worker.asked) or found.si_code != os.CLD_EXITED or found.si_status != 0)
        detail = worker.asked or _ending(found)
        if crashed:
            log.warning("the worker of %s (pid %d) is gone: %s", bound.sandbox, worker.pid, detail)
        self._tell(api.WorkerEnded(bound.sandbox, bound.generation, crashed, detail))
        for _, _, tell in worker.waiting:
            tell("")  # the next worker begins with that policy
        if bound.ending:
            self._gone(bound)
            return
        now = self._clock()
        if crashed:
            self._at(bound.crashed(now, now - worker.began), partial(self._rested, bound))
        else:
            bound.crashes = 0
            self._listen(bound)


def _ending(found: os.waitid_result) -> str:
    if found.si_code == os.CLD_EXITED:
        return "idle" if found.si_status == 0 else f"ended with status {found.si_status}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(found.si_status).name}"
    return f"ended by signal {found.si_status}"
