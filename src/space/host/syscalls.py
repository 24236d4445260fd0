"""The kernel's words that Python 3.11 does not have: one short function for each system call. x86-64 and aarch64.

Every failure is an OSError with the kernel's errno. Nothing here decides anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Collection

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 23, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
PR_SET_KEEPCAPS, PR_CAP_AMBIENT_RAISE = 8, 2

CAP_SETGID, CAP_SETUID = 6, 7

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4

IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 2, 4, 8, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_ONLYDIR = 0x400, 0x800, 0x0100_0000

NSFS_MAGIC = 0x6E73_6673
_AT_FDCWD, _AT_EMPTY_PATH, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4

# The same numbers on every architecture: these are younger than the unified table.
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_OPENAT2, _SYS_PIDFD_GETFD, _SYS_MOUNT_SETATTR = 428, 429, 437, 438, 442
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_RENAME_EXCHANGE = 2
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x2008_0522
_FICLONE = 0x4004_9409

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.process_vm_readv.restype = ctypes.c_ssize_t


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def give_memory_back() -> None:
    """What this process has freed goes back to the machine, also from between what is in use; nothing where the C library cannot."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def openat2(directory: int, path: str, flags: int, *, mode: int = 0, resolve: int = 0) -> int:
    """Open `path` below the descriptor `directory`; `resolve` restricts how names are followed. Always close-on-exec."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    arguments = (ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(directory), os.fsencode(path), how, ctypes.c_size_t(len(how)))
    return _checked(_libc.syscall(*arguments), f"openat2 {path}")


def exchange(one: str, other: str) -> None:
    """Give each of two paths of one file system the other's name, in one step."""
    number = ctypes.c_long(_SYS_RENAMEAT2[os.uname().machine])
    here = ctypes.c_int(_AT_FDCWD)
    _checked(_libc.syscall(number, here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)), f"exchange {one}")


def inotify_init() -> int:
    """A descriptor, close-on-exec and not blocking, on which changes of what `inotify_watch` names are told."""
    return _checked(_libc.inotify_init1(ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK)), "inotify_init1")


def inotify_watch(descriptor: int, path: str, events: int) -> None:
    """Tell of these events at `path`, from now on; a path that is watched already is watched for these instead."""
    _checked(_libc.inotify_add_watch(ctypes.c_int(descriptor), os.fsencode(path), ctypes.c_uint32(events)), f"inotify_add_watch {path}")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones (of the calling thread; for CLONE_NEWPID, of its next children)."""
    _checked(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(descriptor: int, kind: int) -> None:
    """Enter a namespace."""
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), f"setns {kind:#x}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount something, bind it elsewhere, or change how it is mounted."""
    encoded = None if kind is None else kind.encode()
    _checked(
        _libc.mount(os.fsencode(source), os.fsencode(target), encoded, ctypes.c_ulong(flags), data.encode()),
        f"mount {source} on {target}",
    )


def umount2(target: str, flags: int = 0) -> None:
    """Unmount; never follows a symbolic link in the last part."""
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(flags | UMOUNT_NOFOLLOW)), f"umount {target}")


def open_tree(path: str, attributes: int) -> int:
    """A detached bind mount of `path` with these MOUNT_ATTR flags (Linux 5.12): it is nowhere until `move_mount` puts it somewhere."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    number = ctypes.c_long(_SYS_OPEN_TREE)
    tree = _checked(_libc.syscall(number, ctypes.c_int(_AT_FDCWD), os.fsencode(path), flags), f"open_tree {path}")
    how = struct.pack("=QQQQ", attributes, 0, 0, 0)
    arguments = (ctypes.c_int(tree), b"", ctypes.c_uint(_AT_EMPTY_PATH), how, ctypes.c_size_t(len(how)))
    _checked(_libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *arguments), f"mount_setattr {path}")
    return tree


def move_mount(tree: int, target: str) -> None:
    """Attach what `open_tree` gave on `target`."""
    arguments = (ctypes.c_int(tree), b"", ctypes.c_int(_AT_FDCWD), os.fsencode(target), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH))
    _checked(_libc.syscall(ctypes.c_long(_SYS_MOVE_MOUNT), *arguments), f"move_mount on {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and put the old one on `old`."""
    _checked(_libc.syscall(ctypes.c_long(_SYS_PIVOT_ROOT[os.uname().machine]), os.fsencode(new), os.fsencode(old)), f"pivot_root {new}")


def prctl(option: int, argument: int = 0, third: int = 0) -> int:
    """An operation on this process, with up to two arguments."""
    rest = (ctypes.c_ulong(argument), ctypes.c_ulong(third), ctypes.c_ulong(0), ctypes.c_ulong(0))
    return _checked(_libc.prctl(ctypes.c_int(option), *rest), f"prctl {option}")


