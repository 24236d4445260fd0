"""The system calls that zygote and worker may make. Neither opens a file or a socket, connects, binds, or runs a program.

The zygote takes uids and gids from the workers' range alone (and its own back); the worker takes none. A worker's program lies on top of
the zygote's, so what it may do is what both allow.
"""

from __future__ import annotations

import os
from typing import cast

from space.core.plan.seccomp import Arch, Call, NoBits, OneOf, program

_FIONBIO = 0x5421
_PROT_EXEC = 4
_SAME = 0xFFFF_FFFF  # an identity that stays
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_F_GET_SEALS = 1034
_AT_EMPTY_PATH = 0x1000
_SIGNAL = 17  # SIGCHLD: the flags of a fork that is no thread and shares nothing
_CLONE_CHILD = 0x0100_0000 | 0x0020_0000  # CLONE_CHILD_SETTID and CLONE_CHILD_CLEARTID, as the C library forks
_SET_DUMPABLE, _SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _CAP_AMBIENT = 4, 1, 38, 22, 47

_MOVING = (
    "read", "write", "readv", "writev", "recvmsg", "sendmsg", "recvfrom", "sendto", "recvmmsg", "sendmmsg",
    "close", "shutdown", "getsockname", "getpeername", "getsockopt", "setsockopt", "accept4", "pread64", "fstat", "lseek",
)  # fmt: skip
_WAITING = (
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl", "poll", "ppoll", "futex", "clock_gettime", "clock_nanosleep",
    "gettimeofday", "sched_yield", "restart_syscall",
)  # fmt: skip
_LIVING = (
    "munmap", "mremap", "madvise", "brk", "getrandom", "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "rseq", "set_robust_list", "getrusage", "exit", "exit_group",
)  # fmt: skip
_BOTH: tuple[str | Call, ...] = (
    *_MOVING,
    *_WAITING,
    *_LIVING,
    Call("ioctl", (OneOf(1, (_FIONBIO,)),)),
    Call("mmap", (NoBits(2, _PROT_EXEC),)),
    Call("mprotect", (NoBits(2, _PROT_EXEC),)),
)
_FCNTL = (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC)
# What nobody tries who is not an attacker.
_FATAL = (
    "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "bpf", "perf_event_open",
    "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "mount", "umount2", "pivot_root",
    "chroot", "unshare", "setns", "open_by_handle_at", "keyctl", "add_key", "request_key", "move_mount", "open_tree", "fsopen", "fsmount",
    "mount_setattr", "reboot", "swapon",
)  # fmt: skip


def worker() -> bytes:
    """From before the first byte of a guest on."""
    return program(_arch(), (*_BOTH, Call("fcntl", (OneOf(1, _FCNTL),)), "dup"), _FATAL)


def zygote(own: int, workers: range) -> bytes:
    """From before the first message on. own: its uid and gid; workers: theirs."""
    one = {"low": workers.start, "high": workers.stop - 1}
    identity = tuple(OneOf(argument, (_SAME, own), **one) for argument in range(3))
    return program(
        _arch(),
        (
            *_BOTH,
            Call("fcntl", (OneOf(1, (*_FCNTL, _F_GET_SEALS)),)),
            Call("setresuid", identity),
            Call("setresgid", identity),
            Call("setgroups", (OneOf(0, (0,)),)),
            Call("clone", (OneOf(0, (_SIGNAL, _SIGNAL | _CLONE_CHILD)),)),
            "fork",
            Call("newfstatat", (OneOf(3, (_AT_EMPTY_PATH,)),)),  # as the C library asks of a descriptor
            "wait4",
            "waitid",
            "pidfd_open",
            "pidfd_send_signal",
            "accept",
            Call("prctl", (OneOf(0, (_SET_DUMPABLE, _SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _CAP_AMBIENT)),)),
            "capset",
            "uname",
            "prlimit64",
            "socketpair",
            "epoll_create1",
            "eventfd2",
            "pipe2",
            "close_range",
            "dup",
            "dup2",
            "dup3",
            "ftruncate",
        ),
        _FATAL,
    )


def _arch() -> Arch:
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        raise RuntimeError(f"there is no list of system calls for {machine}")
    return cast("Arch", machine)
