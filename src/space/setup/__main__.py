"""`python3 -m space.setup`: make this machine ready, or say with --check what is missing.

Runs under the distribution's Python from the checkout, as root, after `setup/bootstrap` has seen to packages and rights.
Idempotent, one at a time on a machine, quiet when there is nothing to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from space.config import firecracker
from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, abandoned
from space.model.errors import SpaceError
from space.setup import (
    apt,
    clean,
    daemon,
    deps,
    doctor,
    e2bclients,
    initramfs,
    inspectai,
    kernel,
    layer,
    qemu,
    rootfs,
    runtime,
    shelf,
    storage,
    systemd,
    template,
)
from space.setup import firecracker as add_firecracker
from space.setup.graph import Step, run
from space.setup.progress import Progress, complain

KINDS = ("daemon", "kernel", "initramfs", "qemu", "rootfs", "root", "template")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 when the machine is ready."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == [firecracker.KIND]:
        return add_firecracker.main(words[1:])
    parser = argparse.ArgumentParser(prog="space setup", description="Make this machine ready for sandboxes (as root).")
    parser.add_argument("--check", action="store_true", help="change nothing; say what is missing (status 1 if anything is)")
    parser.add_argument("--tests", action="store_true", help="the environment of the tests too")
    parser.add_argument(
        "--update", action="store_true", help="take newer packages for the guest's kernel and the base template if there are any"
    )
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[3], help="the checkout (default: %(default)s)")
    parser.add_argument("--grow-storage", metavar="GIB", type=int, help="make the loop file with the data so large, and nothing else")
    parser.add_argument("--systemd", action="store_true", help="write a unit that serves instances (space@NAME.service), and nothing else")
    parser.add_argument("--enable", metavar="NAME", nargs="?", const="default", help="with --systemd: enable it for an instance (default)")
    given = parser.parse_args(words)
    if given.enable is not None and not given.systemd:
        parser.error("--enable goes with --systemd")
    try:
        if given.check:
            return _check()
        if given.systemd:
            return _systemd(given.enable)
        if given.grow_storage is not None:
            return _grow(given.grow_storage)
        began = time.monotonic()
        progress = Progress()
        with storage.locked():
            prepare(given.source, progress, tests=given.tests, update=given.update)
        if progress.did:
            progress.say("ready", time.monotonic() - began)
    except SpaceError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("interrupted; what was finished is kept")
        return 130
    return 0


def prepare(root: Path, progress: Progress, *, tests: bool, update: bool) -> None:
    """Every step of set-up, for the checkout at `root`. The caller holds the machine's lock."""
    store = Store(DATA_ROOT / "artefacts")

    def make_storage() -> tuple[Path, bool]:
        found = storage.ensure_locked()
        for kind in KINDS:
            shelf.sweep_stages(store.root / kind)
        return found.root, found.changed

    progress.step("storage with reflinks", make_storage)
    if update:
        apt.update()

    def make_template(kernel: Path, initrd: Path, vmm: Path, disk: Path) -> Path:
        made = progress.step("base template", lambda: template.make(store, kernel=kernel, initramfs=initrd, qemu=vmm, disk=disk))
        progress.step("Debian layers", lambda: layer.refresh(store, kernel=kernel, initramfs=initrd, qemu=vmm))
        return made

    def make_development(_: Path) -> Path:
        return progress.step("test tools", lambda: deps.make_development(root))

    steps = {
        "deps": Step(lambda: progress.step("server's dependencies", lambda: deps.make_server(root))),
        "rootfs": Step(
            lambda below: progress.step(
                "Debian root disk of the base template", lambda: rootfs.make(store, below / "bin/python", update=update)
            ),
            after=("deps",),
        ),
        "daemon": Step(lambda: progress.step("guest daemon", lambda: daemon.make(store, root))),
        "kernel": Step(lambda: progress.step("guest kernel", lambda: kernel.make(store, update=update))),
        "qemu": Step(lambda: progress.step("QEMU for the jail", lambda: qemu.make(store))),
        "initramfs": Step(
            lambda kernel, binary: progress.step("initramfs", lambda: initramfs.make(store, kernel, binary)), after=("kernel", "daemon")
        ),
        "runtime": Step(lambda _: progress.step("runtime, proven for every service's uid", lambda: runtime.make(root)), after=("deps",)),
        "template": Step(make_template, after=("kernel", "initramfs", "qemu", "rootfs")),
    }
    if tests:
        steps["dev"] = Step(make_development, after=("deps",))
        steps["e2b"] = Step(lambda: progress.step("E2B's SDKs for the tests", lambda: e2bclients.make(root)))
    for instance in abandoned():
        progress.say(clean.sweep(instance))
    made = run(steps)
    if runtime.install(made["runtime"]):
        progress.say(f"`space` starts {made['runtime'].name}")
    runtime.sweep(made["runtime"], [deps.server(root), deps.development(root), e2bclients.clients(root).place, inspectai.place(root)])


def _check() -> int:
    missing = [check for check in doctor.checks() if not check.ok]
    for check in missing:
        complain(f"{check.name}: {check.detail}" + (f" ({check.remedy})" if check.remedy else ""))
    return 1 if missing else 0


def _grow(gib: int) -> int:
    with storage.locked():
        changed = storage.grow(gib * storage.GIB)
    print(f"setup: the storage {'has' if changed else 'had'} {gib} GiB{'' if changed else ' already'}", flush=True)
    return 0


def _systemd(enable: str | None) -> int:
    try:
        done = systemd.install(runtime.COMMAND, enable=enable)
    except (ValueError, OSError) as error:  # no name of an instance; not root
        complain(str(error))
        return 1
    for line in done or [f"{systemd.UNIT} is there"]:
        print(f"setup: {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
