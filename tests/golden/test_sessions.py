"""What an acceptor makes of both pipes' bytes together: the vectors of sessions.json, which the Rust side reads as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from space.core.wire.events import GUEST, Broken, Event, Opened, WasReset
from space.core.wire.mux import Acceptor

SESSIONS = json.loads((Path(__file__).parent / "wire/sessions.json").read_text())
PIPES = {"control": 0, "bulk": 1}


def told(event: Event) -> dict[str, Any] | None:
    match event:
        case Opened(stream, verb):
            return {"event": "open", "stream": stream, "verb": verb}
        case WasReset(stream):
            return {"event": "reset", "stream": stream}
        case Broken(error):
            raise error
    return None


@pytest.mark.parametrize("session", SESSIONS, ids=[session["name"] for session in SESSIONS])
def test_both_pipes_together_mean_the_golden_events(session: dict[str, Any]) -> None:
    acceptor = Acceptor(GUEST)
    for step in session["steps"]:
        events = [told(event) for event in acceptor.receive(PIPES[step["pipe"]], bytes.fromhex(step["hex"]))]
        assert [event for event in events if event is not None] == step["events"], step
