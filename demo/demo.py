#!/usr/bin/env python3
"""`make demo`: run a real library's own tests in a microVM, and leave nothing behind.

Fetches the source distribution of a library and the wheels that its tests need, as files; starts a private server; creates a sandbox; sends
the tree in as one stream; installs and tests it there; brings the report back; deletes the sandbox, stops the server and looks whether
anything is left on the host. The exit status is 0 only if the library's tests passed and nothing is left.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo import fetch, report
from demo.fetch import Lock
from demo.steps import Steps
from space.model.errors import SpaceError

if TYPE_CHECKING:
    from space import Client, Sandbox

CACHE = Path("/var/lib/space/demo")
CURRENT = Path("/opt/space/current")
MEMORY_MIB, DISK_MIB = 768, 3072
# One call for all: pip's start alone takes seconds on an emulated processor. The build back end is imported out of its wheel, which is
# a zip archive, because pip would look for it before it has installed anything.
_PIP = [
    *("python3", "-m", "pip", "install", "--user", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--no-cache-dir"),
    *("--no-warn-script-location", "--disable-pip-version-check"),
]


class Failed(Exception):
    """The demonstration did not come out as it should; says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server to use. left: what of it is still on this host, asked after it was stopped."""

    client: Client
    isolation: str
    left: Callable[[], frozenset[str]]


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Run a library's own tests in a microVM.")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where fetched files are kept (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="where the private server's own lines go")
    given = parser.parse_args(arguments)
    steps = Steps()
    lock = fetch.load()
    print(f"\n  {lock.library} {lock.version}: its own tests, in a microVM\n")
    try:
        good = demonstrate(steps, lock, given.cache, lambda: private_server(given.log))
    except (Failed, SpaceError, fetch.FetchFailed, report.BadReport) as error:
        print(f"\n  failed: {error}\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n  interrupted; the sandbox and the server are gone\n", file=sys.stderr)
        return 130
    print(f"\n  {good.passed} of {lock.library}'s tests passed in the guest, and nothing is left on this host ({steps.total():.0f} s)\n")
    return 0


def demonstrate(steps: Steps, lock: Lock, cache: Path, serve: Callable[[], AbstractContextManager[Server]]) -> report.Report:
    """All of it; the library's report. Failed, or a fault of a part, when anything is not as it should be."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="space-demo-")))
        with steps.step(f"fetch {len(lock.files)} files as they are, hashes checked") as said:
            fetched = fetch.fetch(lock, cache)
            said.append(f"{fetched} fetched" if fetched else "all of them were here")
            lay_out(lock, cache, scratch / "tree")
        server = _within(steps, stack, scratch, lock, serve)
    with steps.step("look for anything left on this host") as said:
        if left := server[1].left():
            raise Failed("left on this host:\n    " + "\n    ".join(sorted(left)))
        said.append("nothing")
    return server[0]


def _within(
    steps: Steps, stack: ExitStack, scratch: Path, lock: Lock, serve: Callable[[], AbstractContextManager[Server]]
) -> tuple[report.Report, Server]:
    from space import Sandbox

    with ExitStack() as serving:
        with steps.step("start a private server") as said:
            server = serving.enter_context(serve())
            said.append(f"isolation: {server.isolation}")
        with ExitStack() as living:
            with steps.step("create a sandbox and boot its kernel") as said:
                sandbox = living.enter_context(Sandbox.create(memory_mib=MEMORY_MIB, disk_mib=DISK_MIB, client=server.client))
                kernel = sandbox.run(["uname", "-r"], check=True).text.strip()
                said.append(f"Linux {kernel} in there, {os.uname().release} out here")
            found = use(steps, sandbox, lock, scratch)
            with steps.step("delete the sandbox"):
                living.close()
        with steps.step("stop the server"):
            serving.close()
    return found, server


def use(steps: Steps, sandbox: Sandbox, lock: Lock, scratch: Path) -> report.Report:
    """The main job, in a sandbox that runs."""
    with steps.step("send the tree in as one stream") as said:
        took = sandbox.upload(scratch / "tree", "demo")
        said.append(f"{took.entries} entries, {took.bytes / 1e6:.1f} MB")
    source = f"demo/{lock.library}-{lock.version}"
    with steps.step(f"install what the tests need, and {lock.library} from its source, in there"):
        wheels = [f"demo/wheels/{wheel.file}" for wheel in lock.wheels if not wheel.backend]
        path = {"PYTHONPATH": ":".join(f"/home/user/demo/wheels/{wheel.file}" for wheel in lock.wheels if wheel.backend)}
        sandbox.run([*_PIP, *wheels, f"./{source}"], env=path, check=True, timeout=900, on_stdout=steps.output)
    with steps.step(f"run {lock.library}'s own tests in there"):
        # -P and the mode: what was installed is tested, and not the source beside the tests.
        command = [
            "python3",
            "-P",
            "-m",
            "pytest",
            "--import-mode=append",
            "-p",
            "no:cacheprovider",
            "--junitxml=../report/junit.xml",
            "tests",
        ]
        result = sandbox.run(command, cwd=f"/home/user/{source}", timeout=1800, on_stdout=steps.output, on_stderr=steps.output)
    with steps.step("bring the report back") as said:
        sandbox.download("demo/report", scratch / "report")
        found = report.read(scratch / "report/junit.xml")
        said.append(f"{found.tests} tests, {found.passed} passed, {found.skipped} skipped, {len(found.failed)} failed")
    if not found.is_good or not result.ok:
        raise Failed(f"the tests ended with {result.described()}; failed: {', '.join(found.failed[:10]) or 'none by the report'}")
    return found


def lay_out(lock: Lock, cache: Path, tree: Path) -> None:
    """The tree to send: the wheels, and the library's source unpacked as data, by the same reader that takes trees from guests."""
    from space.sdk.archive import Limits, unpack

    (tree / "wheels").mkdir(parents=True)
    for wheel in lock.wheels:
        shutil.copyfile(cache / wheel.file, tree / "wheels" / wheel.file)
    unpack(_unzipped(cache / lock.sdist.file), tree.parent / "sdist", limits=Limits(entries=20_000, total_bytes=256 << 20))
    (tree.parent / "sdist" / f"{lock.library}-{lock.version}").rename(tree / f"{lock.library}-{lock.version}")


def _unzipped(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as file:
        while data := file.read(1 << 20):
            yield data


class private_server(AbstractContextManager[Server]):  # noqa: N801  # reads as a call
    """A server of our own, by the installed runtime where there is one."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._stack = ExitStack()

    def __enter__(self) -> Server:
        from space import Client
        from space.serve.private import private_instance
        from space.testing import leaks

        if os.geteuid() != 0:
            raise Failed("the demonstration starts a server: run it as root")
        has_runtime = (CURRENT / "bin/python").exists()
        python = CURRENT / "bin/python" if has_runtime else Path(sys.executable)
        served = self._stack.enter_context(private_instance(python=python, dev=not has_runtime, log=self._log))
        client = self._stack.enter_context(Client(api_url=served.url, api_key=served.api_key))
        isolation = str(client.health().get("isolation", "unknown"))
        return Server(client, isolation, lambda: leaks.of_instance(served.instance))

    def __exit__(self, *_: object) -> None:
        self._stack.close()


if __name__ == "__main__":
    sys.exit(main())
