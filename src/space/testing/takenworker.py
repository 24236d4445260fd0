"""The zygote, whose workers do what a test says: what somebody would do who runs code in a worker. Run by tests as another program.

    say(b"!" + expression)      is evaluated in the worker, confined as ever; what it gives, or raises, is heard as its repr

Workers end after a second without work, so that a test need not wait. Nothing of the product knows of this module.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from space.gateway import inner, server, workerprocess
from space.gateway.outside import Outside

LIBC = ctypes.CDLL(None, use_errno=True)
_NAMES = {"os": os, "socket": socket, "signal": signal, "sys": sys, "time": time, "ctypes": ctypes, "open": open}


def call(number: int, *arguments: int) -> int:
    """A system call by number; OSError."""
    LIBC.syscall.restype = ctypes.c_long
    result = int(LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _obeying(heard: Callable[[Outside, bytes, int | None], None]) -> Callable[[Outside, bytes, int | None], None]:
    def obey(outside: Outside, data: bytes, descriptor: int | None) -> None:
        if data[:2] != b"M!":
            heard(outside, data, descriptor)
            return
        try:
            said = repr(eval(data[2:], {**_NAMES, "call": call, "outside": outside, "inner": inner}))
        except BaseException as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
        outside.up(inner.Message(said.encode()[:4000]))

    return obey


def main() -> int:
    """The zygote's."""
    Outside._heard = _obeying(Outside._heard)  # type: ignore[method-assign,assignment]
    workerprocess.IDLE_SECONDS = 1.0
    return server.main()


if __name__ == "__main__":
    raise SystemExit(main())
