"""Keep the services running until told to stop: one thread, one selector, no timers but the restarts that are due.

    absent --start--> starting --its pipe says ready--> ready --pidfd--> absent (restart after a back-off)

A service that dies is restarted on the same listener, which stays open here: whoever connects meanwhile waits and is not
refused. Orphans that end up here (this process is a subreaper) are reaped and otherwise ignored.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.model.errors import SpaceError, Unavailable
from space.serve.service import Command, Process, Role, ended, log_tail, start, stop

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
HEALTHY_AFTER = 60.0
READY_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a service died of late. `after` decides when it is started again."""

    deaths: int = 0

    def after(self, lived: float) -> tuple[Backoff, float]:
        """The state and the delay (seconds) after a death at the age of `lived` seconds."""
        deaths = 1 if lived >= HEALTHY_AFTER else self.deaths + 1
        return Backoff(deaths), min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(deaths - 1, 16))


@dataclass(slots=True)
class _Post:
    """A role and what fills it now."""

    role: Role
    process: Process | None = None
    since: float = 0.0
    backoff: Backoff = Backoff()
    due: float | None = None
    ready: bool = False
    note: bytes = b""


class Supervisor:
    """Owns the services of one instance.

    `changed` is told the running processes before a new one does anything; `say` gets sentences; `tls` gives a role's certificate and
    key, `also` the second listeners.
    """

    def __init__(
        self,
        roles: Iterable[Role],
        *,
        command: Command,
        listeners: Mapping[str, socket.socket],
        log: Callable[[str], Path],
        changed: Callable[[Sequence[Process]], None],
        say: Callable[[str], None],
        tls: Callable[[str], bytes | None] = lambda _: None,
        also: Mapping[str, socket.socket] | None = None,
    ) -> None:
        self._posts = {role.name: _Post(role) for role in roles}
        self._command, self._listeners, self._log = command, listeners, log
        self._changed, self._say, self._tls = changed, say, tls
        self._also = also or {}
        self._statuses: dict[int, int] = {}
        self._why_stop: str | None = None
        self._running = False
        self._selector = selectors.DefaultSelector()
        self._signals, self._wakeup = socket.socketpair()
        for end in (self._signals, self._wakeup):
            end.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signal)

    def stop_at_hangup(self, descriptor: int, why: str) -> None:
        """Stop when the other end of `descriptor` (a socket or pipe) is closed, for the reason `why`."""
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._on_hangup(descriptor, why))

    def adopt(self, process: Process) -> None:
        """Take over a service that an earlier serve started."""
        post = self._posts[process.role.name]
        post.process, post.since, post.ready = process, time.monotonic(), True
        self._watch(post, process)

    def start_missing(self) -> bool:
        """Start every role that nobody fills, all at once, and wait until they are ready; False when told to stop meanwhile.

        Unavailable, with the end of its log, when one dies on the way or takes longer than a minute.
        """
        deadline = time.monotonic() + READY_WITHIN
        for post in self._posts.values():
            if post.process is None:
                self._start(post)
        while waiting := [post for post in self._posts.values() if not post.ready]:
            for post in waiting:
                if post.process is None or time.monotonic() > deadline:
                    what = "ended" if post.process is None else f"was not ready within {READY_WITHIN:g} s"
                    tail = log_tail(self._log(post.role.name))
                    raise Unavailable(f"{post.role.name} {what} while it started: {tail or 'it wrote nothing'}")
            self._turn(deadline - time.monotonic())
            if self._why_stop is not None:
                return False
        return True

    def run(self) -> str:
        """Watch and restart until a signal or a hang-up; why it is time to stop."""
        self._running = True
        while self._why_stop is None:
            now = time.monotonic()
            for post in self._posts.values():
                if post.due is not None and post.due <= now:
                    self._restart(post)
            dues = [post.due for post in self._posts.values() if post.due is not None]
            self._turn(max(0.0, min(dues) - now) if dues else None)
        return self._why_stop

    def note(self, role: str) -> str:
        """What the service wrote on its ready pipe."""
        return self._posts[role].note.decode(errors="replace").strip()

    def tell(self, role: str, number: signal.Signals, seconds: float) -> bool:
        """Send a service a signal that ends it, and wait; whether it ended in time. False when there is none."""
        post = self._posts[role]
        if post.process is None or not post.ready:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(post.process.pidfd, number)
        if not ended(post.process, seconds):
            return False
        self._forget(post)
        self._reap()
        return True

    def stop_all(self) -> None:
        """End the services, the last of the roles first; returns when each is dead and reaped."""
        for post in reversed(self._posts.values()):
            post.due = None
            if (process := post.process) is not None:
                how = stop(process)
                self._forget(post)
                if how != "stopped":
                    self._say(f"{post.role.name} (pid {process.pid}) {how}")
        self._reap()

    def close(self) -> None:
        """Let go of everything without ending a service; idempotent."""
        for post in self._posts.values():
            if post.process is not None:
                self._forget(post)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._signals.close()
        self._wakeup.close()

    # -- one turn of the loop ------------------------------------------------------------------------------------
    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()

    def _start(self, post: _Post) -> None:
        post.due, post.ready, post.note, post.since = None, False, b"", time.monotonic()
        name = post.role.name

        def record(process: Process) -> None:
            others = [other.process for other in self._posts.values() if other.process is not None]
            self._changed([*others, process])

        listener, also = self._listeners[name], self._also.get(name)
        post.process = process = start(post.role, self._command, listener, self._log(name), record, also=also, tls=self._tls(name))
        self._watch(post, process)

    def _restart(self, post: _Post) -> None:
        try:
            self._start(post)
        except (OSError, SpaceError) as error:  # no processes, no memory, a key that went away: a death like any other
            post.backoff, delay = post.backoff.after(0)
            post.due = time.monotonic() + delay
            self._say(f"{post.role.name} cannot be started: {error}; again in {delay:g} s")

    def _watch(self, post: _Post, process: Process) -> None:
        self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._on_death(post, process))
        if process.ready is not None:
            self._selector.register(process.ready, selectors.EVENT_READ, lambda: self._on_ready(post, process))

    def _forget(self, post: _Post) -> None:
        process, post.process, post.ready = post.process, None, False
        if process is not None:
            for descriptor in (process.pidfd, process.ready):
                if descriptor is not None:
                    self._selector.unregister(descriptor)
            process.close()

    def _on_ready(self, post: _Post, process: Process) -> None:
        if process.ready is None or post.process is not process:
            return
        data = os.read(process.ready, 512)
        post.note += data
        if not data:  # it died; the pidfd says the same, and knows more
            self._selector.unregister(process.ready)
            os.close(process.ready)
            process.ready = None
        elif not post.ready:
            post.ready = True
            if post.backoff.deaths:
                self._say(f"{post.role.name} runs again (pid {process.pid})")

    def _on_death(self, post: _Post, process: Process) -> None:
        if post.process is not process:
            return
        self._reap()
        status = self._statuses.pop(process.pid, None)
        post.backoff, delay = post.backoff.after(time.monotonic() - post.since)
        post.due = time.monotonic() + delay
        self._forget(post)
        again = f"; it is started again in {delay:g} s" if self._running else ""
        self._say(f"{post.role.name} (pid {process.pid}) {_how(status)}{again}")

    def _on_signal(self) -> None:
        for number in self._signals.recv(512):
            if number == signal.SIGCHLD:
                self._reap()
            elif self._why_stop is None:
                self._why_stop = signal.Signals(number).name

    def _on_hangup(self, descriptor: int, why: str) -> None:
        if not os.read(descriptor, 512):
            self._selector.unregister(descriptor)
            self._why_stop = self._why_stop or why

    def _reap(self) -> None:
        ours = {post.process.pid for post in self._posts.values() if post.process is not None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in ours:
                self._statuses[pid] = status


def _how(status: int | None) -> str:
    if status is None:  # adopted: its parent was an earlier serve
        return "ended"
    code = os.waitstatus_to_exitcode(status)
    return f"ended with status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
