"""`python -m space.lab build | test | run | up`: make the lab's machine, use it once, or stay in it."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from pathlib import Path

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT
from space.lab import image, wheel
from space.lab.machine import Level1, restored
from space.model.errors import SpaceError
from space.setup import storage

_TESTS = (
    "tests/contract/test_vmm.py::test_firecracker_keeps_the_contract",
    "tests/lab",
    "tests/machine/test_egress.py::test_an_allowed_name_is_reached_and_another_is_not",  # as on the host, by another VMM
)


def main() -> int:
    """The exit status: of what was run in there, or 0."""
    parser = argparse.ArgumentParser(prog="space.lab", description="real Firecracker in a machine of its own (as root)")
    parser.add_argument("--directory", type=Path, default=DATA_ROOT / "lab", help="where the machine is kept (default: %(default)s)")
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[3], help="the checkout (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="make the machine and save it, if it is not there")
    test = commands.add_parser("test", help="run the tests that it is for; other words go to pytest")
    test.set_defaults(words=[])
    run = commands.add_parser("run", help="run a shell command in it, as root, with the checkout in /src")
    run.add_argument("words", nargs="+")
    up = commands.add_parser("up", help="keep it running until Ctrl-C; lines that you type are run in it")
    up.set_defaults(words=[])
    options, more = parser.parse_known_args()
    if more and options.command != "test":
        parser.error(f"unknown: {shlex.join(more)}")
    try:
        began = time.monotonic()
        store = Store(DATA_ROOT / "artefacts")
        with storage.locked():
            wheel.ensure(store)
            machine = image.ensure(store, options.directory, sys.stderr.write)
        print(f"lab: the machine is there after {time.monotonic() - began:.1f} s", file=sys.stderr)
        match options.command:
            case "build":
                return 0
            case "test":
                named = any(each.startswith("tests/") for each in more)
                words = ("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=8", *more, *(() if named else _TESTS))
                command = f"export SPACE_TEST_ACCELERATOR=firecracker\n{shlex.join(words)}"
                return asyncio.run(_once(machine, options.source, command))
            case "run":
                return asyncio.run(_once(machine, options.source, " ".join(options.words)))
            case _:
                return asyncio.run(_up(machine, options.source))
    except SpaceError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


async def _once(machine: image.Saved, source: Path, command: str) -> int:
    async with restored(machine, source) as level1:
        return await level1.run(f"cd /src\n{command}", _write)


async def _up(machine: image.Saved, source: Path) -> int:
    async with restored(machine, source) as level1:
        print("lab: a node with KVM and Firecracker; the checkout is in /src, artefacts are in /var/lib/space", file=sys.stderr)
        await _lines(level1)
    return 0


async def _lines(level1: Level1) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        status = await level1.run(f"cd /src\n{line}", _write)
        if status:
            print(f"lab: ended with {status}", file=sys.stderr)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise SystemExit(main())
