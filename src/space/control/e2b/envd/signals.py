"""How the end of a process is put into words, as clients of E2B read them."""

from __future__ import annotations

_WORDS = {
    1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap", 6: "aborted", 7: "bus error",
    8: "floating point exception", 9: "killed", 10: "user defined signal 1", 11: "segmentation fault", 12: "user defined signal 2",
    13: "broken pipe", 14: "alarm clock", 15: "terminated",
}  # fmt: skip


def described(code: int | None, signal: int | None) -> str:
    """`exit status 1`, `signal: killed`."""
    if signal is None:
        return f"exit status {code}"
    return f"signal: {_WORDS.get(signal, f'signal {signal}')}"
