"""Downloads: one file of each, checked and bounded, by a process that is nobody in particular."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from space.model.errors import InvalidArgument
from space.setup import downloads
from space.setup.faults import SetupFailed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:3]:
        if above != Path("/tmp"):
            above.chmod(0o755)
    (tmp_path / "source").write_bytes(b"bytes")
    return tmp_path / "source"


def listed(source: Path, sha256: str = "") -> list[dict[str, str]]:
    return [{"kind": "file", "what": source.as_uri(), "name": "named", "sha256": sha256 or hashlib.sha256(source.read_bytes()).hexdigest()}]


def test_file_comes_under_its_name_when_it_is_what_was_meant(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    downloads.fetch(listed(source), place)
    assert (place / "file/named").read_bytes() == b"bytes"


def test_other_bytes_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has the digest"):
        downloads.fetch(listed(source, "0" * 64), tmp_path)
    assert not (tmp_path / "file").exists()


def test_too_much_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 4)
    with pytest.raises(SetupFailed, match="larger than may be fetched"):
        downloads.fetch(listed(source), tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops its rights")
def test_what_only_root_may_read_is_not_fetched(source: Path, tmp_path: Path) -> None:
    source.chmod(0o600)
    with pytest.raises(SetupFailed, match="cannot fetch named"):
        downloads.fetch(listed(source), tmp_path)
