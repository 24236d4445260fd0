"""What is recorded of a process: its request as a head, the guest's last word as an end, and whether another request is the same."""

from __future__ import annotations

import hashlib
import time

import msgspec

from space.core.wire import guest as wire
from space.core.wire.spool import End, Head
from space.rpc import node_api as api


def head_of(name: str, pid: int, asked: api.Exec, *, tied: bool, quota: int) -> Head:
    """Of a process that has begun now."""
    return Head(
        process=name,
        pid=pid,
        argv=words(asked),
        cwd=asked.cwd,
        user=asked.user,
        pty=asked.pty is not None,
        stdin=asked.stdin,
        started_us=now(),
        tied=tied,
        block=asked.overflow == "block",
        quota=quota,
    )


def end_of(said: wire.Exited, stdout: int, stderr: int, stdin_bytes: int) -> End:
    """Of a process that has ended now. stdout, stderr: bytes that were taken of it."""
    return End(
        now(),
        stdout,
        stderr,
        stdin_bytes,
        said.code,
        said.signal,
        said.oom_killed,
        said.timed_out,
        said.stdout_bytes,
        said.stderr_bytes,
        said.wall_ms,
    )


def digest(asked: api.Exec) -> bytes:
    """The same for the same request. It is kept in memory alone: an environment may hold secrets that can be guessed."""
    plain = msgspec.msgpack.encode(msgspec.structs.replace(asked, request_id=""), order="deterministic")
    return hashlib.blake2b(plain, digest_size=16).digest()


def is_of(head: Head, argv: list[bytes], asked: api.Exec) -> bool:
    """Whether a record may be of this request: what it holds of one is compared, which the environment and the times are not."""
    made = (head.cwd, head.user, head.pty, head.stdin, head.tied, argv)
    return made == (asked.cwd, asked.user, asked.pty is not None, asked.stdin, False, words(asked))


def words(asked: api.Exec) -> list[bytes]:
    """The arguments as Linux has them."""
    return [word.encode("utf-8", "surrogateescape") for word in asked.argv]


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
