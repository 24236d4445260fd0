"""Fuzz for so long: each target in a process of its own, as many at once as there are processors.

    python -m tests.fuzz.engine [--seconds S] [--jobs N] [--keep] [TARGET...]

--keep writes what it found into the corpus, distilled. An input that breaks a promise is kept in any case, and is the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz.engine.guided import Broken, distilled, fuzz, keep_broken, read_corpus, write_corpus
from tests.fuzz.engine.targets import BY_NAME

CORPUS = Path(__file__).resolve().parents[1] / "corpus"


def one(name: str, seconds: float, seed: int, keep: bool) -> tuple[bool, str]:
    """Fuzz one target; whether all was well, and a line that says what was done."""
    target, folder = BY_NAME[name], CORPUS / name
    corpus = read_corpus(folder)
    try:
        outcome = fuzz(target, corpus, random.Random(seed), seconds=seconds)
    except Broken as broken:
        return False, f"{broken}\n    kept in {keep_broken(folder, broken.data).relative_to(CORPUS.parents[2])}"
    if keep:
        write_corpus(folder, distilled(target, [*corpus, *target.seeds, *outcome.found]))
    said = f"{outcome.runs} inputs in {outcome.seconds:.0f} s, {outcome.ways} ways, {len(outcome.found)} new"
    return True, f"{name}: {said}, corpus of {len(read_corpus(folder))} (seed {seed})"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.engine", description="coverage-guided fuzzing of what reads hostile bytes")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(BY_NAME)}; all unless given")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="at once")
    parser.add_argument("--seed", type=int, default=None, help="another one each time unless given")
    parser.add_argument("--keep", action="store_true", help="put what was found into the corpus")
    options = parser.parse_args()
    wanted = options.targets or list(BY_NAME)
    if unknown := set(wanted) - BY_NAME.keys():
        parser.error(f"there is no target {min(unknown)!r}: there are {', '.join(BY_NAME)}")
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    well = True
    with ProcessPoolExecutor(options.jobs) as pool:
        for fine, line in pool.map(one, wanted, *zip(*[(options.seconds, seed, options.keep)] * len(wanted), strict=True)):
            print(line, flush=True)
            well = well and fine
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
