"""One line on standard error, which serve keeps."""

from __future__ import annotations

import os
import time


def log(line: str) -> None:
    """Write a line with its time (UTC); what cannot be printed in it is escaped."""
    seconds = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
    text = line.encode("ascii", "backslashreplace").replace(b"\n", b"\\n")
    os.write(2, f"{stamp} rootd[{os.getpid()}] ".encode() + text + b"\n")