def mlockall(flags: int) -> None:
    """Keep this process's memory out of swap; needs CAP_IPC_LOCK or room under RLIMIT_MEMLOCK."""
    _checked(_libc.mlockall(ctypes.c_int(flags)), f"mlockall {flags}")


def set_slice(nanoseconds: int, pid: int = 0) -> bool:
    """How long a thread (this one), and what it forks from now on, runs at a time beside others: who runs shortly is let in early.

    0.1 to 100 ms. False on a kernel that knows no slices, or has no such call here.
    """
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, 0, 0, 0, 0, nanoseconds, 0, 0)
    return number is not None and _libc.syscall(ctypes.c_long(number), ctypes.c_int(pid), attributes, ctypes.c_uint(0)) == 0


def trim_heap() -> None:
    """Give the C library's free memory back to the kernel."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(ctypes.c_size_t(0))


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets of this thread."""
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _checked(_libc.syscall(ctypes.c_long(_SYS_CAPSET[os.uname().machine]), header, sets), "capset")


def drop_bounding_set(keep: Collection[int] = ()) -> None:
    """Empty the bounding set, but for those to keep, and the ambient set; needs CAP_SETPCAP."""
    for capability in range(64):
        if capability in keep:
            continue
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # EINVAL: this kernel has no more of them
            break
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def hold_capabilities(capabilities: Collection[int]) -> None:
    """Have these (of the first 32) and no others, through the next execve as well."""
    mask = sum(1 << capability for capability in capabilities)
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), struct.pack("=6I", mask, mask, mask, 0, 0, 0)
    _checked(_libc.syscall(ctypes.c_long(_SYS_CAPSET[os.uname().machine]), header, sets), "capset")
    for capability in capabilities:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def load_filter(program: bytes) -> None:
    """From now on this thread makes only the system calls that the program (`struct sock_filter[]`) lets through; needs no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(buffer))
    arguments = (ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(_libc.prctl(ctypes.c_int(_PR_SET_SECCOMP), *arguments), "prctl seccomp")


def sethostname(name: str) -> None:
    """The host name of this UTS namespace."""
    _checked(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def read_memory(pid: int, pieces: list[tuple[int, int]], buffer: bytearray | mmap.mmap, at: int = 0) -> int:
    """Read these pieces (address, bytes; at most 1,024) of another process's memory, one behind the other, into the buffer from `at` on.
    How many bytes that are: all of them.
    """
    total = sum(size for _, size in pieces)
    if at + total > len(buffer):
        raise ValueError(f"{total} bytes do not fit a buffer of {len(buffer)} from {at} on")
    remote = (ctypes.c_uint64 * (2 * len(pieces)))(*(number for piece in pieces for number in piece))
    place = ctypes.c_char.from_buffer(buffer, at)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(place), total)
    count = _libc.process_vm_readv(ctypes.c_int(pid), local, ctypes.c_ulong(1), remote, ctypes.c_ulong(len(pieces)), ctypes.c_ulong(0))
    if _checked(count, f"process_vm_readv {pid}") != total:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT), f"process_vm_readv {pid}: {count} of {total} bytes")
    return total


def borrow_descriptor(pidfd: int, number: int) -> int:
    """A duplicate of another process's descriptor (Linux 5.6); close-on-exec."""
    arguments = (ctypes.c_long(_SYS_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0))
    return _checked(_libc.syscall(*arguments), f"pidfd_getfd {number}")


def reflink(source: int, target: int) -> None:
    """Make the file `target` share all blocks of `source` (FICLONE)."""
    fcntl.ioctl(target, _FICLONE, source)


def fallocate(descriptor: int, offset: int, length: int, *, keep_size: bool = False) -> None:
    """Allocate a file's blocks and make it so large; what it holds stays. Unlike posix_fallocate it never writes instead."""
    arguments = (ctypes.c_int(descriptor), ctypes.c_int(int(keep_size)), ctypes.c_int64(offset), ctypes.c_int64(length))
    _checked(_libc.fallocate64(*arguments) if hasattr(_libc, "fallocate64") else _libc.fallocate(*arguments), "fallocate")


def filesystem_magic(path: str) -> int:
    """The kind of file system behind a path (statfs's f_type)."""
    buffer = ctypes.create_string_buffer(256)
    _checked(_libc.statfs(os.fsencode(path), buffer), f"statfs {path}")
    return int(struct.unpack_from("=q", buffer)[0]) & 0xFFFF_FFFF
