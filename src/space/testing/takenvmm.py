"""A VMM that does what a test says: what somebody would do who got out of a guest and runs code in the VMM's process.

    with taken(pid) as vmm:
        vmm.call("socket", AF_INET, SOCK_STREAM, 0)     # made by the VMM's own main thread, under all that confines it

The test is root and traces the thread: it sets the registers and steps over one `syscall` instruction of the VMM's own library. So
identity, namespaces, root, limits and the seccomp filters are the real ones, and nothing of the product knows of this module. x86-64 only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long
_SEIZE, _INTERRUPT, _GETREGS, _SETREGS, _STEP, _DETACH = 0x4206, 0x4207, 12, 13, 9, 17
_WALL = 0x40000000
_SYSCALL = b"\x0f\x05"
_PATIENCE = 10.0
_SCRATCH = 64 << 10  # bytes for arguments that are not numbers
_REGISTERS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip"),
    *("cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
_WORDS = struct.Struct(f"={len(_REGISTERS)}Q")
_GIVEN = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
# fmt: off
NUMBERS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "mmap": 9, "mprotect": 10, "ioctl": 16, "shmget": 29, "shmat": 30, "dup": 32,
    "getpid": 39, "socket": 41, "connect": 42, "sendto": 44, "recvfrom": 45, "bind": 49, "listen": 50, "socketpair": 53, "setsockopt": 54,
    "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "kill": 62, "msgget": 68, "fcntl": 72, "chdir": 80, "mkdir": 83,
    "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "chmod": 90, "ptrace": 101, "setuid": 105, "setpgid": 109, "setresuid": 117,
    "setgroups": 116, "mknod": 133, "personality": 135, "setpriority": 141, "sched_setscheduler": 144, "pivot_root": 155, "prctl": 157,
    "setrlimit": 160, "chroot": 161, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "reboot": 169, "sethostname": 170,
    "iopl": 172, "ioperm": 173, "init_module": 175, "quotactl": 179, "tkill": 200, "settimeofday": 164, "clock_settime": 227,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "inotify_init1": 294, "openat": 257, "mkdirat": 258,
    "unshare": 272, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "seccomp": 317, "memfd_create": 319,
    "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, "pidfd_send_signal": 424, "io_uring_setup": 425,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "clone3": 435, "pidfd_open": 434, "openat2": 437,
    "pidfd_getfd": 438, "mount_setattr": 442, "landlock_create_ruleset": 444, "memfd_secret": 447,
}
# fmt: on


class Ended(Exception):
    """The call ended the process."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}" if number else "ended")
        self.signal = number


