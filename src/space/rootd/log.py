"""One line on standard error, which serve keeps: as text, or as a JSON object with the other services' fields (`space.config.logs`)."""

from __future__ import annotations

import json
import os
import time

from space.host import logfile

_as_json = False


def configure(form: str) -> None:
    """How lines are written: `text` or `json`."""
    global _as_json
    _as_json = form == "json"


def log(line: str, *, level: str = "info", sandbox: str | None = None) -> None:
    """Write a line with its time (UTC); what cannot be printed in it is escaped. sandbox, level: for JSON."""
    seconds = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
    if _as_json:
        fields = {"time": stamp, "level": level, "service": "rootd", "logger": "space.rootd", "message": line}
        text = json.dumps(fields | ({"sandbox": sandbox} if sandbox else {})).encode()
    else:
        text = f"{stamp} rootd[{os.getpid()}] ".encode() + line.encode("ascii", "backslashreplace").replace(b"\n", b"\\n")
    logfile.write_line(2, text + b"\n")
