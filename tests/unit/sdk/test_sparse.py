"""Files with holes: what is one stays one, whoever packs and unpacks; maps that mean harm are refused."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from space.model.errors import StreamCut, UnsafeArchive
from space.sdk import sparse
from space.sdk.archive import Limits, unpack
from space.sdk.pack import pack

GOLDEN = Path(__file__).parents[2] / "golden" / "tree"
SIZE = (5 << 20) + 5
KIB = 1 << 10


def make(path: Path, size: int, *data: tuple[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for at, piece in data:
            os.pwrite(file.fileno(), piece, at)
    return path


@pytest.fixture
def holes(tmp_path: Path) -> Path:
    """The file of the golden archives."""
    path = make(tmp_path / "holes", SIZE, (64 * KIB, b"a" * 4096), (1024 * KIB, b"b" * 20 * KIB))
    path.chmod(0o640)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def taken(path: Path) -> int:
    return path.stat().st_blocks * 512


def same(one: Path, other: Path) -> None:
    assert one.read_bytes() == other.read_bytes()
    assert taken(other) <= taken(one)
    assert (one.stat().st_mode, int(one.stat().st_mtime)) == (other.stat().st_mode, int(other.stat().st_mtime))


def test_a_file_with_holes_is_packed_as_the_golden_bytes_say(holes: Path) -> None:
    assert b"".join(pack(holes)) == (GOLDEN / "sdk.tar").read_bytes()


@pytest.mark.parametrize("archive", ["guest.tar", "gnu.tar", "sdk.tar"])
@pytest.mark.parametrize("piece", [1 << 20, 512, 77])
def test_holes_stay_holes_whoever_packed_them(holes: Path, tmp_path: Path, archive: str, piece: int) -> None:
    raw = (GOLDEN / archive).read_bytes()
    unpack((raw[at : at + piece] for at in range(0, len(raw), piece)), tmp_path / "out")
    same(holes, tmp_path / "out" / "holes" if archive == "gnu.tar" else tmp_path / "out")


@pytest.mark.parametrize("archive", ["guest.tar", "sdk.tar"])
def test_what_is_written_is_read_by_gnu_tar_and_by_python(holes: Path, tmp_path: Path, archive: str) -> None:
    (tmp_path / "gnu").mkdir()
    subprocess.run(["tar", "-xpf", GOLDEN / archive, "-C", tmp_path / "gnu", "--no-same-owner"], check=True, capture_output=True)
    same(holes, tmp_path / "gnu/holes")
    with tarfile.open(GOLDEN / archive) as found:
        (member,) = found.getmembers()
        assert (member.name, member.size, member.mode, member.mtime) == ("holes", SIZE, 0o640, 1_700_000_000)
        file = found.extractfile(member)
        assert file is not None
        assert file.read() == holes.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 40),
    st.dictionaries(st.integers(0, 40), st.sampled_from([b"x", b"y" * 4096, b"z" * 9000]), max_size=8),
    st.integers(0, 4095),
)
def test_a_file_of_any_holes_goes_through_our_own_and_the_other_readers(
    tmp_path_factory: pytest.TempPathFactory, blocks: int, data: dict[int, bytes], rest: int
) -> None:
    place = tmp_path_factory.mktemp("s")
    size = blocks * 4096 + rest
    (place / "in").mkdir()
    file = make(place / "in" / "näme", size, *((at * 4096, piece) for at, piece in sorted(data.items()) if at * 4096 + len(piece) <= size))
    raw = b"".join(pack(place / "in"))
    told = unpack([raw], place / "out")
    assert (told.entries, told.bytes) == (2, size)
    same(file, place / "out" / "näme")
    with tarfile.open(fileobj=io.BytesIO(raw)) as found:
        content = found.extractfile("./näme")
        assert content is not None
        assert content.read() == file.read_bytes()


def test_two_gigabytes_of_hole_are_a_few_blocks(tmp_path: Path) -> None:
    file = make(tmp_path / "big", 2_100_000_000, (1_000_000_000, b"middle"), (2_099_999_999, b"."))
    raw = b"".join(pack(file))
    assert len(raw) < 64 * KIB
    assert unpack([raw], tmp_path / "out").bytes == 2_100_000_000
    assert taken(tmp_path / "out") == taken(file)
    with (tmp_path / "out").open("rb") as out:
        assert os.pread(out.fileno(), 8, 999_999_999) == b"\0middle\0"


def test_a_file_of_too_many_holes_goes_with_the_last_of_them_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MOST", 10)
    file = make(tmp_path / "comb", 40 * 8192, *((at * 8192, b"x") for at in range(40)))
    raw = b"".join(pack(file))
    unpack([raw], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == file.read_bytes()
    assert taken(file) < taken(tmp_path / "out") < 40 * 8192


# -- harm --------------------------------------------------------------------------------------------------------------


def entry(
    body: str, data: bytes = b"", size: str = "100", kind: bytes = tarfile.REGTYPE, *, name: str = "evil", padded: bool = True, **more: str
) -> bytes:
    content = body.encode() + bytes(-len(body) % 512 if padded else 0) + data
    info = tarfile.TarInfo("short")
    info.type, info.size = kind, len(content)
    info.pax_headers = sparse.records(name, 0) | {"GNU.sparse.realsize": size} | {f"GNU.sparse.{key}": value for key, value in more.items()}
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512) + bytes(1024)


HOSTILE = {
    "overlapping": (entry("2\n0\n10\n5\n10\n", b"x" * 20), "overlap"),
    "not ascending": (entry("2\n50\n10\n0\n10\n", b"x" * 20), "ascend"),
    "beyond the size": (entry("1\n95\n10\n", b"x" * 10), "beyond"),
    "empty beyond the size": (entry("1\n101\n0\n"), "beyond"),
    "huge numbers": (entry(f"1\n{'9' * 19}\n{'9' * 19}\n"), "beyond"),
    "numbers too long": (entry(f"1\n{'9' * 20}\n0\n"), "no list"),
    "too many": (entry(f"{sparse.MOST + 1}\n"), "names 16385 segments"),
    "more data than the map says": (entry("1\n0\n10\n", b"x" * 11), "not what"),
    "less data than the map says": (entry("1\n0\n10\n", b"x" * 9), "not what"),
    "words behind the map": (entry("1\n0\n10\nx", b"x" * 10), "not what"),
    "negative": (entry("-1\n"), "no list"),
    "an empty line": (entry("1\n\n"), "no list"),
    "zeros": (entry("", bytes(512)), "no list"),
    "a map that does not end": (entry("5\n0\n1\n" + "0" * 3 + "\n1\n" * 300), "overlap|no list|does not end"),
    "no map": (entry(""), "does not end"),
    "a map that is cut by its size": (entry("1\n0\n0\n", padded=False), "does not end"),
    "a size past the limit": (entry("0\n", size="9" * 18), "past"),
    "a size that is no number": (entry("0\n", size="1e3"), "no number"),
    "a size too long": (entry("0\n", size="1" * 20), "no number"),
    "a directory": (entry("", kind=tarfile.DIRTYPE), "sparse directory"),
    "a link": (entry("", kind=tarfile.SYMTYPE), "sparse symbolic link"),
    "up": (entry("1\n100\n0\n", name="../evil"), "goes up"),
    "absolute": (entry("1\n100\n0\n", name="/etc/evil"), "absolute"),
    "form 0.1": (entry("0\n", map="0,1"), "another form"),
    "form 2.0": (entry("0\n", major="2"), "another form"),
}


@pytest.mark.parametrize(("hostile", "words"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("piece", [1 << 20, 100])
def test_a_hostile_map_is_refused_and_leaves_nothing(tmp_path: Path, hostile: bytes, words: str, piece: int) -> None:
    with pytest.raises(UnsafeArchive, match=words):
        unpack((hostile[at : at + piece] for at in range(0, len(hostile), piece)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_holes_count_as_bytes(tmp_path: Path) -> None:
    raw = entry("1\n100\n0\n", size="100")
    assert unpack([raw], tmp_path / "a", limits=Limits(total_bytes=100)).bytes == 100
    with pytest.raises(UnsafeArchive, match="past 99 bytes"):
        unpack([raw], tmp_path / "b", limits=Limits(total_bytes=99))


@pytest.mark.parametrize("archive", ["guest.tar", "sdk.tar"])
def test_an_archive_with_holes_that_is_cut_off_leaves_nothing(tmp_path: Path, archive: str) -> None:
    raw = (GOLDEN / archive).read_bytes()
    for length in range(0, 27 * KIB - 512, 700):
        with pytest.raises(StreamCut):
            unpack([raw[:length]], tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=600) | st.lists(st.integers(0, 120), max_size=40).map(lambda numbers: "".join(f"{n}\n" for n in numbers).encode())
)
def test_a_map_of_any_bytes_is_refused_or_lies_within_the_file(raw: bytes) -> None:
    raw += bytes(-len(raw) % 512)
    reader = sparse.MapReader(len(raw) + 50, 100)
    try:
        for at in range(0, len(raw) + 512, 512):
            found = reader.take((raw + bytes(512))[at : at + 512])
            if found is not None:
                break
    except UnsafeArchive:
        return
    assert found is not None
    assert sum(segment.length for segment in found) + at + 512 == len(raw) + 50
    end = 0
    for segment in found:
        assert end <= segment.at <= segment.at + segment.length <= 100
        end = segment.at + segment.length


def resealed(raw: bytearray, at: int) -> None:
    """A right checksum for the header there, so that what was changed in it is looked at."""
    raw[at + 148 : at + 156] = b" " * 8
    raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2047), st.sampled_from(b"0123456789\n =./x\0\xff")), min_size=1, max_size=4))
def test_a_changed_archive_is_refused_or_stays_in_its_place(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    place = tmp_path_factory.mktemp("m")
    raw = bytearray((GOLDEN / "sdk.tar").read_bytes())  # a pax header, its records, the file's header, its map: 512 bytes each
    for at, byte in changes:
        raw[at] = byte
    for header in (0, 1024):
        resealed(raw, header)
    try:
        told = unpack([bytes(raw)], place / "out", limits=Limits(total_bytes=64 << 20))
    except (UnsafeArchive, StreamCut):
        assert list(place.iterdir()) == []
    else:
        assert [path.name for path in place.iterdir()] == ["out"]
        assert told.bytes <= 64 << 20
