"""How a service tells serve that it is ready."""

from __future__ import annotations

import os
from contextlib import suppress


def say_ready(descriptor: int | None) -> None:
    """Write one line on the pipe that serve gave us, if it did, and close it. A serve that has died meanwhile is no reason to end."""
    if descriptor is not None:
        with suppress(BrokenPipeError):
            os.write(descriptor, b"ready\n")
        os.close(descriptor)
