"""A worker as a process: forked by the zygote, it becomes harmless first, and only then reads.

    cgroup -> every other descriptor closed -> uid -> no capability, no dumping, dies with the zygote -> limits -> seccomp -> the first byte

It holds its sandbox's three listeners, a socket each to signer, audit, dialer and zygote, and memory that outlives it; no file. It ends by
itself when nothing has come for a while: what comes then waits in the listeners, which the zygote watches again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import mmap
import os
import resource
import signal
import socket
import time
import traceback
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import NoReturn

import uvloop

from space.core.policy.kept import SIZE, Kept
from space.core.rates import Bucket
from space.gateway import filters, inner
from space.gateway.dnsserver import Responder, TcpServer, serve_tcp, serve_udp
from space.gateway.outside import Outside
from space.gateway.surroundings import Limits
from space.gateway.worker import Worker
from space.host import syscalls

log = logging.getLogger("space.gateway")

IDLE_SECONDS = 30.0
OPEN_FILES = 2048  # connections and their upstreams, and some
DATA_BYTES = 320 << 20  # private memory, the zygote's share of it included; its cgroup holds it shorter
_LEAVING = 0.16  # less than the zygote waits
_ACCEPTS = 16  # at a wake-up
_BREATH = 0.1  # before accepting again where there is no room for a descriptor


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker begins with. uid: also its gid. zygote: its end of their socket. cgroups: files to write 0 to. policy: None: none."""

    sandbox: str
    uid: int
    synthetic: str
    roots: str
    zygote: int
    listener: int
    dns: int
    dns_tcp: int
    signer: int
    audit: int
    dialer: int
    memory: int
    cgroups: tuple[int, ...]
    policy: int | None
    policy_generation: int


def become(start: Start, parent: int) -> NoReturn:
    """In the child of a fork, of which nobody else's code runs on. parent: the zygote's pid."""
    status = 1
    try:
        _confine(start, parent)
        run(start)
        status = 0
    except BaseException as error:  # noqa: BLE001 - the zygote's code must not run on here
        words = f"cannot serve: {type(error).__name__}: {error} ({_where(error)})"
        try:
            os.write(start.zygote, inner.encode(inner.Logged(words)))
        except OSError:
            status = 2
    finally:
        os._exit(status)


def _where(error: BaseException) -> str:
    """The innermost places, without reading a source."""
    found = [f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return " ".join(found[-4:])


def _confine(start: Start, parent: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in start.cgroups:
        os.write(descriptor, b"0")
    _close_all_but(start)
    os.setgroups([])
    os.setresgid(start.uid, start.uid, start.uid)
    os.setresuid(start.uid, start.uid, start.uid)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    # After the change of identity, which forgets both.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise RuntimeError("the zygote has ended")
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_DATA, DATA_BYTES),
    ):
        resource.setrlimit(kind, (most, most))


def _close_all_but(start: Start) -> None:
    """Standard input stays, which is /dev/null, and stands for output and errors too: what a library writes there goes nowhere."""
    os.dup2(0, 1)
    os.dup2(0, 2)
    means = (start.zygote, start.listener, start.dns, start.dns_tcp, start.signer, start.audit, start.dialer, start.memory)
    kept = sorted({0, 1, 2, *means, *(() if start.policy is None else (start.policy,))})
    for left, right in zip(kept, [*kept[1:], resource.getrlimit(resource.RLIMIT_NOFILE)[1]], strict=True):
        os.closerange(left + 1, right)


def run(start: Start) -> None:
    """Serve until it is idle. The process is confined but for its filter, which comes as the first thing within the loop."""
    memory = Kept(memoryview(mmap.mmap(start.memory, SIZE)))
    os.close(start.memory)
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve(start, memory))


async def _serve(start: Start, memory: Kept) -> None:
    syscalls.load_filter(filters.worker())
    gc.enable()
    served = Served(start, memory)
    await served.begin()
    await served.ended


