"""The jail's root file system: QEMU, every library it is linked with, and the few firmware files of its `microvm` machine.

A VMM is started with this tree as its root and sees nothing else of the host. Libraries lie at the very paths that ldd names,
which the loader searches by default, so no cache of it is needed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from space.config.artefacts import Store
from space.setup import command, inputs, shelf
from space.setup.faults import SetupFailed

BINARY = Path("/usr/bin/qemu-system-x86_64")
# The TCG module carries the accelerator's callbacks; without it QEMU says "invalid accelerator tcg". KVM is built in.
MODULES = (Path("/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so"),)
FIRMWARE = ("bios-microvm.bin", "linuxboot_dma.bin", "pvh.bin", "kvmvapic.bin")
_FIRMWARE_FROM = (Path("/usr/share/qemu"), Path("/usr/share/seabios"))
_EMPTY = ("dev", "proc", "tmp")
_BUILDER = 1
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)
_ANYBODY = 65534


def make(store: Store) -> tuple[Path, bool]:
    """The QEMU artefact for the packages installed now, and whether it was made just now."""
    files = closure()
    digest = inputs.of_value(
        {"kind": "qemu", "builder": _BUILDER, "files": {str(place): inputs.of_file(path) for place, path in files.items()}}
    )
    final = store.path("qemu", digest)
    if final.is_dir():
        return final, False
    with shelf.staged(final, recorded=True) as stage:
        root = stage / "root"
        for name in _EMPTY:
            (root / name).mkdir(parents=True)
        for place, path in files.items():
            target = root / place.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o755 if path.stat().st_mode & 0o111 else 0o644)
        version = prove(root)
        shelf.describe(stage, version=version, files=len(files))
    return final, True


def closure() -> dict[Path, Path]:
    """Place in the jail to file on the host, links followed."""
    if not BINARY.is_file():
        raise SetupFailed(f"there is no {BINARY}", hint="apt-get install qemu-system-x86")
    loaded = [BINARY, *(module for module in MODULES if module.is_file())]
    listed = command.run(["ldd", *loaded], what="list QEMU's libraries").decode()
    places = [*loaded, *(Path(found) for found in _LIBRARY.findall(listed))]
    for name in FIRMWARE:
        found = next((directory / name for directory in _FIRMWARE_FROM if (directory / name).is_file()), None)
        if found is None:
            raise SetupFailed(f"QEMU's firmware {name} is not installed", hint="apt-get install qemu-system-data seabios")
        places.append(Path("/usr/share/qemu") / name)
    sources = {place: place for place in places}
    for name in FIRMWARE:
        sources[Path("/usr/share/qemu") / name] = next(directory / name for directory in _FIRMWARE_FROM if (directory / name).is_file())
    return {place: path.resolve(strict=True) for place, path in sources.items()}


def prove(root: Path) -> str:
    """Start our kind of machine inside that root, unprivileged, and return QEMU's version; SetupFailed with its words if not."""
    talk = b'{"execute":"qmp_capabilities"}\n{"execute":"query-version"}\n{"execute":"quit"}\n'
    answer = command.run(
        ["chroot", f"--userspec={_ANYBODY}:{_ANYBODY}", "--groups=", root, str(BINARY), "-M", "microvm", "-accel", "tcg", "-m", "64", "-S",
         "-nodefaults", "-no-user-config", "-nographic", "-qmp", "stdio"],
        what="start QEMU inside its jail's root", stdin=talk, timeout=60,
    ).decode()  # fmt: skip
    said = re.search(r'"qemu": \{"micro": (\d+), "minor": (\d+), "major": (\d+)\}', answer)
    if said is None:
        raise SetupFailed(f"QEMU did not say its version, but {answer[:200]!r}")
    return ".".join(reversed(said.groups()))
