"""A table of pandas as plain data: a dictionary of its columns."""

from __future__ import annotations

import math
from typing import Any

MOST_CELLS = 100_000


def data(frame: Any) -> dict[str, list[Any]] | None:
    """Its columns by name; None for one that is too large to be sent beside its text."""
    if frame.shape[0] * max(1, frame.shape[1]) > MOST_CELLS:
        return None
    return {_name(name): [plain(cell) for cell in frame.iloc[:, at].tolist()] for at, name in enumerate(frame.columns)}


def _name(name: Any) -> str:
    return " ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def plain(value: Any) -> Any:
    """What JSON has for it: numbers that it has none for are None, times are ISO 8601, and the rest is text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if hasattr(value, "isoformat"):
        text = str(value.isoformat())
        return None if text == "NaT" else text
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return number if math.isfinite(number) else None