class Served:
    """One sandbox's worker and what it stands on. ended: done when it has nothing to do any more."""

    def __init__(self, start: Start, memory: Kept) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._start = start
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = time.monotonic()
        self._tidied = self._last
        self._listener = socket.socket(fileno=start.listener)
        self._dns_tcp: TcpServer | None = None
        self.outside = Outside(start.sandbox, socket.socket(fileno=start.zygote), start.roots, self._changed, self._unrecorded)
        _log_through(self.outside)
        words = self.outside.take_policy(start.policy_generation, start.policy)
        if start.policy is not None:
            os.close(start.policy)
        self.outside.up(inner.Applied(start.policy_generation, words))
        whats: tuple[tuple[inner.What, int], ...] = (("signer", start.signer), ("audit", start.audit), ("dialer", start.dialer))
        for what, descriptor in whats:
            self.outside.replace(what, socket.socket(fileno=descriptor))
        self.worker = Worker(self.outside.surroundings(IPv4Network(start.synthetic), memory, Limits()))
        self.outside.now = lambda: (self.worker.shared.counts.connections, self.worker.shared.counts.upstreams)

    async def begin(self) -> None:
        """Listen."""
        answering = _Noticing(self.worker.responder, self)
        await serve_udp(answering, socket.socket(fileno=self._start.dns))
        dns_tcp = socket.socket(fileno=self._start.dns_tcp)
        self._dns_tcp = await serve_tcp(answering, dns_tcp, self.worker.shared.around)
        self._loop.add_signal_handler(signal.SIGTERM, self._end)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self._loop.call_later(IDLE_SECONDS / 6, self._look)

    def noticed(self) -> None:
        """Something came."""
        self._last = time.monotonic()

    def _accept(self) -> None:
        self.noticed()
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor, or no memory, for it: it waits where it is
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_BREATH, self._loop.add_reader, self._listener, self._accept)
                return
            task = self._loop.create_task(self.worker.accept(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _look(self) -> None:
        """Whether it is time to end. Nothing is accepted between this look and the end: what comes waits in the kernel."""
        if len(self.worker) or self._tasks or (self._dns_tcp is not None and len(self._dns_tcp)):
            self.noticed()
        if self._last != self._tidied:
            self._tidied = self._last
            gc.collect()
            syscalls.trim_heap()  # what connections have used is not kept for the next ones
        if time.monotonic() - self._last < IDLE_SECONDS:
            self._loop.call_later(IDLE_SECONDS / 6, self._look)
            return
        self._end()

    def _end(self) -> None:
        """Nothing is under way, or we were asked to: what was is cut, and told."""
        self.worker.close()
        self._leave(time.monotonic() + _LEAVING)

    def _leave(self, latest: float) -> None:
        """Once every connection has told how it ended, which takes a turn or two of the loop."""
        if len(self.worker) and time.monotonic() < latest:
            self._loop.call_later(_LEAVING / 32, self._leave, latest)
            return
        self.outside.flush()
        os._exit(0)

    def _changed(self) -> None:
        self.worker.changed()

    def _unrecorded(self, error: Exception) -> None:
        self.worker.fail(error)


class _Noticing(Responder):
    """Answers as another does, and says that something came."""

    def __init__(self, responder: Responder, served: Served) -> None:
        self._responder = responder
        self._served = served

    def answer(self, message: bytes, *, udp: bool = True) -> bytes | None:
        self._served.noticed()
        return self._responder.answer(message, udp=udp)


class _ToZygote(logging.Handler):
    """A worker has no log of its own: some lines of it go into the zygote's."""

    def __init__(self, outside: Outside) -> None:
        super().__init__()
        self._outside = outside
        self._rate = Bucket(2.0, 20)

    def emit(self, record: logging.LogRecord) -> None:
        if self._rate.take(time.monotonic()):
            self._outside.up(inner.Logged(f"{record.levelname} {self.format(record)}".replace("\n", " | ")))


def _log_through(outside: Outside) -> None:
    root = logging.getLogger()
    root.handlers[:] = [_ToZygote(outside)]
