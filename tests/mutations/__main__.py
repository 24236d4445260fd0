"""Weaken one defence after another, and see that its tests fail: a table, and exit status 1 where one did not.

python -m tests.mutations [--quick] [--jobs N] [--report FILE] [NAME...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutations.table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
HOOK = Path(__file__).parent / "hook/mutation_hook.py"
SECONDS = 300


@dataclass(frozen=True)
class Outcome:
    """killed: a test failed, as it must. by: the first that did."""

    mutation: str
    defence: str
    killed: bool
    by: str
    seconds: float


def environment(folder: Path, mutation: Mutation, *, served: bool = False) -> Path:
    """The interpreter of a throw-away environment in which that defence is weak: what it needs, this checkout, and the hook.

    served: services run from it, under uids that may not look into the checkout; so it has a copy of its own.
    """
    real = Path(sys.executable).resolve()
    packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(real)
    (folder / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    source = ROOT / "src"
    if served:
        source = shutil.copytree(source, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
        for path in (source, *source.rglob("*")):  # whatever its mode is in the checkout
            path.chmod(0o755 if path.is_dir() else 0o644)
    found = [source, *(Path(path) for path in sys.path if path.endswith("site-packages"))]
    (packages / "tests.pth").write_text("".join(f"{path}\n" for path in found) + "import mutation_hook\n")
    shutil.copy(HOOK, packages)
    (packages / "mutation.json").write_text(json.dumps(asdict(mutation)))
    (packages / "done").mkdir()
    (packages / "done").chmod(0o777)  # services with uids of their own say so as well
    folder.chmod(0o755)
    return folder / "bin/python"


def tried(mutation: Mutation) -> Outcome:
    """Run its tests where that defence is weak."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        python = environment(Path(name), mutation)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {"PYTHONDONTWRITEBYTECODE": "1"}
        command = [str(python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *mutation.tests]
        try:
            done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome(mutation.name, mutation.defence, True, "(its tests did not end)", time.monotonic() - began)
        applied = any(Path(name).glob("lib/*/site-packages/done/mark"))
    failed = next((line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    # 1 is a failed test; anything else (nothing collected, an error while collecting) proves nothing.
    killed = applied and done.returncode == 1 and bool(failed)
    by = failed if killed else f"NOT KILLED: status {done.returncode}" + ("" if applied else ", and it was never imported")
    outcome = Outcome(mutation.name, mutation.defence, killed, by, time.monotonic() - began)
    print(f"{mutation.name}: {by} ({outcome.seconds:.0f} s)", file=sys.stderr, flush=True)
    return outcome


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
        outcomes = list(pool.map(tried, [one for one in wanted if not one.host]))
    # One after another: their teardowns look at the whole host.
    outcomes += [tried(one) for one in wanted if one.host]
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
