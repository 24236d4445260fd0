"""A function with a mistake four steps deep, which random bytes do not find and coverage does."""

from __future__ import annotations

import time


def check(data: bytes) -> None:
    found = data.find(b"f")
    if found < 0:
        return
    for at, letter in enumerate(b"ish!", found + 1):
        if data[at : at + 1] != bytes([letter]):
            return
    raise ValueError("found")


def slow(_data: bytes) -> None:
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
