"""What set-up decides without touching the machine."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from space.setup import apt, daemon, doctor, storage
from space.setup.checkup import Check
from space.setup.faults import SetupFailed

GIB = storage.GIB


@pytest.mark.parametrize(
    ("free", "wanted", "size"),
    [
        (100 * GIB, None, 8 * GIB),
        (8 * GIB, None, 6 * GIB),
        (4 * GIB, None, 3 * GIB),
        (100 * GIB, 20 * GIB, 20 * GIB),
        (9 * GIB, 1 * GIB, 1 * GIB),
    ],
)
def test_the_loop_file_is_8_gib_or_what_the_disk_can_spare(free: int, wanted: int | None, size: int) -> None:
    assert storage.image_bytes(free, wanted) == size


def test_a_disk_that_is_nearly_full_is_refused_with_figures() -> None:
    with pytest.raises(SetupFailed, match=r"3\.5 GiB free.*at least 4 GiB"):
        storage.image_bytes(7 * GIB // 2)
    with pytest.raises(SetupFailed, match=r"9\.0 GiB was asked for.*10\.0 GiB free"):
        storage.image_bytes(10 * GIB, 9 * GIB)


def test_a_wrong_size_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_STORAGE_GIB", "8G")
    with pytest.raises(SetupFailed, match="not '8G'"):
        storage.setting()
    monkeypatch.setenv("SPACE_STORAGE_GIB", "12")
    assert storage.setting() == 12 * GIB


def row(**changed: str) -> str:
    """A line of `apt-get indextargets`."""
    fields = {
        "REPO_URI": "http://mirror.example.com/debian/", "RELEASE": "bookworm", "CODENAME": "bookworm", "COMPONENT": "main",
        "ORIGIN": "Debian", "TRUSTED": "yes", "BASE_URI": "http://mirror.example.com/debian/dists/bookworm/",
        "SOURCESENTRY": "/nonexistent/debian.sources:1",
    }  # fmt: skip
    return "\t".join((fields | changed).values()) + "\n"


def test_only_debian_s_signed_main_suites_are_sources_of_the_template() -> None:
    text = row() + row() + row(CODENAME="bookworm-updates", RELEASE="stable-updates") + row(ORIGIN="Other") + row(COMPONENT="contrib")
    text += row(CODENAME="trixie") + row(CODENAME="bookworm-security", TRUSTED="no")
    assert [source.line for source in apt.parse_sources(text)] == [
        "deb http://mirror.example.com/debian/ bookworm main",
        "deb http://mirror.example.com/debian/ bookworm-updates main",
    ]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Types: deb\nURIs: http://example.com\nSigned-By: /usr/share/keyrings/mine.gpg\n", "/usr/share/keyrings/mine.gpg"),
        ("deb [arch=amd64 signed-by=/etc/keys/mine.gpg] http://example.com bookworm main\n", "/etc/keys/mine.gpg"),
        ("deb http://example.com bookworm main\n", None),
        ("Signed-By: /a.gpg\n\nSigned-By: /b.gpg\n", None),
        ("Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n", None),
    ],
)
def test_the_keyring_of_a_source_is_kept_in_both_formats(tmp_path: Path, written: str, expected: str | None) -> None:
    (tmp_path / "sources").write_text(written)
    [source] = apt.parse_sources(row(SOURCESENTRY=f"{tmp_path}/sources:1"))
    assert source.keyring == expected


def test_ways_to_a_mirror_are_passed_on_and_weaker_checks_are_not() -> None:
    dump = (
        'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://proxy.example.com:3128";\n'
        'Acquire::https::CaInfo "/etc/ssl/own.crt";\n'
        'Acquire::AllowInsecureRepositories "1";\nAcquire::allowweakrepositories "1";\nAcquire::IndexTargets::deb::X "y";\n'
    )
    assert apt.passed_on(dump) == ['Acquire::http::Proxy "http://proxy.example.com:3128"', 'Acquire::https::CaInfo "/etc/ssl/own.crt"']


def elf(*segments: int, size: int = 1000) -> bytes:
    """A 64-bit ELF with program headers of those types."""
    head = bytearray(size)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 0x20, 64)
    struct.pack_into("<HH", head, 0x36, 56, len(segments))
    for number, kind in enumerate(segments):
        struct.pack_into("<I", head, 64 + 56 * number, kind)
    return bytes(head)


def test_only_a_small_static_program_can_be_a_guest_s_init() -> None:
    daemon.check(elf(1, 1, 2))
    for bad, why in ((b"#!/bin/sh", "no 64-bit"), (elf(1, 3), "dynamically"), (elf(1, size=daemon.LARGEST), "less than")):
        with pytest.raises(ValueError, match=why):
            daemon.check(bad)


def test_a_check_that_cannot_look_is_a_fact_with_a_remedy() -> None:
    def free_space() -> Check:
        raise PermissionError(13, "Permission denied")

    [found] = doctor.guarded(free_space)
    assert (found.name, found.ok) == ("free space", False)
    assert "Permission denied" in found.detail
    assert found.remedy
