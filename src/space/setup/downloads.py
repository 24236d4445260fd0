"""What a recipe lists, fetched as files through this machine's own pip, npm and apt: by an unprivileged process, checked, bounded.

Nothing of it is installed or run here: wheels as they are, packed packages of npm, packages of Debian's signed sources with what
they depend on (`debs`), and files by their digest. `<place>/<kind>/<file>`. The environment is the caller's, for that is how this machine
reaches its mirrors.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from space.model.errors import InvalidArgument
from space.setup import apt, command, debs

MOST_BYTES = 2 << 30
_PYTHON = "3.11"  # the guest's
FETCH = """
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as source, open(sys.argv[2], "xb") as target:
    left = int(sys.argv[3])
    while data := source.read(1 << 20):
        left -= len(data)
        if left < 0:
            sys.exit("it is larger than may be fetched")
        target.write(data)
"""


def fetch(listed: Sequence[Mapping[str, str]], place: Path) -> None:
    """Fetch all of it into `place`. SetupFailed, or InvalidArgument for bytes that are not those that were meant."""
    with tempfile.TemporaryDirectory(prefix="space-fetch-") as name:
        work = Path(name)
        user = apt.unprivileged() if os.geteuid() == 0 else None
        work.chmod(0o711)
        if packages := [each for each in listed if each["kind"] == "deb"]:
            (place / "deb").mkdir(exist_ok=True)
            into = _directory(work / "deb", user)
            debs.fetch(packages, into, user)
            debs.shelve(packages, into, place / "deb")
            _bounded(place)
        for number, each in enumerate(each for each in listed if each["kind"] != "deb"):
            into = _directory(work / str(number), user)
            _one(each["kind"], each, into, user)
            for file in _files(into, each):
                target = place / each["kind"] / file.name
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)
            _bounded(place)


def _directory(path: Path, user: int | None) -> Path:
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, user, user)
    return path


def _bounded(place: Path) -> None:
    if sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) > MOST_BYTES:
        raise InvalidArgument(f"the downloads are larger than {MOST_BYTES >> 20} MiB", hint="a builder has them in its memory")


def _one(kind: str, each: Mapping[str, str], into: Path, user: int | None) -> None:
    what, home = each["what"], {"HOME": str(into), "TMPDIR": str(into)}
    if kind == "wheel":
        command.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
             f"--python-version={_PYTHON}", "-d", into, "--", what],
            what=f"fetch the wheel {what}", env=home, user=user, cwd=into, hint="see the machine's pip settings",
        )  # fmt: skip
    elif kind == "npm":
        command.run(
            ["npm", "pack", "--silent", "--ignore-scripts", "--", what], what=f"fetch the package {what}", env=home, user=user, cwd=into,
            hint="see the machine's npm settings",
        )  # fmt: skip
    else:
        command.run(
            [sys.executable, "-I", "-c", FETCH, what, into / each["name"], str(MOST_BYTES)],
            what=f"fetch {each['name']}", env=home, user=user, cwd=into,
        )  # fmt: skip


def _files(into: Path, each: Mapping[str, str]) -> list[Path]:
    endings = {"wheel": ".whl", "npm": ".tgz"}
    found = [
        path for path in into.iterdir() if path.is_file() and not path.is_symlink() and path.name.endswith(endings.get(each["kind"], ""))
    ]
    if len(found) != 1:
        raise InvalidArgument(f"{each['what']}: {len(found)} files came and not one", hint="name one package with its version")
    if each["sha256"]:
        with found[0].open("rb") as file:
            seen = hashlib.file_digest(file, "sha256").hexdigest()
        if seen != each["sha256"]:
            raise InvalidArgument(f"{each['what']} has the digest {seen} and not {each['sha256']}", hint="it is not what the recipe means")
    return found
