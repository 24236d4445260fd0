"""The zygote without privileges: its workers are processes that sleep, and what they would say is said by the test."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway import inner
from space.gateway.bindings import Bound
from space.gateway.zygote import Zygote
from space.rpc import gateway_api as api
from space.rpc.asking import Refused
from space.rpc.gateway_client import make_memory, make_policy
from space.rpc.packets import send_with

ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20
ANSWERS = msgspec.msgpack.Decoder(api.Answer | api.Unasked)


class Sleepers:
    """A starter whose workers do nothing; `channels` are their ends. full: none can be forked."""

    def __init__(self) -> None:
        self.full = False
        self.tried = 0
        self.channels: list[socket.socket] = []
        self.pids: list[int] = []
        self.policies: list[int] = []
        self.signals: list[int] = []
        self.ignored: set[int] = set()

    def start(self, bound: Bound, channel: int) -> int:
        self.tried += 1
        if self.full:
            raise BlockingIOError(11, "no process can be made")
        self.channels.append(socket.socket(fileno=os.dup(channel)))
        self.channels[-1].setblocking(False)
        self.policies.append(bound.policy_generation)
        self.pids.append(os.posix_spawn("/bin/sleep", ["sleep", "60"], {}))
        return self.pids[-1]

    def signal(self, _: Bound, pidfd: int, number: int) -> None:
        self.signals.append(number)
        if number not in self.ignored:
            signal.pidfd_send_signal(pidfd, number)


class Lab:
    """A zygote that goes on when the test says so, and one who asks it."""

    def __init__(self, directory: Path) -> None:
        self.now = 100.0
        self.starter = Sleepers()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(directory / "gateway.sock"))
        listener.listen(8)
        self.listener = listener
        self.path = str(directory / "gateway.sock")
        self.zygote = Zygote(listener, {os.geteuid()}, self.starter, lambda: self.now)
        self.peer = self.connect()
        self.number = 0
        self.unasked: list[api.Unasked] = []
        self.guests: list[socket.socket] = []
        self.answers: list[object] = []

    def connect(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.connect(self.path)
        peer.setblocking(False)
        self.go()
        return peer

    def go(self, steps: int = 4) -> None:
        for _ in range(steps):
            self.zygote.step(0.01)

    def until(self, what: Callable[[], object]) -> None:
        for _ in range(500):
            self.go(1)
            if (answer := self.drain()) is not None:
                self.answers.append(answer)
            if what():
                return
        raise AssertionError("it does not come about")

    def ask(self, kind: type[api.ToControl], *fields: object, descriptors: list[int] | None = None) -> object:
        self.number += 1
        send_with(self.peer, api.encode(kind(self.number, *fields)), descriptors or [])  # type: ignore[arg-type]
        for _ in range(500):
            self.go(1)
            found = self.drain()
            if found is not None:
                return found
        raise AssertionError("no answer")

    def drain(self) -> object:
        """An answer, if there is one; what comes unasked is kept."""
        while True:
            try:
                message = ANSWERS.decode(self.peer.recv(1 << 16))
            except BlockingIOError:
                return None
            if isinstance(message, api.WorkerStarted | api.WorkerEnded | api.Heard):
                self.unasked.append(message)
            else:
                return message

    def bind(self, sandbox: str = ONE, generation: int = 1, slot: int = 0) -> object:
        with contextlib.ExitStack() as stack:
            listener, tcp = socket.socket(), socket.socket()
            udp = socket.socket(type=socket.SOCK_DGRAM)
            for one in (listener, tcp, udp):
                stack.enter_context(one)
                one.bind(("127.0.0.1", 0))
                one.setblocking(False)
            listener.listen(8)
            tcp.listen(8)
            address = listener.getsockname()
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
            for pair in pairs:
                for end in pair:
                    stack.callback(end.close)
            memory, cgroup = make_memory(), os.open("/tmp", os.O_TMPFILE | os.O_WRONLY)
            stack.callback(os.close, memory)
            stack.callback(os.close, cgroup)
            held = [listener.fileno(), udp.fileno(), tcp.fileno(), *[ours.fileno() for ours, _ in pairs], memory, cgroup]
            answer = self.ask(api.Bind, sandbox, generation, slot, "198.18.0.0/15", descriptors=held)
            if isinstance(answer, api.Done):
                self.address = address
            return answer

    def knock(self) -> None:
        """Something comes to the listener that was bound last."""
        guest = socket.socket()
        guest.setblocking(False)
        guest.connect_ex(self.address)
        self.guests.append(guest)
        self.go()
        self.drain()

    def policy(self, generation: int = 1, document: bytes = b"x", sandbox: str = ONE) -> None:
        memfd = make_policy(document)
        self.number += 1
        send_with(self.peer, api.encode(api.SetPolicy(self.number, sandbox, 1, generation)), [memfd])
        os.close(memfd)
        self.go()

    def ended(self) -> list[tuple[bool, str]]:
        return [(one.crashed, one.detail) for one in self.unasked if isinstance(one, api.WorkerEnded)]

    def tried(self, channel: socket.socket, message: bytes) -> bool:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            channel.send(message)
        return bool(self.ended())

    def has_ended(self, times: int) -> bool:
        return len(self.ended()) == times

    def close(self) -> None:
        for one in (*self.starter.channels, *self.guests, self.peer, self.listener):
            one.close()
        for pid in self.starter.pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


def descriptors() -> list[str]:
    gc.collect()  # those of earlier tests are nobody's
    return sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


def test_one_worker_is_forked_when_something_waits_and_not_before(lab: Lab) -> None:
    assert isinstance(lab.bind(), api.Done)
    lab.go()
    assert lab.starter.pids == []
    for _ in range(3):
        lab.knock()
    assert len(lab.starter.pids) == 1
    standing = lab.ask(api.Describe)
    assert isinstance(standing, api.Standing)
    assert [(one.sandbox, one.slot, one.worker_pid) for one in standing.bindings] == [(ONE, 0, lab.starter.pids[0])]


def test_worker_that_crashes_again_and_again_rests_longer_and_longer(lab: Lab) -> None:
    lab.bind()
    lab.knock()
    waited = []
    for crash in range(1, 9):
        os.kill(lab.starter.pids[-1], signal.SIGKILL)
        lab.until(partial(lab.has_ended, crash))
        began = lab.now
        while len(lab.starter.pids) == crash:
            lab.now += 0.05
            lab.go(1)
            assert lab.now < began + 11
        waited.append(lab.now - began)
    assert waited == sorted(waited)
    assert 0.05 <= waited[0] <= 0.2
    assert 9.5 <= waited[-1] <= 10.1
    assert set(lab.ended()) == {(True, "ended by SIGKILL")}


def test_where_no_worker_can_be_forked_it_is_tried_again_after_a_rest_and_not_all_the_time(lab: Lab) -> None:
    lab.bind()
    lab.starter.full = True
    lab.knock()
    lab.go(20)
    assert lab.starter.tried == 1
    lab.now += 0.15
    lab.go(20)
    assert lab.starter.tried == 2
    lab.starter.full = False
    lab.now += 0.25
    lab.until(lambda: lab.starter.pids)


def test_worker_that_floods_is_heard_at_a_rate_and_one_that_says_nothing_sensible_is_killed(lab: Lab) -> None:
    lab.bind()
    lab.knock()
    channel = lab.starter.channels[0]
    sent = 0
    for _ in range(40):
        with contextlib.suppress(BlockingIOError):
            for _ in range(100):
                channel.send(inner.encode(inner.Message(b"hello")))
                sent += 1
        lab.go()
        lab.drain()
    heard = sum(isinstance(one, api.Heard) for one in lab.unasked)
    assert sent > heard
    assert 400 <= heard <= 410
    lab.now += 1.0
    lab.until(lambda: sum(isinstance(one, api.Heard) for one in lab.unasked) > heard)
    lab.now += 10
    lab.until(partial(lab.tried, channel, b"?"))
    assert lab.ended() == [(True, "b'?' is nothing that a worker says")]


def test_policy_is_done_when_the_worker_says_so_and_a_worker_that_does_not_is_killed_after_a_second(lab: Lab) -> None:
    lab.bind()
    lab.policy(1)
    assert isinstance(lab.drain(), api.Done), "nobody lives who would have to hold it"
    lab.knock()
    lab.policy(2)
    assert lab.drain() is None
    message, held, _, _ = socket.recv_fds(lab.starter.channels[0], 64, 1)
    assert (inner.from_zygote(message), os.pread(held[0], 10, 0)) == (inner.Policy(2), b"x")
    os.close(held[0])
    lab.starter.channels[0].send(inner.encode(inner.Applied(2, "")))
    lab.go()
    assert isinstance(lab.drain(), api.Done)
    lab.policy(3)
    lab.starter.channels[0].send(inner.encode(inner.Applied(3, "no JSON")))
    lab.go()
    refused = lab.drain()
    assert isinstance(refused, Refused)
    assert "nothing is allowed: no JSON" in refused.message
    lab.policy(4)
    lab.now += 0.9
    lab.go()
    assert lab.drain() is None
    lab.now += 0.2
    lab.until(lambda: lab.ended() and lab.answers)
    assert isinstance(lab.answers.pop(), api.Done)
    assert lab.ended() == [(True, "its policy was not applied within 1 s")]
    lab.now += 1
    lab.until(lambda: len(lab.starter.pids) == 2)
    assert lab.starter.policies == [1, 4]


def test_policy_that_could_still_be_changed_is_refused_and_what_was_held_is_held_no_more(lab: Lab) -> None:
    lab.bind()
    lab.policy(1)
    assert isinstance(lab.drain(), api.Done)
    memfd = os.memfd_create("policy", os.MFD_ALLOW_SEALING)
    os.write(memfd, b"x")
    refused = lab.ask(api.SetPolicy, ONE, 1, 2, descriptors=[memfd])
    assert isinstance(refused, Refused)
    assert refused.code == "invalid_argument"
    assert isinstance(lab.ask(api.SetPolicy, ONE, 1, 2), Refused), "none at all"
    os.close(memfd)
    standing = lab.ask(api.Describe)
    assert isinstance(standing, api.Standing)
    assert standing.bindings[0].policy_generation == 2
    assert standing.bindings[0].refused
    earlier = lab.ask(api.SetPolicy, ONE, 1, 1)
    assert isinstance(earlier, Refused)
    assert earlier.code == "conflict"


def test_a_stranger_is_not_heard(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        listener.bind(str(tmp_path / "gateway.sock"))
        listener.listen(1)
        zygote = Zygote(listener, {os.geteuid() + 1}, Sleepers())
        peer.connect(str(tmp_path / "gateway.sock"))
        peer.settimeout(2)
        zygote.step(1.0)
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            peer.send(api.encode(api.Describe(1)))
            assert peer.recv(100) == b""


def test_slot_and_life_have_one_holder(lab: Lab) -> None:
    lab.bind(ONE, 2, 0)
    for wrong in (lab.bind(OTHER, 1, 0), lab.bind(ONE, 1, 0), lab.bind(ONE, 1, 5)):
        assert isinstance(wrong, Refused)
        assert wrong.code == "conflict"
    lab.knock()
    assert isinstance(lab.bind(ONE, 3, 1), api.Done), "a later life, once the earlier one's worker is dead"
    with pytest.raises(ChildProcessError):
        os.waitpid(lab.starter.pids[0], 0)
    assert isinstance(lab.bind(OTHER, 1, 0), api.Done), "the slot is free"
    standing = lab.ask(api.Describe)
    assert isinstance(standing, api.Standing)
    assert [(one.sandbox, one.generation, one.slot) for one in standing.bindings] == [(OTHER, 1, 0), (ONE, 3, 1)]


@pytest.mark.parametrize("wrong", range(8))
def test_bind_takes_nothing_but_what_belongs_there_and_keeps_nothing_of_the_rest(lab: Lab, wrong: int) -> None:
    before = descriptors()
    with contextlib.ExitStack() as stack:
        tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        stack.enter_context(tcp)
        stack.enter_context(udp)
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(1)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        stack.callback(theirs.close)
        memory, null, unsealed = make_memory(), os.open("/dev/null", os.O_RDONLY), os.memfd_create("m")
        file = os.open("/tmp", os.O_TMPFILE | os.O_WRONLY)
        for one in (memory, null, unsealed, file):
            stack.callback(os.close, one)
        channel = ours.fileno()
        held = [tcp.fileno(), udp.fileno(), tcp.fileno(), channel, channel, channel, memory, file]
        bad = [udp.fileno(), tcp.fileno(), null, tcp.fileno(), unsealed, null, unsealed, null]
        refused = lab.ask(api.Bind, ONE, 1, 0, "198.18.0.0/15", descriptors=[*held[:wrong], bad[wrong], *held[wrong + 1 :]])
        assert isinstance(refused, Refused)
        assert refused.code == "invalid_argument"
        assert isinstance(lab.ask(api.Bind, ONE, 1, 0, "198.18.0.0/15", descriptors=held[:wrong]), Refused)
    assert descriptors() == before


def test_whoever_sends_what_is_no_question_is_hung_up_on_and_what_came_beside_it_is_closed(lab: Lab) -> None:
    before = descriptors()
    peer = lab.connect()
    null = os.open("/dev/null", os.O_RDONLY)
    send_with(peer, b"\xc1", [null] * 5)
    os.close(null)
    lab.go()
    assert peer.recv(10) == b""
    peer.close()
    assert descriptors() == before
    assert isinstance(lab.ask(api.Describe), api.Standing)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_and_happens_nothing_is_left_once_every_life_has_ended(lab: Lab, seed: int) -> None:
    draw = random.Random(seed)
    before = descriptors()
    for _ in range(60):
        sandbox, generation, slot = draw.choice([ONE, OTHER]), draw.randint(1, 3), draw.randint(0, 2)
        what = draw.randrange(7)
        if what < 2:
            lab.bind(sandbox, generation, slot)
        elif what == 2:
            lab.policy(draw.randint(1, 50), sandbox=sandbox)
        elif what == 3 and hasattr(lab, "address"):
            lab.knock()
        elif what == 4 and lab.starter.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(lab.starter.pids[-1], signal.SIGKILL)
        elif what == 5:
            lab.ask(api.End, sandbox, generation)
        lab.now += draw.random()
        lab.go(2)
        lab.drain()
    for generation in (1, 2, 3):
        for sandbox in (ONE, OTHER):
            lab.ask(api.End, sandbox, generation)
    lab.until(lambda: not getattr(lab.ask(api.Describe), "bindings", [1]))
    for one in (*lab.starter.channels, *lab.guests):
        one.close()
    assert descriptors() == before
    for pid in lab.starter.pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


@given(
    st.binary(max_size=60)
    | st.builds(lambda kind, rest: kind + rest, st.sampled_from([b"A", b"M", b"L", b"P", b"R"]), st.binary(max_size=1200))
)
def test_what_zygote_and_worker_say_is_a_message_or_refused(data: bytes) -> None:
    for take in (inner.from_worker, inner.from_zygote):
        with contextlib.suppress(inner.InnerRefused):
            message = take(data)
            assert take(inner.encode(message)) == message
            if isinstance(message, inner.Logged | inner.Applied):
                assert message.words.isprintable()
