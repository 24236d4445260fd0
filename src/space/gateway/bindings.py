"""What the zygote holds for one life of a sandbox: descriptors, the worker if one lives, who waits for what. No event loop, no choice.

A life is bound; served, while a worker lives; it rests for a while when the worker crashed; it is ending, once nobody wants it, until the
worker is dead; then nothing of it is open.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from space.core.policy.kept import SIZE as MEMORY_BYTES
from space.model.errors import InvalidArgument
from space.rpc import gateway_api as api

_MEMORY_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_POLICY_SEALS = _MEMORY_SEALS | fcntl.F_SEAL_WRITE
_SHORT_LIFE = 10.0
_FIRST_REST, _LONGEST_REST = 0.1, 10.0
PLACES: dict[api.What, int] = {"signer": 3, "audit": 4, "dialer": 5}
MEMORY, CGROUPS = 6, 7


@dataclass(slots=True)
class Living:
    """A worker. channel: our end. waiting: by policy generation, whom to tell when it holds, and by when. asked: to end, by us."""

    pid: int
    pidfd: int
    channel: socket.socket
    began: float
    waiting: list[tuple[int, float, Callable[[str], None]]] = field(default_factory=list)
    asked: str = ""
    allowance: float = 0.0
    at: float = 0.0
    held: bool = False


@dataclass(slots=True)
class Bound:
    """held: listener, DNS, DNS over TCP, signer, audit, dialer, memory, cgroups. rest: until when nothing is forked for it.

    after: what to do once it is gone; it is ending if there is anything, or `ending` says so.
    """

    sandbox: str
    generation: int
    slot: int
    synthetic: str
    held: list[int]
    policy: int | None = None
    policy_generation: int = 0
    refused: str = ""
    worker: Living | None = None
    rest: float = 0.0
    crashes: int = 0
    ending: bool = False
    after: list[Callable[[], None]] = field(default_factory=list)

    @property
    def listeners(self) -> list[int]:
        """Where something may come."""
        return self.held[:3]

    def crashed(self, now: float, lived: float) -> float:
        """One more; until when to rest."""
        self.crashes = self.crashes + 1 if lived < _SHORT_LIFE else 1
        self.rest = now + min(_LONGEST_REST, _FIRST_REST * 2 ** min(self.crashes - 1, 16))
        return self.rest

    def close(self) -> None:
        """Nothing of it is open."""
        close_all([*self.held, *(() if self.policy is None else (self.policy,))])
        self.held.clear()
        self.policy = None


def checked(question: api.Bind, given: Sequence[int]) -> list[int]:
    """The descriptors of a Bind, which are what they should be. InvalidArgument; the caller closes them then."""
    if not api.BEFORE_CGROUPS < len(given) <= api.BEFORE_CGROUPS + api.MOST_CGROUPS:
        raise InvalidArgument(f"Bind comes with 8 to {api.BEFORE_CGROUPS + api.MOST_CGROUPS} descriptors, and this came with {len(given)}")
    try:
        IPv4Network(question.synthetic)
    except ValueError as error:
        raise InvalidArgument(f"synthetic: {error}") from None
    for place, (kind, family, listens) in enumerate(
        (
            (socket.SOCK_STREAM, socket.AF_INET, True),
            (socket.SOCK_DGRAM, socket.AF_INET, False),
            (socket.SOCK_STREAM, socket.AF_INET, True),
            *[(socket.SOCK_SEQPACKET, socket.AF_UNIX, False)] * 3,
        )
    ):
        if not _is_socket(given[place], kind, family, listens=listens):
            raise InvalidArgument(f"descriptor {place + 1} of Bind is not the socket that it should be")
    check_memory(given[MEMORY])
    for descriptor in given[CGROUPS:]:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise InvalidArgument("a cgroup file of Bind is not one that can be written")
    return list(given)


def check_channel(descriptor: int) -> None:
    """InvalidArgument for what is no connected SEQPACKET socket."""
    if not _is_socket(descriptor, socket.SOCK_SEQPACKET, socket.AF_UNIX, listens=False):
        raise InvalidArgument("what came is not a SEQPACKET socket")


def check_memory(descriptor: int) -> None:
    """InvalidArgument for what is no memory of the right size that keeps it: a worker that maps it must not find its end missing."""
    if _seals(descriptor) & _MEMORY_SEALS != _MEMORY_SEALS or os.fstat(descriptor).st_size != MEMORY_BYTES:
        raise InvalidArgument(f"the memory of Bind is a memfd of {MEMORY_BYTES} bytes, sealed against shrinking and growing")


def check_policy(descriptor: int) -> None:
    """InvalidArgument for what is no memfd that nobody can change any more."""
    if _seals(descriptor) & _POLICY_SEALS != _POLICY_SEALS:
        raise InvalidArgument("a policy comes in a memfd that is sealed against writing, shrinking and growing")
    if not 0 < os.fstat(descriptor).st_size <= api.MOST_POLICY:
        raise InvalidArgument(f"a policy has 1 to {api.MOST_POLICY} bytes, not {os.fstat(descriptor).st_size}")


def close_all(descriptors: Sequence[int]) -> None:
    """Every one of them."""
    for descriptor in descriptors:
        os.close(descriptor)


def _seals(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memfd
        return 0


def _is_socket(descriptor: int, kind: int, family: int, *, listens: bool) -> bool:
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        same = (sock.type, sock.family) == (kind, family)
        return same and (kind == socket.SOCK_DGRAM or bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is listens)
    except OSError:
        return False
    finally:
        sock.detach()
