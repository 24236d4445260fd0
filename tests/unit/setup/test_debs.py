"""Debian packages for a recipe: the index that apt in a builder reads, and what is refused.

What apt chooses is seen in tests/machine/test_recipes.py.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from space.model.errors import InvalidArgument
from space.setup import debs


def fetched(place: Path, *names: str) -> Path:
    (place / "cache/archives").mkdir(parents=True)
    for name in names:
        (place / name / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: a\n longer\n"
        (place / name / "DEBIAN/control").write_text(control)
        subprocess.run(["dpkg-deb", "-b", place / name, place / f"cache/archives/{name}_1.0_all.deb"], check=True, capture_output=True)
    return place


def asked(what: str, sha256: str = "") -> list[dict[str, str]]:
    return [{"kind": "deb", "what": what, "sha256": sha256, "name": ""}]


def test_packages_have_an_index_that_says_what_they_are(tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    debs.shelve(asked("one=1.0"), fetched(tmp_path / "work", "one", "two"), place)
    stanzas = (place / "Packages").read_text().split("\n\n")
    assert [stanza.split("\n")[0] for stanza in stanzas] == ["Package: one", "Package: two"]
    data = (place / "one_1.0_all.deb").read_bytes()
    assert f"Filename: ./one_1.0_all.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}" in stanzas[0]
    assert subprocess.run(["sh", "-n", place / "install"], check=False).returncode == 0


def test_other_bytes_than_were_meant_and_what_is_no_package_are_refused(tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    work = fetched(tmp_path / "work", "one")
    with pytest.raises(InvalidArgument, match="has the digest"):
        debs.shelve(asked("one", "0" * 64), work, place)
    with pytest.raises(InvalidArgument, match="0 files came"):
        debs.shelve(asked("virtual"), work, place)
