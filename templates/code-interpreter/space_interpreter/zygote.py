"""The process that has imported everything, and of which the server and every kernel of Python and Bash is a copy.

What a kernel needs is mostly what it imports: a copy has it at once, and shares its memory with the others. The server asks over a socket
for kernels and is told when one ends. When the server ends, its kernels do, and it is begun anew.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

MODULES = (
    "bash_kernel.kernel", "ipykernel.kernelapp", "matplotlib.pyplot", "matplotlib_inline.backend_inline", "numpy", "pandas",
    "space_interpreter.inkernel", "space_interpreter.server",
)  # fmt: skip
PAUSE_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1
_MOST = 1 << 16


def main() -> NoReturn:
    """Import, then serve for as long as this lives."""
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for name in MODULES:
        importlib.import_module(name)
    from space_interpreter import server as server_module

    rehearse()
    gc.collect()
    gc.freeze()  # the collections of a copy then leave these pages alone
    ended, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    while True:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = fork(partial(_server, theirs), [ours, ended, told])
        theirs.close()
        _serve(ours, server, ended, told)
        ours.close()
        (server_module.PLACE / server_module.SERVER).unlink(missing_ok=True)
        time.sleep(PAUSE_SECONDS)


def rehearse() -> None:
    """Draw a figure and show a table: what that loads, and the processor's emulation translates, is then there for every copy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="1")
    axes.set_title("1")
    figure.savefig(io.BytesIO(), format="png")
    sys.modules["pandas"].DataFrame({"a": [1.0]})._repr_html_()


def fork(body: Callable[[], None], inherited: list[Any]) -> int:
    """The pid of a copy that does that and ends; what is inherited and not its own is closed in it. It ends with this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in inherited:
            os.close(each) if isinstance(each, int) else each.close()
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        body()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _server(link: socket.socket) -> None:
    from space_interpreter import server

    server.main(link)


def _serve(link: socket.socket, server: int, ended: int, told: int) -> None:
    """Until the server has ended."""
    kernels: set[int] = set()
    while True:
        watched: list[Any] = [link, ended]
        ready = select.select(watched, [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            for pid, status in reaped():
                if pid == server:
                    _end(kernels)
                    return
                kernels.discard(pid)
                with suppress(OSError):
                    link.send(json.dumps({"ended": pid, "status": status}).encode())
        if link in ready and (data := link.recv(_MOST)):
            asked = json.loads(data)
            kernels.add(pid := fork(partial(_kernel, asked), [link, ended, told]))
            with suppress(OSError):
                link.send(json.dumps({"begun": pid, "for": asked["for"]}).encode())
        elif link in ready:  # it has ended, or is about to
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)


def _kernel(asked: dict[str, Any]) -> None:
    from space_interpreter import inkernel

    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["variables"])
    with open(os.devnull, "r+b") as nothing:
        for number in (0, 1):
            os.dup2(nothing.fileno(), number)
    inkernel.run(asked["kind"], asked["connection"])


def reaped() -> list[tuple[int, int]]:
    """Children that have ended, with how."""
    found = []
    with suppress(ChildProcessError):
        while (each := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((each[0], os.waitstatus_to_exitcode(each[1])))
    return found


def _end(kernels: set[int]) -> None:
    for pid in kernels:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + 2
    while kernels and time.monotonic() < deadline:
        kernels.difference_update(pid for pid, _ in reaped())
        time.sleep(0.02)


if __name__ == "__main__":
    main()
