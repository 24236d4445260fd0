"""Debian packages for a recipe, with all that they depend on, as a directory that apt in the builder can install from.

    <place>/*.deb, Packages      what apt chose for a machine that has nothing yet, by this machine's signed lists
    <place>/install              `sh $SPACE_DOWNLOADS/deb/install jq`: apt with that directory as its only source

apt itself resolves, fetches and checks: it is asked to, by somebody without rights, with an empty list of what is installed. What the guest
has already it keeps, for there apt takes the newer one only where something needs it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from space.model.errors import InvalidArgument
from space.setup import command

INSTALL = """\
#!/bin/sh
# Packages of this directory, by name, with what they need of it.
set -e
here=$(cd "$(dirname "$0")" && pwd)
list=$(mktemp -d)
trap 'rm -rf "$list"' EXIT
mkdir "$list/lists" "$list/cache"
echo "deb [trusted=yes] file:$here ./" > "$list/sources.list"
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -o Dir::Etc::SourceList="$list/sources.list" -o Dir::Etc::SourceParts=/dev/null \\
        -o Dir::State::Lists="$list/lists" -o Dir::Cache="$list/cache" -o APT::Sandbox::User=root "$@"
}
apt update
apt install -y --no-install-recommends "$@"
"""


def fetch(listed: Sequence[Mapping[str, str]], into: Path, user: int | None) -> None:
    """All of them at once into the directory `into`, which is the user's. SetupFailed."""
    names = [each["what"] for each in listed]
    for below in ("state/lists/partial", "cache/archives/partial"):
        (into / below).mkdir(parents=True)
    (into / "state/status").touch()
    if user is not None:
        for path in into.rglob("*"):
            os.chown(path, user, user)
    command.run(
        ["apt-get", "install", "-qq", "-y", "--download-only", "--no-install-recommends", "--reinstall",
         "-o", f"Dir::State::status={into}/state/status", "-o", f"Dir::State::extended_states={into}/state/extended",
         "-o", f"Dir::Cache={into}/cache", "-o", "Debug::NoLocking=1", "--", *names],
        what=f"download {' '.join(names)[:200]} and what they need", env={"HOME": str(into), "TMPDIR": str(into)}, cwd=into, user=user,
        hint="`apt-get update` must work, and the recipe name packages of this machine's Debian",
    )  # fmt: skip


def shelve(listed: Sequence[Mapping[str, str]], fetched: Path, place: Path) -> None:
    """What was fetched, into `place`, with its index. InvalidArgument for a package of another digest than the recipe's."""
    files = sorted(path for path in (fetched / "cache/archives").glob("*.deb") if path.is_file() and not path.is_symlink())
    stanzas = []
    for file in files:
        data = file.read_bytes()
        (place / file.name).write_bytes(data)
        fields = command.run(["dpkg-deb", "-f", place / file.name], what=f"read {file.name}").decode().strip()
        stanzas.append(f"{fields}\nFilename: ./{file.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n")
    for each in listed:
        _check(each, files)
    (place / "Packages").write_text("\n".join(stanzas))
    (place / "install").write_text(INSTALL)
    (place / "install").chmod(0o755)


def _check(each: Mapping[str, str], files: Sequence[Path]) -> None:
    name = each["what"].partition("=")[0]
    found = [file for file in files if file.name.partition("_")[0] == name]
    if len(found) != 1:
        raise InvalidArgument(f"{each['what']}: {len(found)} files came and not one", hint="name a package, not one that others provide")
    if each["sha256"]:
        with found[0].open("rb") as file:
            seen = hashlib.file_digest(file, "sha256").hexdigest()
        if seen != each["sha256"]:
            raise InvalidArgument(f"{each['what']} has the digest {seen} and not {each['sha256']}", hint="it is not what the recipe means")
