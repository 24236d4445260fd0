"""The program that tries techniques in a guest: one line of JSON in for each, lines of JSON out (`did`, `got`, `refused`, at last `end`).

Each attempt is a process of its own: whatever it does to itself, the next one begins as it did. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from space_evaluate import inside
from space_evaluate.technique import Ground


def main() -> None:
    """Until its input ends."""
    inside.trusting()  # what every attempt needs is there before the first
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        began = time.monotonic()
        words = tried(told) if "module" in told else controlled(told)
        print(json.dumps({"n": told["n"], "end": words, "seconds": round(time.monotonic() - began, 3)}), flush=True)


def tried(told: dict[str, Any]) -> str:
    """Run the attempt; "" when it came to its end, else why not."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        os.close(reader)
        os.set_inheritable(writer, False)
        words = b""
        try:
            _attempt(told)
        except BaseException as error:
            words = "".join(traceback.format_exception_only(error)).strip()[-500:].encode()
            traceback.print_exc()
        os.write(writer, b"." + words)
        os._exit(0)
    os.close(writer)
    ready = select.select([reader], [], [], told["seconds"])[0]
    said = os.read(reader, 1000) if ready else b""
    os.close(reader)
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not ready:
        return f"it did not end within {told['seconds']:g} s"
    return said[1:].decode() if said else "it died"


def _attempt(told: dict[str, Any]) -> None:
    module = importlib.import_module(told["module"])
    case = inside.Case(told["n"], told["token"], told["goal"], told["policy"], Ground(**told["ground"]))
    module.attack(case, told["what"])


def controlled(told: dict[str, Any]) -> str:
    """What must work: an allowed request, or where nothing is allowed the gateway's answer to a query. "" when it does."""
    ground, why = Ground(**told["ground"]), ""
    for _ in range(3):
        try:
            why = _control(told["policy"], ground, told["token"])
        except (OSError, RuntimeError) as error:
            why = f"{type(error).__name__}: {error}"
        if not why:
            return ""
        time.sleep(0.3)
    return why


def _control(policy: str, ground: Ground, token: str) -> str:
    if policy == "blocked":
        answer = inside.ask(inside.question(f"{token}.example.net"), ground.gateway)
        return "" if answer is not None and answer["code"] == 5 else f"a query was not refused: {inside.told(answer)}"
    case = _Silent(0, token, "callback", "narrow", ground)
    got = case.http(ground.packages, f"/simple/{token}/", seconds=15)
    return "" if got.startswith(b"HTTP/1.1 200 ") else f"an allowed request was answered {got[:200]!r}; {case.words}"


class _Silent(inside.Case):
    words = ""

    def _say(self, **what: str) -> None:
        self.words += what.get("did", "")


if __name__ == "__main__":
    main()
