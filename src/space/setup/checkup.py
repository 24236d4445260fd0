"""One fact that doctor looked at, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """ok: whether sandboxes can work with it; a warning is ok. remedy: what to do, empty when nothing is.

    looked_at: where the fact is from. chosen: what `space` uses because of it (accelerator, cgroup layout, storage), where it has a choice.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    level: str = ""
    looked_at: str = ""
    chosen: str = ""

    def __post_init__(self) -> None:
        if not self.level:
            object.__setattr__(self, "level", OK if self.ok else FAILURE)


def fine(name: str, detail: str, *, looked_at: str, chosen: str = "") -> Check:
    """Nothing to do."""
    return Check(name, True, detail, "", OK, looked_at, chosen)


def warning(name: str, detail: str, remedy: str, *, looked_at: str, chosen: str = "") -> Check:
    """Sandboxes work, and something will bite."""
    return Check(name, True, detail, remedy, WARNING, looked_at, chosen)


def failure(name: str, detail: str, remedy: str, *, looked_at: str) -> Check:
    """Sandboxes do not work, or not safely."""
    return Check(name, False, detail, remedy, FAILURE, looked_at)
