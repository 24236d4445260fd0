"""A run: an instance of its own on ground of its own, guests, attempts one after another."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

import space
from space.model.errors import Conflict
from space.sdk import Secret
from space.testing import machine
from space.testing.machine import Runtime
from space_evaluate.catalogue import Attempt
from space_evaluate.ground import API, Place, ground
from space_evaluate.lane import SILENT, Guest, Judge, guest
from space_evaluate.outcome import Outcome, Run
from space_evaluate.report import mutations
from space_evaluate.technique import BLOCKED

GRANT, SECRET = "evaluation", "evaluation"
RECOVERY = 10.0  # seconds after which what one attempt used up must be there again


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


@contextmanager
def stage_here(client: space.Client) -> Iterator[tuple[space.Client, Place]]:
    """The server that runs already. It cannot reach the ground, which is a witness only; so nothing is allowed to its guests there."""
    others = busy(client)
    if others:
        raise Conflict(f"{others} sandboxes of other tenants are on this server", hint="it floods and kills: run it without --here")
    with ground() as place:
        yield client, place


def busy(client: space.Client) -> int:
    """How many sandboxes there are that the caller's own tenant does not see."""
    listed = client.keys()
    tenants = {key.tenant for key in listed}
    return sum(client.quota(tenant).used.sandboxes for tenant in tenants) - sum(1 for _ in client.sandboxes())


def run(client: space.Client, place: Place, wanted: Sequence[Attempt], *, quick: bool = False, grants: Sequence[str] = (GRANT,)) -> Run:
    """Try them all. grants: that guests get."""
    began, outcomes, whole = time.monotonic(), list[Outcome](), True
    try:
        outcomes.extend(_all(client, place, wanted, grants))
    except (KeyboardInterrupt, SystemExit):  # the latter is what signals become
        whole = False  # what was tried is told, and is no pass
    return Run(outcomes, surroundings(client), mutations(), quick=quick, seconds=time.monotonic() - began, whole=whole)


def _all(client: space.Client, place: Place, wanted: Sequence[Attempt], grants: Sequence[str]) -> Iterator[Outcome]:
    shared = sorted((one for one in wanted if not one.entry.technique.alone), key=lambda one: one.policy == BLOCKED)
    if shared:
        with guest(client, place, grants=grants) as here:
            yield from trying(here, shared)
    for _, group in groupby((one for one in wanted if one.entry.technique.alone), key=_shared_by):
        yield from _alone(client, place, list(group), grants)


def tried(here: Guest, wanted: Sequence[Attempt]) -> list[Outcome]:
    """What `trying` finds, all of it."""
    return list(trying(here, wanted))


def trying(here: Guest, wanted: Sequence[Attempt]) -> Iterator[Outcome]:
    """In one guest, technique by technique: what must work is tried before the first, and after each, which is before the next."""
    judge, begun = Judge(here), False
    for (_, policy), attempts in groupby(wanted, key=lambda one: (one.entry.id, one.policy)):
        if policy != here.policy or not begun:
            here.hold_to(policy)
            if why := here.control():
                raise RuntimeError(f"what must work does not before the first attempt ({policy}): {why}")
            begun = True
        found = [judge.attempt(one) for one in attempts]
        why = _afterwards(here)
        for one in found:
            outcome = one.without_control(why) if why else one
            _say(outcome)
            yield outcome


def _afterwards(here: Guest) -> str:
    """Whether what must work still does; a flood's budgets are given time."""
    why = here.control()
    if why and why != SILENT:
        time.sleep(RECOVERY)
        why = here.control()
    return why


def _shared_by(one: Attempt) -> tuple[str, ...]:
    """Attempts that may share a guest of their own: those of one technique, unless it may die of one."""
    return (one.entry.id, one.policy, one.goal, one.variant) if one.entry.technique.dies else (one.entry.id,)


def _alone(client: space.Client, place: Place, wanted: list[Attempt], grants: Sequence[str]) -> list[Outcome]:
    """In a guest of their own. Where it may die the control is a guest that is made afterwards: the host goes on."""
    with guest(client, place, grants=grants) as here:
        if not wanted[0].entry.technique.dies:
            return tried(here, wanted)
        here.hold_to(wanted[0].policy)
        before = here.control()
        (found,) = (Judge(here).attempt(one) for one in wanted)
    with guest(client, place, grants=grants) as here:
        here.hold_to(wanted[0].policy)
        why = before or here.control()
    outcome = found.without_control(why) if why else found
    _say(outcome)
    return [outcome]


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
