"""The three standard streams, as they must be for whatever a shell made of them: closed, full, or without a reader."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class OutputClosed(Exception):
    """Whoever read our output has left. (The option parser would make an exit status of 1 of a BrokenPipeError.)"""


class OutputFailed(Exception):
    """Our output cannot be written: the disk is full, or standard output was closed from the beginning."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror or error}")


def lost(error: OSError) -> OutputClosed | OutputFailed:
    """What to raise when standard output takes nothing more."""
    return OutputClosed() if isinstance(error, BrokenPipeError) else OutputFailed(error)


class _Output(io.FileIO):
    """Standard output: whoever writes, a failure is one that ends the command in order."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise lost(error) from None


class _Errors(io.FileIO):
    """Standard error: what cannot be said there is not said, and changes nothing."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def secure() -> None:
    """Give the process three streams. Where one is closed, a file or a connection of ours must not get its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # the lowest that is free is this one; what is written to a closed standard output must fail, as to a full one
            os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (a stream for the whole process)
    if sys.stdout is sys.__stdout__ and not _is(sys.stdout, _Output):
        sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout, "replace")  # a terminal of another encoding shows what it can
    if sys.stderr is sys.__stderr__ and not _is(sys.stderr, _Errors):
        sys.stderr = _text(_Errors(2, "w", closefd=False), sys.stderr, "backslashreplace")


def silence() -> None:
    """What is left in the buffer has no reader, and would be complained of at the end, with a status of the interpreter's own."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _is(stream: object, kind: type[io.FileIO]) -> bool:
    return isinstance(getattr(getattr(stream, "buffer", None), "raw", None), kind)


def _text(raw: io.FileIO, before: io.TextIOBase | object, errors: str) -> io.TextIOWrapper:
    encoding = getattr(before, "encoding", None) or "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=raw.fileno() == 2 or raw.isatty())
