"""A small client of Firecracker's API, for a VMM that may have been taken over by its guest.

One connection a call, one answer of a bounded size, every wait has a deadline; of HTTP only what Firecracker speaks is understood. The
socket lies in a directory that the VMM may write to: it is opened without following a link, and must be a socket of the VMM's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from pathlib import Path

from space.core.plan.firecracker import Call
from space.model.errors import DeadlineExceeded, ProtocolError, SandboxDied

LARGEST_ANSWER = 64 << 10
_HEAD_END = b"\r\n\r\n"


def request(call: Call) -> bytes:
    """A call's bytes."""
    body = b"" if call.method == "GET" else json.dumps(call.body, sort_keys=True).encode()
    head = f"{call.method} {call.path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def length_of_answer(data: bytes) -> int | None:
    """How long the answer that begins with `data` is; None while its head is not whole. ProtocolError for what is no answer."""
    head, end, _ = data.partition(_HEAD_END)
    if not end:
        return None
    length, status = 0, _status(head)
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            raise ProtocolError("the VMM's API sent a head with a line that is no field")
        if name.strip().lower() == b"transfer-encoding":
            raise ProtocolError("the VMM's API sent a body in pieces")
        if name.strip().lower() == b"content-length":
            digits = value.strip()
            if not digits.isdigit() or len(digits) > 6:
                raise ProtocolError("the VMM's API sent a length that is none")
            length = int(digits)
    whole = len(head) + len(end) + (0 if status == 204 else length)
    if whole > LARGEST_ANSWER:
        raise ProtocolError(f"the VMM's API sent an answer of {whole} bytes")
    return whole


def answer(data: bytes, call: Call) -> dict[str, object]:
    """What a whole answer says; ProtocolError when Firecracker refused, with its reason."""
    head, _, body = data.partition(_HEAD_END)
    status = _status(head)
    said: object = {}
    if body:
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise ProtocolError("the VMM's API sent a body that is not JSON") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"the VMM's API sent {type(said).__name__}, not an object")
    if status not in (200, 204):
        raise ProtocolError(f"the VMM refused {call.method} {call.path}: {_words(said.get('fault_message'))}")
    return said


def _status(head: bytes) -> int:
    first = head.partition(b"\r\n")[0].split(b" ", 2)
    if len(first) < 2 or first[0] not in (b"HTTP/1.1", b"HTTP/1.0") or len(first[1]) != 3 or not first[1].isdigit():
        raise ProtocolError(f"the VMM's API sent what is no answer: {head[:40]!r}")
    return int(first[1])


def _words(text: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(text)[:300])


async def connect(path: Path, uid: int, seconds: float) -> socket.socket:
    """A socket that is connected to the VMM's own at that path; FileNotFoundError, ConnectionError, TimeoutError."""
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        there = os.fstat(held)
        if not stat.S_ISSOCK(there.st_mode) or there.st_uid != uid:
            raise ProtocolError(f"{path.name} is no socket of the VMM's")
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().sock_connect(link, f"/proc/self/fd/{held}")
        except BaseException:
            link.close()
            raise
        return link
    finally:
        os.close(held)


class Api:
    """The API at one socket. Calls are made one after another."""

    def __init__(self, path: Path, uid: int) -> None:
        self._path = path
        self._uid = uid
        self._turn = asyncio.Lock()

    async def call(self, call: Call, seconds: float) -> dict[str, object]:
        """Its answer. ProtocolError when it is refused or no answer, DeadlineExceeded, SandboxDied when nobody listens."""
        try:
            async with self._turn, asyncio.timeout(seconds):
                return await self._call(call, seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"the VMM did not answer {call.method} {call.path} within {seconds:.0f} s") from None
        except (FileNotFoundError, ConnectionError) as error:
            raise SandboxDied(f"the VMM's API broke: {error.strerror}") from error

    async def _call(self, call: Call, seconds: float) -> dict[str, object]:
        loop = asyncio.get_running_loop()
        link = await connect(self._path, self._uid, seconds)
        try:
            await loop.sock_sendall(link, request(call))
            data, length = b"", None
            while length is None or len(data) < length:
                piece = await loop.sock_recv(link, 16 << 10)
                if not piece:
                    raise SandboxDied("the VMM closed its API before it had answered")
                data += piece
                if len(data) > LARGEST_ANSWER:
                    raise ProtocolError(f"the VMM's API sent more than {LARGEST_ANSWER} bytes")
                length = length_of_answer(data)
            if len(data) > length:
                raise ProtocolError("the VMM's API sent more than an answer")
            return answer(data, call)
        finally:
            link.close()
