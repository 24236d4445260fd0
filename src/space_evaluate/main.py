"""`space evaluate [--quick] [--json] [--group G] [--technique ID] [--report DIR]`: try to get out of sandboxes of the installed version."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import space
from space.model.errors import InvalidArgument, PermissionDenied
from space_evaluate import catalogue, report
from space_evaluate.catalogue import Attempt, Entry
from space_evaluate.outcome import Run
from space_evaluate.runner import run, stage, stage_here, work_log
from space_evaluate.technique import BLOCKED


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 only if nothing was reached, nothing failed and everything that must work did."""
    options = _parser().parse_args(argv)
    chosen = _chosen(options.group, options.technique)
    if options.list:
        _list(chosen)
        return 0
    if os.geteuid() != 0:
        raise PermissionDenied(
            f"space evaluate wants root, not uid {os.geteuid()}", hint="it starts a server, a network and guests of its own"
        )
    wanted = catalogue.attempts(chosen, quick=options.quick, variants=options.variants)
    print(f"{len(wanted)} attempts of {len({one.entry.id for one in wanted})} techniques", file=sys.stderr)
    log = work_log()
    try:
        found = _here(wanted, quick=options.quick) if options.here else _private(log, wanted, quick=options.quick)
    finally:
        print(f"the server's log: {log}", file=sys.stderr)
    if options.report is not None:
        report.write(found, options.report)
    print(json.dumps(found.as_json()) if options.json else _table(found))
    return 0 if found.passed else 1


def _private(log: Path, wanted: Sequence[Attempt], *, quick: bool) -> Run:
    with stage(log=log) as (client, place):
        return run(client, place, wanted, quick=quick)


def _here(wanted: Sequence[Attempt], *, quick: bool) -> Run:
    """On the server that runs: what needs nothing of an instance's settings, after a word of whoever is there."""
    with space.Client() as client:
        address = client.endpoint.url
        print(f"This attacks the server at {address}, from sandboxes of its own.", file=sys.stderr)
        print("Type its address to go on: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != address:
            raise InvalidArgument("not confirmed: nothing was done")
        with stage_here(client) as (_, place):
            return run(client, place, [one for one in wanted if one.policy == BLOCKED], quick=quick, grants=())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="space evaluate", description="Try to get out of sandboxes, as root in them, and say what was reached."
    )
    parser.add_argument("--quick", action="store_true", help="the set of every change: one attempt of each of its techniques")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--group", action="append", default=[], metavar="G", help="only this group; repeatable")
    parser.add_argument("--technique", action="append", default=[], metavar="ID", help="only this technique; repeatable")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write report.html and report.json there")
    parser.add_argument("--variants", type=int, metavar="N", help="so many variants of each technique at most, with each goal and policy")
    parser.add_argument("--here", action="store_true", help="on the server that runs, with nothing allowed; asks first")
    parser.add_argument("--list", action="store_true", help="say what the techniques are, and try nothing")
    return parser


def _chosen(groups: Sequence[str], names: Sequence[str]) -> tuple[Entry, ...]:
    known = catalogue.entries()
    for what, asked, there in (("group", groups, {one.group for one in known}), ("technique", names, {one.id for one in known})):
        if unknown := sorted(set(asked) - there):
            raise InvalidArgument(f"there is no {what} {unknown[0]!r}", hint="`space evaluate --list` says what there is")
    return tuple(one for one in known if (not groups or one.group in groups) and (not names or one.id in names))


def _list(chosen: Sequence[Entry]) -> None:
    for one in chosen:
        print(f"{one.group:12} {one.id:36} {one.technique.tries}")


def _table(found: Run) -> str:
    head = f"{'group':16}{'techniques':>11}{'attempts':>10}{'stopped':>9}{'reached':>9}{'errors':>8}"
    rows = [
        f"{group:16}{row['techniques']:>11}{row['attempts']:>10}{row['stopped']:>9}{row['reached']:>9}{row['errors']:>8}"
        for group, row in found.by_group().items()
    ]
    failed = [f"{one.word}: {one.attempt.name}" for one in found.outcomes if one.word != "stopped"]
    controls = "all controls worked" if found.controls_ok else "CONTROLS FAILED"
    return "\n".join([head, *rows, *failed, f"reached {found.reached}, errors {found.errors}, {controls}, {found.seconds:.0f} s"])
