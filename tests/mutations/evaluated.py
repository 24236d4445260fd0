"""Weaken one defence after another in a running instance, and see which techniques of the evaluation notice.

python -m tests.mutations.evaluated [--all] [--report FILE] [DEFENCE...]

Of each defence its weakened forms are tried in the table's order until one is noticed, or all of them with --all.

What lives in services is changed by killing those services alone: serve starts them again, and the next import is the weakened one. What
lives in rootd gets an instance of its own. Each defence is tried by the techniques that name it, and by a fixed set that must go on being
stopped (they say that the instance is otherwise whole). The table is `src/space_evaluate/mutations.json`, with the commit it was made from.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.mutations.__main__ import ROOT, environment
from tests.mutations.table import MUTATIONS, Mutation

import space
from space.model.errors import SpaceError
from space.sdk import Secret
from space.testing.machine import Runtime, Server
from space_evaluate import catalogue, runner
from space_evaluate.catalogue import Attempt
from space_evaluate.ground import API, Place, ground
from space_evaluate.lane import Guest, guest

REPORT = ROOT / "src/space_evaluate/mutations.json"
Row = dict[str, Any]
# A module's processes; of all others, what parses and judges traffic.
_ROLES = {
    "space.broker": ("broker",),
    "space.auditd": ("audit",),
    "space.dialer": ("dialer",),
    "space.core.credentials": ("broker", "gateway"),
}
_TRAFFIC = ("gateway", "dialer")
_IN_ROOTD = ("space.core.plan.edge", "space.core.plan.outbound")
_BACK_WITHIN = 90.0
# Of every kind, beside those that name the defence; what must go on being stopped.
FIXED = (
    "unlisted", "forged-reply", "odd-types", "host-field", "sni", "h2-authority", "literal", "private-name", "foreign-mac", "two-lengths",
    "length-and-chunks", "methods", "paths-that-climb", "ws-not-allowed", "old-versions", "two-names", "metadata-services",
    "publish", "other-ports", "echo",
)  # fmt: skip


class Instance:
    """One whose services are started again with another mutation."""

    def __init__(self, stack: ExitStack, mutation: Mutation) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutation-")))
        python = environment(folder, mutation, served=True)
        self.packages = next(folder.glob("lib/*/site-packages"))
        self.place: Place = stack.enter_context(ground())
        self.server = Server(Runtime(python, dev=True), folder / "serve.log", self.place.settings)
        stack.callback(self.server.close)
        served = self.server.start()
        self.client = stack.enter_context(space.Client(api_url=served.url, api_key=served.api_key))
        self.client.put_secret(runner.SECRET, Secret(self.place.credential.encode()))
        where = {"secret": runner.SECRET, "where": {"host": API, "methods": ["GET"]}, "slot": {"kind": "header"}}
        self.client.put_grant(runner.GRANT, where)

    def weaken(self, mutation: Mutation) -> None:
        """Another defence is weak from now on, and no other."""
        (self.packages / "mutation.json").write_text(json.dumps(asdict(mutation)))
        (self.packages / "done/mark").unlink(missing_ok=True)
        for role in _roles(mutation):
            self.server.kill(role)

    @property
    def applied(self) -> bool:
        """Whether a process has imported it."""
        return (self.packages / "done/mark").exists()


def _roles(mutation: Mutation) -> tuple[str, ...]:
    return next((roles for prefix, roles in _ROLES.items() if mutation.module.startswith(prefix)), _TRAFFIC)


def _wanted(defence: str) -> list[Attempt]:
    """Attempts of the techniques that name it, those that share a guest first."""
    chosen = tuple(one for one in catalogue.entries() if defence in one.technique.defences and not one.technique.dies)
    return sorted(catalogue.attempts(chosen), key=lambda one: (one.entry.technique.alone, one.policy == "blocked"))


def _fixed(without: Iterable[str]) -> list[Attempt]:
    chosen = tuple(one for one in catalogue.entries() if one.id in FIXED and one.id not in without)
    return [next(iter(catalogue.attempts((one,)))) for one in chosen]


def noticed(instance: Instance, here: Guest, mutation: Mutation) -> tuple[list[str], list[str]]:
    """The techniques that name the defence and notice, and those of the fixed set that were not stopped."""
    _until_back(here)
    found = []
    wanted = _wanted(mutation.defence)
    for name, attempts in groupby(wanted, key=lambda one: one.entry.id):
        for one in attempts:
            if one.entry.technique.alone:
                (outcome,) = runner.run(instance.client, instance.place, [one]).outcomes
            else:
                (outcome,) = runner.tried(here, [one])
            if outcome.word != "stopped" and outcome.control:
                found.append(name)
                break
    beside = [one for one in runner.tried(here, _fixed({one.entry.id for one in wanted})) if one.word != "stopped"]
    return found, [one.attempt.entry.id for one in beside]


def _until_back(here: Guest) -> None:
    until = time.monotonic() + _BACK_WITHIN
    here.hold_to("narrow")
    while why := here.control():
        if time.monotonic() > until:
            raise RuntimeError(f"the instance does not come back: {why}")
        time.sleep(0.5)


@contextmanager
def _standing(mutation: Mutation) -> Iterator[tuple[Instance, Guest]]:
    with ExitStack() as stack:
        instance = Instance(stack, mutation)
        yield instance, stack.enter_context(guest(instance.client, instance.place, grants=(runner.GRANT,)))


def main() -> int:
    """0 when every defence that was tried was noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.evaluated", description="which techniques notice a weak defence")
    parser.add_argument("defences", nargs="*", metavar="DEFENCE")
    parser.add_argument("--all", action="store_true", help="every weakened form, not those up to the first that is noticed")
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()
    forms = _forms(options.defences)
    table = json.loads(options.report.read_text()) if options.report.exists() else {"defences": {}}
    within = {defence: some for defence, some in forms.items() if some[0].module not in _IN_ROOTD}
    if within:
        first = next(iter(within.values()))[0]
        with _standing(first) as (instance, here):
            for defence, some in within.items():
                rows = []
                for mutation in some:
                    if mutation is not first:
                        instance.weaken(mutation)
                    rows.append(_tried(mutation, instance, here))
                    if rows[-1]["noticed"] and not options.all:
                        break
                _enter(table, defence, rows, options.report)
    for defence, some in forms.items():
        if defence in within:
            continue
        rows = []
        for mutation in some:
            rows.append(_alone(mutation))
            if rows[-1]["noticed"] and not options.all:
                break
        _enter(table, defence, rows, options.report)
    blank = [defence for defence, row in table["defences"].items() if not row["noticed"] and not row.get("reason")]
    print(f"{len(table['defences'])} defences; noticed by nobody: {blank}", file=sys.stderr)
    return 1 if blank else 0


