"""Weaken one defence after another, and see that its tests fail: a table, and exit status 1 where one did not.

python -m tests.mutations [--quick] [--jobs N] [--report FILE] [NAME...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
HOOK = Path(__file__).parent / "hook"
SECONDS = 300


@dataclass(frozen=True)
class Outcome:
    """killed: a test failed, as it must. by: the first that did."""

    mutation: str
    defence: str
    killed: bool
    by: str
    seconds: float


def tried(mutation: Mutation) -> Outcome:
    """Run its tests in a process in which that defence is weak."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told, mark = Path(folder, "mutation.json"), Path(folder, "done")
        told.write_text(json.dumps(asdict(mutation)))
        path = os.pathsep.join([str(HOOK), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "MUTATION": str(told), "MUTATION_MARK": str(mark), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=no", *mutation.tests]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome(mutation.name, mutation.defence, True, "(its tests did not end)", time.monotonic() - began)
        applied = mark.exists()
    failed = next((line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    # 1 is a failed test; anything else (nothing collected, an error while collecting) proves nothing.
    killed = applied and done.returncode == 1 and bool(failed)
    by = failed if killed else f"NOT KILLED: status {done.returncode}" + ("" if applied else ", and it was never imported")
    return Outcome(mutation.name, mutation.defence, killed, by, time.monotonic() - began)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description="weakened defences must fail their tests")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one or two of each defence")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--report", type=Path, default=ROOT / "report/mutations.md")
    options = parser.parse_args()
    wanted = [one for one in MUTATIONS if (not options.names or one.name in options.names) and (one.quick or not options.quick)]
    if unknown := set(options.names) - {one.name for one in MUTATIONS}:
        parser.error(f"there is no mutation {min(unknown)!r}")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(tried, wanted))
    rows = [f"| {one.defence} | {one.mutation} | {one.by} | {one.seconds:.0f} s |" for one in outcomes]
    survivors = [one.mutation for one in outcomes if not one.killed]
    table = "\n".join(["| defence | weakened | the test that failed | |", "|---|---|---|---|", *rows, ""])
    options.report.parent.mkdir(exist_ok=True)
    options.report.write_text(table)
    print(table)
    print(
        f"{len(outcomes) - len(survivors)} of {len(outcomes)} mutations fail their tests"
        + (f"; survived: {', '.join(survivors)}" if survivors else "")
    )
    return 1 if survivors or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
