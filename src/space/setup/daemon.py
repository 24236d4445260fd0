"""The guest daemon's binary: built once for its sources and compiler, checked, and kept beside the other artefacts.

A second checkout of the same sources finds it by digest and runs no cargo; cargo's own target directory is shared as well, for what
they stand on.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

from space.config.artefacts import Store
from space.setup import command, inputs, shelf
from space.setup.faults import SetupFailed

LARGEST = 3 << 20
_BUILDER = 1
_INTERPRETER = 3  # PT_INTERP


def make(store: Store, root: Path) -> tuple[Path, bool]:
    """The daemon's artefact for the guest sources in the checkout at `root`, and whether it was built just now."""
    guest = root / "guest"
    compiler = command.run(["rustc", "-vV"], what="ask rustc for its version", cwd=guest, hint="install Rust 1.85 or newer").decode()
    files = inputs.sources(guest, without=frozenset({"target", "tests", "fuzz"})) + [
        path for path in (guest / ".cargo").glob("*") if path.is_file()
    ]
    digest = inputs.of_value({"kind": "daemon", "builder": _BUILDER, "tree": inputs.of_tree(guest, files), "compiler": compiler})
    final = store.path("daemon", digest)
    if final.is_dir():
        return final, False
    with shelf.staged(final, recorded=True) as stage:
        binary = _build(guest, target_directory(store))
        shutil.copyfile(binary, stage / "space")
        (stage / "space").chmod(0o755)
        size = (stage / "space").stat().st_size
        try:
            check((stage / "space").read_bytes())
        except ValueError as error:
            raise SetupFailed(f"{binary} cannot be a guest's init: {error}") from error
        shelf.describe(stage, bytes=size, compiler=compiler.splitlines()[0])
    return final, True


def target_directory(store: Store) -> Path:
    """cargo's target directory, shared by every checkout on this machine."""
    return store.root.with_name("build") / "cargo"


def check(elf: bytes) -> None:
    """ValueError unless `elf` is a static 64-bit program below LARGEST bytes."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit little-endian ELF")
    if len(elf) >= LARGEST:
        raise ValueError(f"it has {len(elf)} bytes and may have less than {LARGEST}")
    (table,) = struct.unpack_from("<Q", elf, 0x20)
    size, count = struct.unpack_from("<HH", elf, 0x36)
    if any(struct.unpack_from("<I", elf, table + index * size)[0] == _INTERPRETER for index in range(count)):
        raise ValueError("it is linked dynamically, and the initramfs has no loader")


def _build(guest: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    # What is ours is compiled anew: cargo goes by times and by paths within a checkout, and takes what another checkout compiled a while
    # ago for these sources if they are older than that.
    command.run(
        ["cargo", "clean", "--release", "--locked", "--package", "space", "--package", "space-protocol"],
        what="clear what was built of the guest daemon", cwd=guest, env={"CARGO_TARGET_DIR": str(target)},
    )  # fmt: skip
    out = command.run(
        ["cargo", "build", "--release", "--locked", "--bin", "space", "--message-format=json-render-diagnostics"],
        what="build the guest daemon", cwd=guest, env={"CARGO_TARGET_DIR": str(target)},
    )  # fmt: skip
    for line in reversed(out.decode().splitlines()):
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "space":
            return Path(message["executable"])
    raise SetupFailed("cargo built no program named `space`", hint="see guest/Cargo.toml")
