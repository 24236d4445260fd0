"""A terminal of this machine joined to a process in a sandbox.

    keys -> (detach keys) -> the process ;  its output -> the screen ;  SIGWINCH -> its size

While it lasts every key is a byte for the process: Ctrl-C, Ctrl-Z and Ctrl-D too. However it ends, the terminal is as it was: its modes,
and what the process asked of the screen (the alternate one, the mouse, a hidden cursor) and could not take back.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from space.cli.context import Misuse, tell, writer
from space.model.errors import SpaceError

if TYPE_CHECKING:
    from space.model.sandbox import ExitStatus
    from space.sdk import Gap, Terminal

DEFAULT_SIZE = (24, 80)
_READ = 65536
_STOP = b"\0"  # no signal has this number
_MODE = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
_UNFINISHED = re.compile(rb"\x1b(\[(\?[0-9;]{0,40})?)?\Z")
# Modes that outlive a program that could not clean up, and whether they are on to begin with.
_MODES = {b"1": False, b"7": True, b"25": True, b"1004": False, b"2004": False}
_MODES |= dict.fromkeys((b"9", b"1000", b"1001", b"1002", b"1003", b"1005", b"1006", b"1015", b"1016"), False)
_MODES |= dict.fromkeys((b"47", b"1047", b"1049"), False)


class Screen:
    """What passed on its way to the screen: which modes are not as they were."""

    def __init__(self) -> None:
        self._changed: dict[bytes, None] = {}
        self._rest = b""

    def saw(self, data: bytes) -> None:
        """Output that was shown, split anywhere."""
        if not self._rest and b"\x1b" not in data:
            return
        data = self._rest + data
        for found in _MODE.finditer(data):
            for number in found[1].split(b";"):
                if _MODES.get(number) is (found[2] == b"h"):
                    self._changed.pop(number, None)
                elif number in _MODES:
                    self._changed[number] = None
        unfinished = _UNFINISHED.search(data)
        self._rest = unfinished[0] if unfinished else b""

    def undo(self) -> bytes:
        """What puts the screen back; nothing where the program did so itself."""
        if not self._changed:
            return b""
        back = b"".join(b"\x1b[?" + number + (b"h" if _MODES[number] else b"l") for number in reversed(self._changed))
        return back + b"\x1b>\x1b[0m"


class DetachKeys:
    """Finds the keys that let go, one after the other, in what is typed; all else is passed on, also their beginning."""

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """What to pass on, and whether the keys were there: then nothing behind them is passed on."""
        if not self._keys:
            return data, False
        data = self._held + data
        before, found, _ = data.partition(self._keys)
        if found:
            return before, True
        kept = next((n for n in range(min(len(self._keys) - 1, len(data)), 0, -1) if data.endswith(self._keys[:n])), 0)
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept], False


def detach_keys(text: str) -> DetachKeys:
    r"""`ctrl-p,ctrl-q`: keys as docker writes them, a letter or ctrl- and one of a-z @ [ \ ] ^ _; nothing for none."""
    keys = bytearray()
    for name in text.split(",") if text else []:
        letter = name.removeprefix("ctrl-")
        if len(letter) != 1 or not letter.isascii() or (letter != name and not "@" <= letter.upper() <= "_"):
            raise Misuse(f"there is no key {name!r}", hint="such as --detach-keys ctrl-p,ctrl-q or ctrl-],d")
        keys += letter.encode() if letter == name else bytes([ord(letter.upper()) & 0x1F])
    return DetachKeys(bytes(keys))


def terminal_size() -> tuple[int, int]:
    """Lines and columns of our terminal, or the usual ones where there is none."""
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            found = os.get_terminal_size(descriptor)
            if found.lines and found.columns:
                return found.lines, found.columns
    return DEFAULT_SIZE


@contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """The terminal passes every key on and changes no output; as it was again at the end. Nothing for what is no terminal."""
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Conversation:
    """One terminal and one process. `run` returns how it ended, or None when the detach keys were typed."""

    def __init__(self, terminal: Terminal, *, keys: DetachKeys, pty: bool, reads: bool = True) -> None:
        self._terminal = terminal
        self._keys = keys
        self._pty = pty
        self._reads = reads
        self._screen = Screen()
        self._detached = False
        self._gaps: list[Gap] = []

    def run(self) -> ExitStatus | None:
        """Until the process ends. Raises what broke the connection; the terminal is as it was by then."""
        with ExitStack() as stack:
            wake = stack.enter_context(_wakes())
            stack.callback(self._put_back)
            if self._pty and self._reads:
                stack.enter_context(raw(0))
            typing = threading.Thread(target=self._type, args=(wake[0],), name="space terminal", daemon=True)
            typing.start()
            try:
                self._show()
            finally:
                os.write(wake[1], _STOP)
                if self._detached or self._terminal.exit is not None:
                    typing.join(1.0)  # one that waits for the process to read ends with the connection
        for gap in self._gaps:
            tell(f"{gap.bytes} bytes of {gap.stream} from byte {gap.offset} on were dropped before they could be shown")
        return None if self._detached else self._terminal.exit

    def _show(self) -> None:
        from space.sdk import Gap

        write = {"stdout": writer(1), "stderr": writer(2)}
        try:
            for piece in self._terminal:
                if isinstance(piece, Gap):
                    self._gaps.append(piece)  # told when the screen is ours again
                    continue
                if self._pty:
                    self._screen.saw(piece.data)
                write[piece.stream](piece.data)
        except SpaceError:
            if not self._detached:
                raise

    def _put_back(self) -> None:
        if os.isatty(1) and (back := self._screen.undo()):
            with suppress(OSError):
                os.write(1, back)

    def _type(self, wake: int) -> None:
        """What is typed, and the size of the window, to the process. Ends with the connection, whose fault the other side tells."""
        sources = [wake, 0] if self._reads else [wake]
        with suppress(SpaceError, OSError):
            while True:
                ready = select.select(sources, [], [])[0]
                if wake in ready and self._woken(os.read(wake, _READ)):
                    return
                if 0 in ready and self._typed(os.read(0, _READ)):
                    sources.remove(0)

    def _woken(self, numbers: bytes) -> bool:
        if _STOP in numbers:
            return True
        if not self._pty:
            return False
        if signal.SIGCONT in numbers and self._reads and os.isatty(0):
            tty.setraw(0, termios.TCSADRAIN)  # whoever stopped us has set it to its own liking
        if {signal.SIGCONT, signal.SIGWINCH} & set(numbers):
            self._terminal.resize(*terminal_size())
        return False

    def _typed(self, data: bytes) -> bool:
        """Whether that was the end of the input."""
        if not data:
            self._terminal.send_eof()
            return True
        passed, detached = self._keys.receive(data)
        if passed:
            self._terminal.send(passed)
        if detached:
            self._detached = True
            self._terminal.close()
        return detached


@contextmanager
def _wakes() -> Iterator[tuple[int, int]]:
    """A pipe that gets the number of each signal: a handler could not send, because it may stand within a sending."""
    numbers = (signal.SIGWINCH, signal.SIGCONT)
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    fd_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading, writing
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        # The descriptors stay open: the thread that reads may still be on its way out, and another file must not get its number.


def is_interactive() -> bool:
    """Whether somebody sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()
