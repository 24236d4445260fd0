"""The system calls that the ingress may make from before the first byte of a stranger's on.

It opens no file, runs no program, makes no thread or process, and no socket but a UNIX one: with a network namespace of its own, in which
nothing is, what it can speak to is control.
"""

from __future__ import annotations

import os
import socket
from typing import cast

from space.core.plan.seccomp import Arch, Call, NoBits, OneOf, program

_FIONBIO = 0x5421
_PROT_EXEC = 4
_AT_EMPTY_PATH = 0x1000
_F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 1, 2, 3, 4, 1030
_KEPT = (
    "read", "write", "readv", "writev", "recvmsg", "sendmsg", "recvfrom", "sendto", "recvmmsg", "sendmmsg", "close", "shutdown",
    "getsockname", "getpeername", "getsockopt", "setsockopt", "accept4", "accept", "connect", "fstat", "lseek",
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl", "poll", "ppoll", "futex", "clock_gettime", "clock_nanosleep", "gettimeofday",
    "sched_yield", "restart_syscall", "munmap", "mremap", "madvise", "brk", "getrandom", "getpid", "gettid", "getppid", "getuid", "geteuid",
    "getgid", "getegid", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "rseq", "set_robust_list", "getrusage", "exit",
    "exit_group", "dup", "ftruncate", "epoll_create1", "eventfd2", "pipe2",
)  # fmt: skip
# What nobody tries who is not an attacker.
_FATAL = (
    "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "bpf", "perf_event_open",
    "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "mount", "umount2", "pivot_root",
    "chroot", "unshare", "setns", "open_by_handle_at", "keyctl", "add_key", "request_key", "move_mount", "open_tree", "fsopen", "fsmount",
    "mount_setattr", "reboot", "swapon", "fork", "vfork",
)  # fmt: skip


def strangers() -> bytes:
    """The program."""
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        raise RuntimeError(f"there is no list of system calls for {machine}")
    return program(
        cast("Arch", machine),
        (
            *_KEPT,
            Call("socket", (OneOf(0, (socket.AF_UNIX,)),)),
            Call("newfstatat", (OneOf(3, (_AT_EMPTY_PATH,)),)),  # as the C library asks of a descriptor
            Call("socketpair", (OneOf(0, (socket.AF_UNIX,)),)),
            Call("ioctl", (OneOf(1, (_FIONBIO,)),)),
            Call("fcntl", (OneOf(1, (_F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC)),)),
            Call("mmap", (NoBits(2, _PROT_EXEC),)),
            Call("mprotect", (NoBits(2, _PROT_EXEC),)),
        ),
        _FATAL,
    )
