"""Services are restarted on the same listener, stopped in order, and adopted by the next supervisor."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from space.config.instance import Instance
from space.config.settings import Settings
from space.model.errors import Unavailable
from space.serve import kernel, layout, records
from space.serve.service import LISTEN_FD, Command, Process, Role
from space.serve.supervisor import FIRST_DELAY, HEALTHY_AFTER, LONGEST_DELAY, Backoff, Supervisor

Commands = Callable[..., Command]
Ask = Callable[[Path | tuple[str, int]], dict[str, object]]


class Run:
    """A supervisor with its listeners, and what it said."""

    def __init__(self, instance: Instance, command: Command) -> None:
        self.instance = instance
        self.said: list[str] = []
        self.running: list[Process] = []
        self.roles = [Role("rootd", 0, 5), Role("node", instance.node_uid, 5), Role("control", instance.control_uid, 5)]
        self.command = command

    @contextmanager
    def supervised(self, listeners: dict[str, socket.socket]) -> Iterator[Supervisor]:
        supervisor = Supervisor(
            self.roles,
            command=self.command,
            listeners=listeners,
            log=lambda role: self.instance.log / f"{role}.log",
            changed=self._changed,
            say=self.said.append,
        )
        try:
            yield supervisor
        finally:
            supervisor.stop_all()
            supervisor.close()

    def _changed(self, running: Sequence[Process]) -> None:
        self.running = list(running)

    def pid(self, role: str) -> int:
        return next(process.pid for process in self.running if process.role.name == role)


@pytest.fixture
def listeners(instance: Instance) -> Iterator[dict[str, socket.socket]]:
    with ExitStack() as stack:
        yield {role: stack.enter_context(layout.listen(instance, role, Settings(port=0))) for role in ("rootd", "node", "control")}


def during(supervisor: Supervisor, action: Callable[[], None]) -> str:
    """Run the supervisor's loop, `action` in a thread beside it, and stop when that is done."""
    failure: list[BaseException] = []

    def body() -> None:
        try:
            action()
        except BaseException as error:
            failure.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=body)
    thread.start()
    why = supervisor.run()
    thread.join()
    if failure:
        raise failure[0]
    return why


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is dead: a dying process may still accept."""
    held = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([held], [], [], 10)[0]
    os.close(held)


def test_back_off_doubles_to_a_limit_and_a_minute_of_health_resets_it() -> None:
    state, delays = Backoff(), []
    for _ in range(9):
        state, delay = state.after(lived=1)
        delays.append(delay)
    assert delays == [min(LONGEST_DELAY, FIRST_DELAY * 2**n) for n in range(9)]
    assert delays[-1] == LONGEST_DELAY
    assert state.after(lived=HEALTHY_AFTER) == (Backoff(1), FIRST_DELAY)


def test_a_killed_service_comes_back_on_its_listener_and_nobody_is_refused(
    instance: Instance, listeners: dict[str, socket.socket], command: Commands, ask: Ask
) -> None:
    run = Run(instance, command())
    address = listeners["control"].getsockname()
    with run.supervised(listeners) as supervisor:
        assert supervisor.start_missing()
        assert supervisor.note("node") == "isolation of node"

        def kill_each() -> None:
            for role, place in (("rootd", instance.rootd_socket), ("node", instance.node_socket), ("control", address)):
                before = ask(place)
                assert before["pid"] == run.pid(role)
                kill(run.pid(role))
                after = ask(place)  # waits in the backlog until the next one accepts
                assert after["pid"] != before["pid"]
                assert after["uids"] == before["uids"]

        assert during(supervisor, kill_each) == "SIGTERM"
    assert [line for line in run.said if "SIGKILL" in line] == [
        line for line in run.said if line.endswith("was ended by SIGKILL; it is started again in 0.1 s")
    ]
    assert sum("SIGKILL" in line for line in run.said) == 3


def test_the_first_start_fails_with_the_services_own_words(
    instance: Instance, listeners: dict[str, socket.socket], command: Commands
) -> None:
    run = Run(instance, command({"node": "dies at once"}))
    with run.supervised(listeners) as supervisor, pytest.raises(Unavailable, match="node ended while it started: no such luck"):
        supervisor.start_missing()


def test_orphans_are_reaped(instance: Instance, listeners: dict[str, socket.socket], command: Commands) -> None:
    run = Run(instance, command())
    with run.supervised(listeners) as supervisor:
        assert supervisor.start_missing()
        orphan = os.fork()  # a child that is none of the services, as an orphan of a subreaper becomes one
        if orphan == 0:
            os._exit(0)
        held = os.pidfd_open(orphan)

        def wait_until_reaped() -> None:
            with suppress(ProcessLookupError):
                while True:  # a zombie can be signalled, one that was reaped cannot
                    signal.pidfd_send_signal(held, 0)
                    time.sleep(0.005)

        during(supervisor, wait_until_reaped)
        os.close(held)


def test_the_next_supervisor_adopts_what_runs_and_replaces_it_when_it_dies(
    instance: Instance, listeners: dict[str, socket.socket], command: Commands, ask: Ask
) -> None:
    first = Run(instance, command())
    supervisor = Supervisor(
        first.roles, command=first.command, listeners=listeners, log=lambda role: instance.log / f"{role}.log",
        changed=first._changed, say=first.said.append,
    )  # fmt: skip
    assert supervisor.start_missing()
    left = [records.Record(each.role.name, each.pid, each.started, kernel.boot_id(), "b") for each in first.running]
    supervisor.close()  # as its death would: the services go on
    address = listeners["control"].getsockname()
    for listener in listeners.values():
        listener.close()

    second = Run(instance, command())
    found = [records.attach(record, role) for record, role in zip(left, second.roles, strict=True)]
    adopted = [process for process in found if process is not None]
    assert len(adopted) == 3
    taken = {process.role.name: socket.socket(fileno=kernel.fetch_descriptor(process.pidfd, LISTEN_FD)) for process in adopted}
    assert taken["control"].getsockname() == address
    with ExitStack() as stack:
        for listener in taken.values():
            stack.enter_context(listener)
        with second.supervised(taken) as again:
            for process in adopted:
                again.adopt(process)
            assert again.start_missing()
            assert second.running == []  # nothing had to be started

            def kill_one() -> None:
                before = ask(address)
                assert before["pid"] == adopted[2].pid
                kill(adopted[2].pid)
                assert ask(address)["pid"] != before["pid"]

            during(again, kill_one)


def test_a_hang_up_of_the_owner_is_a_reason_to_stop(instance: Instance, listeners: dict[str, socket.socket], command: Commands) -> None:
    run = Run(instance, command())
    ours, theirs = socket.socketpair()
    with run.supervised(listeners) as supervisor, theirs:
        supervisor.stop_at_hangup(theirs.fileno(), "the owner is gone")
        assert supervisor.start_missing()
        ours.close()
        assert supervisor.run() == "the owner is gone"
