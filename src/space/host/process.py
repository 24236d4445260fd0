"""The one door for processes: a list of arguments, an environment built from nothing, bounded output, a whole account of a failure.

Processes that are jailed first (VMMs) are forked by rootd itself; everything else that we run goes through `run`.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from space.host import syscalls

OUTPUT_LIMIT = 1 << 20
_TAIL = 2000
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class ProcessFailed(Exception):
    """A process that did not do what it was started for. argv, status (negative: a signal), tail of its output."""

    def __init__(self, argv: Sequence[str], status: int | None, tail: bytes, why: str) -> None:
        self.argv, self.status, self.tail = list(argv), status, tail
        text = tail.decode(errors="replace").strip()
        super().__init__(f"{' '.join(argv)[:400]}: {why}" + (f": {text}" if text else ""))


@dataclass(frozen=True, slots=True)
class Completed:
    """Standard output and standard error of a process that ended with 0."""

    stdout: bytes
    stderr: bytes


def run(
    argv: Sequence[str],
    *,
    data: bytes | None = None,
    env: Mapping[str, str] = ENVIRONMENT,
    cwd: Path | None = None,
    timeout: float = 30.0,
    limit: int = OUTPUT_LIMIT,
) -> Completed:
    """Run to the end, with `data` (at most 60 KiB) or nothing on standard input.

    ProcessFailed when it cannot start, ends with another status than 0, takes longer than `timeout` seconds or writes more
    than `limit` bytes to one of its outputs; in the last two cases it is killed and reaped first.
    """
    if data is not None and len(data) > 60 << 10:
        raise ValueError("standard input is written at once and has to fit into the pipe: at most 60 KiB")
    stdin = subprocess.DEVNULL if data is None else subprocess.PIPE
    try:
        process = subprocess.Popen(
            list(argv), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env), cwd=cwd, bufsize=0
        )
    except OSError as error:
        raise ProcessFailed(argv, None, b"", f"cannot start: {error.strerror}") from error
    with process:
        try:
            if data is not None and process.stdin is not None:
                _feed(process, data)
            stdout, stderr = _collect(process, argv, time.monotonic() + timeout, limit)
        except BaseException:
            process.kill()
            raise
        status = process.wait()
    if status != 0:
        raise ProcessFailed(argv, status, (stderr or stdout)[-_TAIL:], _ending(status))
    return Completed(stdout, stderr)


def forked(work: Callable[[], bytes]) -> bytes:
    """Do `work` in a forked child, whose namespaces are then its own affair, and return what it returns (at most 32 KiB).

    For single-threaded callers. ProcessFailed carries the child's exception in words. The child dies with its parent.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except BaseException:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        answer = b"!child ended early"
        try:
            signal.set_wakeup_fd(-1)
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            answer = b"=" + work()
        except BaseException as error:  # noqa: BLE001 (it is reported, in the parent)
            answer = f"!{type(error).__name__}: {error}".encode()[: 32 << 10]
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    if answer[:1] != b"=":
        raise ProcessFailed(["(forked)"], os.waitstatus_to_exitcode(status), answer[1:], "failed")
    return answer[1:]


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
    except BrokenPipeError:
        pass  # it ended without reading; its status tells why
    finally:
        process.stdin.close()


def _collect(process: subprocess.Popen[bytes], argv: Sequence[str], deadline: float, limit: int) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, stdout)
        selector.register(process.stderr, selectors.EVENT_READ, stderr)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ProcessFailed(argv, None, bytes(stderr[-_TAIL:]), "took too long and was killed")
            for key, _ in ready:
                kept: bytearray = key.data
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                kept += chunk
                if len(kept) > limit:
                    raise ProcessFailed(argv, None, b"", f"wrote more than {limit} bytes and was killed")
    return bytes(stdout), bytes(stderr)


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
