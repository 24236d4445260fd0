"""What a kernel says, as the lines that an execution's client reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}

END = {"type": "end_of_execution"}
DIED = {"type": "unexpected_end_of_execution"}
TIMED_OUT = {"type": "timed_out"}
KEEPALIVE = {"type": "keepalive"}


def output(stream: str, text: str) -> dict[str, Any]:
    """stream: stdout or stderr. The time is in nanoseconds since 1970."""
    return {"type": "stderr" if stream == "stderr" else "stdout", "text": text, "timestamp": time.time_ns()}


def error(name: str, value: str, traceback: str) -> dict[str, Any]:
    """Code that ended with an error."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def count(number: int) -> dict[str, Any]:
    """Which execution of its kernel this is."""
    return {"type": "number_of_executions", "execution_count": number}


def result(bundle: Mapping[str, Any], *, main: bool) -> dict[str, Any]:
    """A value, or something displayed, in its forms by media type. main: the value of the last expression."""
    found: dict[str, Any] = {"type": "result"}
    extra: dict[str, Any] = {}
    for kind, value in bundle.items():
        if value is None:
            continue
        if (name := NAMES.get(kind)) is None:
            extra[kind] = value
        elif name == "text":
            found["text"] = unquoted(str(value))
        elif name in ("png", "jpeg", "pdf") and isinstance(value, str):
            found[name] = value.replace("\n", "")
        else:
            found[name] = value
    return found | ({"extra": extra} if extra else {}) | {"is_main_result": main}


def unquoted(text: str) -> str:
    """The text of a string without the quotes that its representation has."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