def _forms(names: Sequence[str]) -> dict[str, list[Mutation]]:
    """The weakened forms of each defence that techniques name."""
    named = {defence for entry in catalogue.entries() for defence in entry.technique.defences}
    found: dict[str, list[Mutation]] = {}
    for one in MUTATIONS:
        if one.defence in named and (not names or one.defence in names):
            found.setdefault(one.defence, []).append(one)
    return found


def _tried(mutation: Mutation, instance: Instance, here: Guest) -> Row:
    """A row of that form: which techniques notice, and what failed where the form itself did."""
    began = time.monotonic()
    try:
        found, beside = noticed(instance, here, mutation)
        why = "" if instance.applied else "it was never imported"
    except RuntimeError as error:
        found, beside, why = [], [], str(error)
    print(f"{mutation.defence} ({mutation.name}): {found or 'NOBODY'} {why}", file=sys.stderr, flush=True)
    row: Row = {"mutation": mutation.name, "noticed": sorted(set(found)), "beside": beside, "seconds": round(time.monotonic() - began)}
    return {**row, **({"fault": why} if why else {})}


def _alone(mutation: Mutation) -> Row:
    """In an instance of its own: what rootd does is done anew for each. One that refuses to start so weakened says it by itself."""
    began = time.monotonic()
    try:
        with _standing(mutation) as (instance, here):
            return _tried(mutation, instance, here)
    except SpaceError as error:
        print(f"{mutation.defence} ({mutation.name}): {error}", file=sys.stderr, flush=True)
        row: Row = {"mutation": mutation.name, "noticed": [], "beside": [], "seconds": round(time.monotonic() - began)}
        return {**row, "reason": f"an instance that is so weakened does not start: {error.message}"}


def _enter(table: dict[str, Any], defence: str, rows: Sequence[Row], report: Path) -> None:
    """The form that most techniques notice is the defence's row; the others stand in it by name."""
    best = max(rows, key=lambda row: len(row["noticed"]))
    others = {row["mutation"]: row["noticed"] for row in rows if row is not best}
    seconds = sum(row["seconds"] for row in rows)
    row = {**_kept(table, defence, best["noticed"]), **best, "seconds": seconds}
    table["defences"][defence] = {**row, **({"others": others} if others else {})}
    table["commit"] = _commit()
    report.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


def _kept(table: dict[str, Any], defence: str, found: list[str]) -> Row:
    """A reason that somebody wrote for a blank stays as long as it is one."""
    reason = table["defences"].get(defence, {}).get("reason")
    return {"reason": reason} if reason and not found else {}


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
