"""One service process: what it is, how it is started under its uid, how it is stopped.

A service is `<python> -I -m space.<package>.server --instance NAME --listen-fd N --ready-fd N`. It inherits its listener, a
pipe on which it says that it is ready, its log; control and the ingress a second listener (`--also-fd N`) and their certificate
and key (`--tls-fd N`) as well; and nothing else: no descriptor, no environment, no terminal, no way back to root. It outlives its
supervisor on purpose: sandboxes and requests go on while serve is replaced.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.host import logfile, namespaces, syscalls
from space.serve.tls import held

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_OPEN_FILES = 65_536
LISTEN_FD, READY_FD, ALSO_FD, TLS_FD = 3, 4, 5, 6  # the last two of roles that have `also`

Command = Callable[["Role", int, int], list[str]]


@dataclass(frozen=True, slots=True)
class Role:
    """A service. uid: also its gid; 0 keeps root's capabilities. stop_seconds: how long it may take to end when asked.

    package: of `space`, if it is not the name. capabilities: what a uid that is not root's keeps, and nothing else.
    alone: in a network namespace of its own with nothing in it. locks_memory: it may keep all its memory out of swap.
    also: it has a second listener.
    """

    name: str
    uid: int
    stop_seconds: float
    package: str | None = None
    capabilities: tuple[int, ...] = ()
    alone: bool = False
    locks_memory: bool = False
    also: bool = False


@dataclass(slots=True)
class Process:
    """A running service. ready: the read end of its pipe, None once it is ready (or was adopted)."""

    role: Role
    pid: int
    pidfd: int
    started: int
    ready: int | None

    def close(self) -> None:
        """Let go of the descriptors."""
        for descriptor in (self.pidfd, self.ready):
            if descriptor is not None:
                os.close(descriptor)
        self.ready = None


def module_command(instance: str, *, tls: Collection[str] = (), log_format: str = "text") -> Command:
    """The command line of the real services, by the interpreter that runs this. tls: who is handed a certificate."""

    def command(role: Role, listen_fd: int, ready_fd: int) -> list[str]:
        return [
            sys.executable, "-I", "-m", f"space.{role.package or role.name}.server",
            "--instance", instance, "--listen-fd", str(listen_fd), "--ready-fd", str(ready_fd),
            "--log-format", log_format,
            *(("--also-fd", str(ALSO_FD)) if role.also else ()),
            *(("--tls-fd", str(TLS_FD)) if role.name in tls else ()),
        ]  # fmt: skip

    return command


def start(
    role: Role,
    command: Command,
    listener: socket.socket,
    log: Path,
    record: Callable[[Process], None] = lambda _: None,
    *,
    also: socket.socket | None = None,
    tls: bytes | None = None,
) -> Process:
    """Start it; it is not ready yet. OSError when the process cannot be made. also: the second listener of a role that has one.

    The child waits until `record` has returned: if this process dies before, so does the child, and none runs that nobody knows of.
    """
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
    log_fd = _open_log(log)
    tls_fd = None if tls is None else held(tls)
    argv = command(role, LISTEN_FD, READY_FD)
    go_read, go = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            os.close(go)
            handed = (listener.fileno(), ready_write, None if also is None else also.fileno(), tls_fd)
            _become(role, argv, go_read, [one for one in handed if one is not None], log_fd)
        # The child is ours and unreaped: its pid cannot mean anybody else yet.
        process = Process(role, pid, os.pidfd_open(pid), namespaces.start_time(pid) or 0, ready_read)
        try:
            record(process)
        except BaseException:
            os.close(process.pidfd)
            raise
        with suppress(BrokenPipeError):  # it was killed meanwhile, which its pidfd says
            os.write(go, b"g")
    except BaseException:
        os.close(ready_read)
        raise
    finally:
        for descriptor in (ready_write, log_fd, go_read, go, tls_fd):
            if descriptor is not None:
                os.close(descriptor)
    return process


def _become(role: Role, argv: list[str], go: int, handed: list[int], log: int) -> None:
    """In the child: wait for a byte on `go`, then become the service. Never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if os.read(go, 1) != b"g":
            os._exit(1)  # serve died, or failed, before this process was recorded
        _arrange_descriptors(handed, log)
        _limit(role)
        os.chdir("/")
        os.umask(0o022 if role.uid == 0 else 0o077)
        if role.alone:
            syscalls.unshare(syscalls.CLONE_NEWNET)
        if role.uid != 0:
            _leave_root(role)
        os.execve(argv[0], argv, _ENVIRONMENT)  # noqa: S606 - the one door for services; a list, an environment from nothing
    except BaseException as error:  # noqa: BLE001 - whatever it is, this fork must not run the parent's code
        os.write(2, f"cannot become {role.name}: {error}\n".encode())
    finally:
        os._exit(127)


def _limit(role: Role) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A container may withhold CAP_SYS_RESOURCE: then the limits that we were given are what there is.
    files = min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if role.locks_memory:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _leave_root(role: Role) -> None:
    """Become the role's uid with its capabilities and no others, and no way to more."""
    syscalls.drop_bounding_set(role.capabilities)
    if role.capabilities:
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(role.uid, role.uid, role.uid)
    os.setresuid(role.uid, role.uid, role.uid)
    if role.capabilities:
        syscalls.hold_capabilities(role.capabilities)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)


def _arrange_descriptors(handed: list[int], log: int) -> None:
    # First out of the way, so that no target is one of the sources.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (log, *handed)]
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(high[0], 1)
    os.dup2(high[0], 2)
    for target, descriptor in enumerate(high[1:], LISTEN_FD):
        os.dup2(descriptor, target)
    os.closerange(LISTEN_FD + len(handed), 1 << 20)


def _open_log(log: Path) -> int:
    # For reading as well: the service keeps its log short itself (`space.host.logfile`), also while no serve is there.
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with suppress(OSError):
        logfile.trim(descriptor)  # what one that dies before it logs anything has left
    return descriptor


def log_tail(log: Path, size: int = 2000) -> str:
    """The end of a log, for an error's words."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def ended(process: Process, timeout: float | None = 0) -> bool:
    """Whether it has ended, waiting up to `timeout` seconds (None: for ever) for that."""
    poll = select.poll()
    poll.register(process.pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def stop(process: Process) -> str:
    """Ask, wait, kill, wait; how it went, in words. The caller reaps."""
    try:
        signal.pidfd_send_signal(process.pidfd, signal.SIGTERM)
    except ProcessLookupError:
        return "had ended"
    if ended(process, process.role.stop_seconds):
        return "stopped"
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
    ended(process, None)
    return f"killed: it did not stop within {process.role.stop_seconds:g} s"