class TakenVmm:
    """Made by `taken`. pid: of the VMM, as the test sees it. Every method is a system call of its main thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.alive = True
        _ptrace(_SEIZE, pid, 0, 0)
        _ptrace(_INTERRUPT, pid, 0, 0)
        self._stopped()
        self._before = self._registers()
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._at = self._find()
        self.scratch = 0
        # anonymous, private, to be read and written
        self.scratch = self.call("mmap", 0, _SCRATCH, 3, 0x22, (1 << 64) - 1, 0)

    def _find(self) -> int:
        """Where a `syscall` instruction is in the C library."""
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            place, rights, *rest = line.split()
            if "x" not in rights or "libc" not in rest[-1]:
                continue
            begin, end = (int(one, 16) for one in place.split("-"))
            found = os.pread(self._memory, end - begin, begin).find(_SYSCALL)
            if found >= 0:
                return begin + found
        raise LookupError(f"process {self.pid} has no system call in its C library")

    def _registers(self) -> dict[str, int]:
        buffer = ctypes.create_string_buffer(_WORDS.size)
        _ptrace(_GETREGS, self.pid, 0, ctypes.addressof(buffer))
        return dict(zip(_REGISTERS, _WORDS.unpack(buffer.raw), strict=True))

    def _set(self, registers: dict[str, int]) -> None:
        buffer = ctypes.create_string_buffer(_WORDS.pack(*(registers[name] for name in _REGISTERS)), _WORDS.size)
        _ptrace(_SETREGS, self.pid, 0, ctypes.addressof(buffer))

    def _stopped(self) -> int:
        """Until it stands; by which signal. Ended when it never will again, TimeoutError when its call waits for something."""
        until = time.monotonic() + _PATIENCE
        while not (found := os.waitpid(self.pid, _WALL | os.WNOHANG))[0]:
            if time.monotonic() > until:
                raise TimeoutError(f"process {self.pid} does not stand after {_PATIENCE:g} s")
            time.sleep(0.0005)  # nothing else tells of a thread that is traced
        status = found[1]
        if not os.WIFSTOPPED(status):
            self.alive = False
            raise Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        return os.WSTOPSIG(status)

    def call(self, name: str, *given: int | bytes) -> int:
        """What it gives; bytes are put into its memory. OSError, or Ended."""
        words, at = list[int](), self.scratch
        for one in given:
            if isinstance(one, int):
                words.append(one & (1 << 64) - 1)
                continue
            os.pwrite(self._memory, one, at)
            words.append(at)
            at += (len(one) + 63) & ~63
        registers = self._before | {"rax": NUMBERS[name], "rip": self._at, "orig_rax": (1 << 64) - 1}
        registers |= dict(zip(_GIVEN, words, strict=False))
        self._set(registers)
        _ptrace(_STEP, self.pid, 0, 0)
        if (number := self._stopped()) != signal.SIGTRAP:
            raise Ended(number)  # the filter's signal instead of a result
        result = self._registers()["rax"]
        if result >= (1 << 64) - 4095:
            raise OSError((1 << 64) - result, f"{name}: {os.strerror((1 << 64) - result)}")
        return result

    def kept(self, length: int) -> bytes:
        """What a call wrote at the beginning of the scratch memory."""
        return os.pread(self._memory, length, self.scratch)

    def outcome(self, name: str, *given: int | bytes) -> str:
        """The same as a word: the name of the error, `killed`, or `done`. What was opened stays open."""
        try:
            self.call(name, *given)
        except TimeoutError:
            raise
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        except Ended:
            return "killed"
        return "done"

    def connect(self, kind: int, address: bytes, *, family: int = socket.AF_UNIX) -> str:
        """Connect a socket, which does not wait: `done` also for a connection that is under way."""
        made = self.call("socket", family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        try:
            said = self.outcome("connect", made, address, len(address))
            return "done" if said == "EINPROGRESS" else said
        finally:
            self.call("close", made)

    def end_first_thread(self) -> None:
        """The process lives on in its other threads; nothing can be called any more."""
        self._set(self._before | {"rax": NUMBERS["exit"], "rdi": 0, "rip": self._at, "orig_rax": (1 << 64) - 1})
        _ptrace(_DETACH, self.pid, 0, 0)
        self.alive = False

    def let_go(self) -> None:
        """It goes on where it was, and keeps nothing of this."""
        os.close(self._memory)
        if self.alive:
            with suppress(ProcessLookupError):
                self._set(self._before)
                _ptrace(_DETACH, self.pid, 0, 0)


@contextmanager
def taken(pid: int) -> Iterator[TakenVmm]:
    """That process's main thread, for as long as the `with`; its other threads run on."""
    one = TakenVmm(pid)
    try:
        yield one
    finally:
        one.let_go()


def path(text: str | os.PathLike[str]) -> bytes:
    """As a call takes it."""
    return os.fsencode(text) + b"\0"


def unix(name: str | os.PathLike[str] | bytes) -> bytes:
    """An address; bytes are an abstract name."""
    return struct.pack("=H", socket.AF_UNIX) + (b"\0" + name if isinstance(name, bytes) else path(name))


def inet(address: str, port: int) -> bytes:
    """An address of IPv4."""
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, socket.inet_aton(address))


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _LIBC.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")
