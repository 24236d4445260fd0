"""Dependencies in directories of their own below /opt/space, named by the digest of their lock, root-owned and read-only.

pip is the distribution's, through the machine's own configuration (environment, pip.conf); it installs exactly the locked
files, wheels only, and resolves nothing. The environment is made under a random name and gets its final one when whole, so
paths inside it (first lines of scripts, file names in byte code) are written for the final name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from space.setup import command, inputs, shelf

OPT = Path("/opt/space")
PYTHON = Path("/usr/bin/python3")
_BUILDER = 1
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/python{VERSION}/site-packages"


def digest(*locks: Path) -> str:
    """The digest of what is installed for these locks."""
    return inputs.of_value({"builder": _BUILDER, "python": VERSION, "locks": [lock.read_text() for lock in locks]})


def server(root: Path) -> Path:
    """Where the server's dependencies lie for the checkout at `root`."""
    return OPT / f"deps-{digest(root / 'requirements/server.txt')}"


def development(root: Path) -> Path:
    """Where the environment of tests lies: an interpreter that has the test tools and the server's dependencies, and no `space`."""
    return OPT / f"dev-{digest(root / 'requirements/server.txt', root / 'requirements/dev.txt')}"


def make_server(root: Path) -> tuple[Path, bool]:
    """Install the server's dependencies; the directory, and whether it was made just now."""
    return _make(server(root), root / "requirements/server.txt", below=None)


def make_development(root: Path) -> tuple[Path, bool]:
    """Install the test tools over the server's dependencies, which must be there."""
    return _make(development(root), root / "requirements/dev.txt", below=server(root))


def environment(stage: Path, *, below: Path | None) -> Path:
    """An environment without pip at `stage`, over the packages of `below`; its site-packages. What `venv --without-pip` does, in 2 ms."""
    (stage / "bin").mkdir(parents=True)
    (stage / "bin/python").symlink_to(PYTHON)
    (stage / "bin/python3").symlink_to("python")
    (stage / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\ninclude-system-site-packages = false\nversion = {VERSION}\n")
    site = stage / SITE
    site.mkdir(parents=True)
    if below is not None:
        (site / "space-deps.pth").write_text(f"{below / SITE}\n")
    return site


def compile_all(stage: Path, final: Path) -> None:
    """Byte code for everything below `stage`, with file names of `final`; it is never checked again, as nothing there can change."""
    command.run(
        [PYTHON, "-I", "-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash", "-s", stage, "-p", final, stage / "lib"],
        what=f"compile {final.name}",
    )


def install(stage: Path, lock: Path) -> None:
    """What a lock lists, into an environment."""
    command.run(
        [PYTHON, "-m", "pip", "--python", stage / "bin/python", "install", "--quiet", "--no-deps", "--require-hashes",
         "--only-binary=:all:", "--no-compile", "--no-cache-dir", "--no-warn-script-location", "--disable-pip-version-check",
         "--root-user-action=ignore", "-r", lock],
        what=f"install {lock.name}", hint="pip's own configuration (PIP_INDEX_URL, PIP_CERT, pip.conf) must reach a package index",
    )  # fmt: skip


def _make(final: Path, lock: Path, *, below: Path | None) -> tuple[Path, bool]:
    if final.is_dir():
        return final, False
    with shelf.staged(final) as stage:
        environment(stage, below=below)
        install(stage, lock)
        for script in (stage / "bin").iterdir():
            if not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(text.replace(bytes(stage), bytes(final)))
        compile_all(stage, final)
        shelf.describe(stage, lock=lock.name, python=VERSION)
    return final, True
