"""The template `code-interpreter-v1` for a server of these tests: built once for its inputs, kept as a file, brought in from there."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import space
from space.config.instance import DATA_ROOT
from space.setup import deps, downloads, inputs

NAME = "code-interpreter-v1"
ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "templates" / f"{NAME}.toml"
_BUILDER = 1


def kept() -> Path:
    """Where the file lies for the recipe, its files and the base template as they are now."""
    place = RECIPE.parent / "code-interpreter"
    files = [path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    base = (DATA_ROOT / "artefacts/names/base").resolve().name
    value = {"builder": _BUILDER, "recipe": RECIPE.read_text(), "tree": inputs.of_tree(place, files), "base": base}
    return deps.OPT / f"dev-interpreter-{inputs.of_value(value)}.space"


def bring(client: space.Client) -> None:
    """The tenant of that key has the template when this returns. Whoever is first on this machine builds it, which takes minutes."""
    made = kept()
    with (made.parent / "dev-interpreter.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(prefix="space-downloads-") as place:
                planned = client.plan_template(RECIPE.read_text())
                downloads.fetch(planned["downloads"], Path(place))
                for line in client.build_template(RECIPE, downloads=Path(place)):
                    print(line)
            for old in made.parent.glob("dev-interpreter-*.space"):
                old.unlink()
            client.export_template(NAME, stage := made.with_suffix(f".{os.getpid()}"))
            stage.rename(made)
            return
    client.import_template(made, NAME)
