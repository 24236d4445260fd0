"""A run: an instance of its own on ground of its own, guests, attempts one after another."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import space
from space.sdk import Secret
from space.testing import machine
from space.testing.machine import Runtime
from space_evaluate.catalogue import Attempt
from space_evaluate.ground import API, Place, ground
from space_evaluate.lane import Guest, Judge, guest
from space_evaluate.outcome import Outcome, Run

GRANT, SECRET = "evaluation", "evaluation"


@contextmanager
def stage(runtime: Runtime | None = None, log: Path | None = None) -> Iterator[tuple[space.Client, Place]]:
    """An instance that stands on ground of its own, with a credential that guests use and never hold."""
    with ExitStack() as stack:
        place = stack.enter_context(ground())
        served = stack.enter_context(machine.private(runtime or machine.this_runtime(), log, **place.settings))
        client = stack.enter_context(space.Client(api_url=served.url, api_key=served.api_key))
        client.put_secret(SECRET, Secret(place.credential.encode()))
        client.put_grant(GRANT, {"secret": SECRET, "where": {"host": API, "methods": ["GET"]}, "slot": {"kind": "header"}})
        yield client, place


def run(client: space.Client, place: Place, wanted: Sequence[Attempt], *, quick: bool = False) -> Run:
    """Try them all."""
    began, outcomes = time.monotonic(), []
    shared = sorted((one for one in wanted if not one.entry.technique.alone), key=lambda one: one.policy == "blocked")
    alone = [one for one in wanted if one.entry.technique.alone]
    if shared:
        with guest(client, place, grants=(GRANT,)) as here:
            outcomes += tried(here, shared)
    for one in alone:
        outcomes.append(_alone(client, place, one))
        _say(outcomes[-1])
    return Run(outcomes, surroundings(client), quick=quick, seconds=time.monotonic() - began)


def tried(here: Guest, wanted: Sequence[Attempt]) -> list[Outcome]:
    """In one guest. Before the first attempt under a policy the control is made alone: it must work before, and after each."""
    judge, outcomes, policy = Judge(here), list[Outcome](), None
    for one in wanted:
        if one.policy != policy:
            here.hold_to(one.policy)
            policy = one.policy
            if why := here.control():
                raise RuntimeError(f"what must work does not before the first attempt ({policy}): {why}")
        outcomes.append(judge.attempt(one))
        _say(outcomes[-1])
    return outcomes


def _alone(client: space.Client, place: Place, one: Attempt) -> Outcome:
    with guest(client, place, grants=(GRANT,)) as here:
        return tried(here, [one])[0]


def surroundings(client: space.Client) -> dict[str, str]:
    """Versions, and how guests are isolated: never added together with another kind's."""
    health = client.call("GET", "/healthz")
    return {"version": space.__version__, "isolation": str(health.get("isolation", "unknown"))} if isinstance(health, dict) else {}


def _say(one: Outcome) -> None:
    words = f"{one.word:8} {one.attempt.name}: {', '.join(one.by)} ({one.seconds:.1f} s)"
    print("\n    ".join([words, *(one.evidence if one.word != "stopped" else ())]), file=sys.stderr, flush=True)


def work_log() -> Path:
    """Where a private server's own lines go."""
    return Path(tempfile.mkdtemp(prefix="space-evaluate-log-")) / "serve.log"
