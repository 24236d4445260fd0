"""Trees that come from guests: what a hostile one cannot do, and what an honest one keeps."""

# ruff: noqa: PTH115, PTH118, PTH208, PTH211
from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from space.model.errors import Conflict, InvalidArgument, SpaceError, StreamCut, UnsafeArchive
from space.sdk.archive import Limits, Staging, leads_out, remove_tree, unpack
from space.sdk.pack import pack
from space.sdk.tarstream import Entry, EntryKind, TarReader

Edit = Callable[[tarfile.TarInfo], None]


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: bytes = b"", mode: int = 0o644, mtime: int = 1) -> bytes:
    """One entry, as the standard library writes it."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode, info.mtime = kind, target, len(data), mode, mtime
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def unpacked_names(stream: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        return sorted(archive.getnames())


def tree(*members: bytes) -> bytes:
    return member("./", tarfile.DIRTYPE, mode=0o755) + b"".join(members) + bytes(1024)


def file(name: str, data: bytes = b"x") -> bytes:
    return member(name, data=data)


def link(name: str, target: str) -> bytes:
    return member(name, tarfile.SYMTYPE, target)


def hard(name: str, target: str) -> bytes:
    return member(name, tarfile.LNKTYPE, target)


def pax(**records: str) -> bytes:
    return tarfile.TarInfo._create_pax_generic_header({k.replace("__", "."): v for k, v in records.items()}, b"x", "utf-8")  # type: ignore[attr-defined, no-any-return]


def broken_checksum() -> bytes:
    raw = bytearray(file("./a"))
    raw[0] ^= 1
    return bytes(raw)


HOSTILE = {
    "absolute name": (file("/etc/passwd"), "'/etc/passwd' has an absolute"),
    "absolute name in pax": (pax(path="/etc/x") + file("./a"), "absolute"),
    "up": (file("../a"), "'../a' goes up"),
    "up inside": (file("./a/../../b"), "goes up"),
    "up that stays inside": (file("./a/../b"), "goes up"),
    "up in pax": (pax(path="../a") + file("./a"), "goes up"),
    "NUL in pax": (pax(path="a\0b") + file("./a"), "NUL"),
    "absolute link": (link("./l", "/etc"), "'l' is a symbolic link out"),
    "link up": (link("./l", ".."), "out of the tree or in circles, to '..'"),
    "link up from a directory": (link("./d/l", "../../x"), "out of the tree"),
    "link out in pax": (pax(linkpath="/etc") + link("./l", "a"), "out of the tree"),
    "link through a link": (link("./a", "d/e") + member("./d/e", tarfile.DIRTYPE) + link("./b", "a/../../../x"), "'b' is a symbolic"),
    "link that leaves by what another link means": (
        member("./d/e", tarfile.DIRTYPE) + link("./d/e/up", "..") + link("./l", "d/e/up/../.."),
        "'l' is a symbolic",
    ),
    "link to itself": (link("./l", "l/../.."), "or in circles"),
    "link to nothing": (pax(linkpath="") + link("./l", "x"), "link to nothing"),
    "write through a link": (link("./l", "/tmp") + file("./l/a"), "'./l/a' goes through a symbolic link"),
    "write through a link inside": (member("./d", tarfile.DIRTYPE) + link("./l", "d") + file("./l/a"), "goes through"),
    "write over a link": (link("./l", "a") + file("./l"), "comes twice"),
    "directory over a link": (link("./l", "a") + member("./l", tarfile.DIRTYPE), "goes through a symbolic link"),
    "file over a directory": (member("./d", tarfile.DIRTYPE) + file("./d"), "comes twice"),
    "link over a directory": (member("./d", tarfile.DIRTYPE) + link("./d", "x"), "comes twice"),
    "file over the root": (file("./"), "bytes of data"),
    "twice": (file("./a") + file("./a"), "'./a' comes twice"),
    "through a file": (file("./a") + file("./a/b"), "goes through a file"),
    "hard link out": (hard("./h", "../../etc/passwd"), "goes up"),
    "absolute hard link": (hard("./h", "/etc/passwd"), "absolute"),
    "hard link to a symbolic one": (link("./l", "x") + hard("./h", "l"), "no file of the archive"),
    "hard link through a symbolic one": (link("./l", ".") + file("./f") + hard("./h", "l/f"), "no file of the archive"),
    "hard link to what comes later": (hard("./h", "a") + file("./a"), "no file of the archive"),
    "hard link to a directory": (member("./d", tarfile.DIRTYPE) + hard("./h", "d"), "no file of the archive"),
    "character device": (member("./null", tarfile.CHRTYPE), "'./null' is a character device"),
    "block device": (member("./sda", tarfile.BLKTYPE), "block device"),
    "FIFO": (member("./p", tarfile.FIFOTYPE), "FIFO"),
    "sparse": (member("./s", tarfile.GNUTYPE_SPARSE), "sparse"),
    "sparse in pax": (pax(GNU__sparse__major="1") + file("./a"), "sparse"),
    "unknown type": (member("./a", b"Z"), "unknown type 'Z'"),
    "link with data": (member("./l", tarfile.SYMTYPE, "x", data=b"y"), "bytes of data"),
    "a long component": (file("./" + "a" * 256), "longer than 255"),
    "a long name": (file("./" + "a/" * 3000 + "b"), "name of 6003 bytes"),
    "a deep name": (file("./" + "a/" * 1500 + "b") + file("../x"), "lies 1501 levels deep"),
    "a link to a long name": (pax(linkpath="a/" * 3000) + link("./l", "x"), "link to a name of 6000 bytes"),
    "a huge header": (member("x", tarfile.XHDTYPE, data=bytes(70_000)), "header of 70000 bytes"),
    "a huge long name": (member("x", tarfile.GNUTYPE_LONGNAME, data=bytes(70_000)), "header of 70000 bytes"),
    "a malformed pax header": (member("x", tarfile.XHDTYPE, data=b"99 path=a\n"), "malformed"),
    "a pax header without length": (member("x", tarfile.XHDTYPE, data=b"path=a\n"), "malformed"),
    "a global header": (member("x", tarfile.XGLTYPE, data=b"9 path=a\n") + file("./b"), "global"),
    "a huge size": (pax(size="9" * 19) + file("./a"), "past"),
    "a size that is no number": (pax(size="1e9") + file("./a"), "the number"),
    "a broken checksum": (broken_checksum(), "checksum"),
    "no tar at all": (b"<html>" + bytes(506), "checksum"),
    "data after the end": (bytes(1024) + file("./a"), "after its end"),
    "one zero block inside": (bytes(512) + file("./a"), "after its end"),
    "a header without entry": (pax(path="a"), "without an entry"),
}


@pytest.mark.parametrize(("hostile", "words"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("piece", [1 << 20, 100])
def test_a_hostile_tree_is_refused_and_leaves_nothing(tmp_path: Path, hostile: bytes, words: str, piece: int) -> None:
    (tmp_path / "in").mkdir()
    stream = tree(file("./first"), hostile)
    pieces = (stream[at : at + piece] for at in range(0, len(stream), piece))
    with pytest.raises(UnsafeArchive, match=words):
        unpack(pieces, tmp_path / "in/out")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["in"]


def test_limits_of_entries_and_bytes(tmp_path: Path) -> None:
    stream = tree(file("./a", b"12345"), file("./b", b"12345"))
    unpack([stream], tmp_path / "ok", limits=Limits(entries=3, total_bytes=10))
    with pytest.raises(UnsafeArchive, match=r"'\./b' is one more than the 2"):
        unpack([stream], tmp_path / "no", limits=Limits(entries=2))
    with pytest.raises(UnsafeArchive, match=r"'\./b' takes the tree past 9 bytes"):
        unpack([stream], tmp_path / "no", limits=Limits(total_bytes=9))
    assert os.listdir(tmp_path) == ["ok"]


def test_directories_that_names_imply_count_as_entries(tmp_path: Path) -> None:
    stream = tree(*(file(f"./{number}/" + "d/" * 100 + "f") for number in range(50)))
    with pytest.raises(UnsafeArchive, match="one more than the 60"):
        unpack([stream], tmp_path / "no", limits=Limits(entries=60))
    assert os.listdir(tmp_path) == []
    unpack([tree(file("./a/b/f"))], tmp_path / "ok", limits=Limits(entries=4))
    unpack([tree(member("./a", tarfile.DIRTYPE), file("./a/f"))], tmp_path / "named", limits=Limits(entries=3))


def test_a_tree_of_any_depth_is_removed_to_the_last_directory(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for name in ["deep", *["d" * 50] * 1500]:
        os.mkdir(name, dir_fd=here)
        inside = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inside
    os.symlink(tmp_path, "link", dir_fd=here)
    os.close(here)
    (tmp_path / "kept").write_text("x")
    (tmp_path / "deep/closed/inside").mkdir(parents=True)
    (tmp_path / "deep/closed").chmod(0)
    remove_tree(tmp_path / "deep")
    assert os.listdir(tmp_path) == ["kept"]


def test_set_id_bits_write_permission_of_others_and_owners_are_dropped(tmp_path: Path) -> None:
    unpack([tree(member("./su", mode=0o6777), member("./d", tarfile.DIRTYPE, mode=0o3777), member("./none", mode=0))], tmp_path / "t")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "t").iterdir()}
    assert modes == {"su": 0o755, "d": 0o755, "none": 0o600}
    assert (tmp_path / "t/su").stat().st_uid == os.getuid()


def test_links_that_stay_inside_are_kept_as_written(tmp_path: Path) -> None:
    links = [link("./d/up", "../a"), link("./d/self", "./../d"), link("./dangling", "none//x"), link("./e", "d/up"), hard("./h", "./a")]
    unpack([tree(*links[:4], file("./a", b"data"), links[4])], tmp_path / "t")
    assert os.readlink(tmp_path / "t/dangling") == "none//x"
    assert (tmp_path / "t/e").read_bytes() == b"data"
    assert (tmp_path / "t/h").stat().st_nlink == 2


def test_links_that_lead_out_can_be_left_out(tmp_path: Path) -> None:
    stream = tree(link("./bin/python3", "/usr/bin/python3"), link("./ok", "bin"), file("./f"))
    assert unpack([stream], tmp_path / "t", links="skip").skipped == ("bin/python3",)
    assert sorted(os.listdir(tmp_path / "t")) == ["bin", "f", "ok"]


def test_a_directory_that_cannot_be_entered_is_no_obstacle_and_times_are_kept(tmp_path: Path) -> None:
    closed = member("./d", tarfile.DIRTYPE, mode=0, mtime=1000)
    unpack([tree(closed, member("./d/f", data=b"1", mtime=2000))], tmp_path / "t")
    assert ((tmp_path / "t/d").stat().st_mtime, (tmp_path / "t/d/f").stat().st_mtime) == (1000, 2000)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_time_before_1970_becomes_0(tmp_path: Path, form: Literal[1, 2]) -> None:
    info = tarfile.TarInfo("f")
    info.mtime = -86_400
    unpack([info.tobuf(form) + bytes(1024)], tmp_path / "f")
    assert (tmp_path / "f").stat().st_mtime == 0


@pytest.mark.parametrize(
    "name", ["a b", "new\nline", "-rf", "ünïcode", "u\u0308", "Case", "case", ".hidden", "back\\slash", "\udcff\udc80", "a" * 255]
)
def test_names_are_kept_to_the_byte_both_ways(tmp_path: Path, name: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).write_bytes(b"x")
    unpack(pack(tmp_path / "s"), tmp_path / "t")
    assert os.listdir(os.fsencode(tmp_path / "t")) == [os.fsencode(name)]


def test_case_and_composition_tell_names_apart(tmp_path: Path) -> None:
    unpack([tree(file("./A", b"1"), file("./a", b"2"), file("./ü", b"3"), file("./u\u0308", b"4"))], tmp_path / "t")
    assert sorted(path.read_bytes() for path in (tmp_path / "t").iterdir()) == [b"1", b"2", b"3", b"4"]


def test_what_is_in_the_way_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.mkdir()
    (target / "old").write_text("old")
    stream = tree(file("./new"))
    with pytest.raises(Conflict, match="there already"):
        unpack([stream], target)
    assert os.listdir(target) == ["old"]
    unpack([stream], target, replace=True)
    assert os.listdir(target) == ["new"]
    (tmp_path / "link").symlink_to(target)
    single = file("f", b"!") + bytes(1024)
    with pytest.raises(Conflict):
        unpack([single], tmp_path / "link")
    unpack([single], tmp_path / "link", replace=True)
    unpack([single], tmp_path / "link")
    assert not (tmp_path / "link").is_symlink()
    assert os.listdir(target) == ["new"]
    assert sorted(os.listdir(tmp_path)) == ["link", "t"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path, replace: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Conflict, match="never replaced"):
        unpack([file("f", b"!") + bytes(1024)], tmp_path / "pipe", replace=replace)
    assert (tmp_path / "pipe").is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_file_never_replaces_a_directory(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "keep").write_text("kept")
    with pytest.raises(Conflict, match="a file never replaces"):
        unpack([file("f", b"!") + bytes(1024)], tmp_path / "t", replace=True)
    assert (tmp_path / "t" / "keep").read_text() == "kept"


def test_a_refused_tree_leaves_what_it_should_have_replaced(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with pytest.raises(UnsafeArchive):
        unpack([tree(file("../x"))], tmp_path / "t", replace=True)
    assert os.listdir(tmp_path) == ["t"]


def test_a_destination_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot unpack into"):
        unpack([tree()], tmp_path / "no/t")


@pytest.mark.parametrize("cut", [0, 100, 512, 1024, 1536, -1, -512, -1024])
def test_a_stream_that_was_cut_off_leaves_nothing(tmp_path: Path, cut: int) -> None:
    with pytest.raises(StreamCut):
        unpack([tree(file("./a", b"x" * 600))[:cut]], tmp_path / "t")
    assert os.listdir(tmp_path) == []


def test_data_is_written_as_it_comes_and_never_gathered(tmp_path: Path) -> None:
    with Staging(tmp_path) as staging:
        staging.receive(member("f", data=b"")[:512].replace(b"00000000000\0", b"00000000000\0", 1))
        del staging
    info = tarfile.TarInfo("f")
    info.size = 64 << 20
    with Staging(tmp_path) as staging:
        staging.receive(info.tobuf())
        for _ in range(64):
            staging.receive(bytes(1 << 20))
            assert len(staging._reader._buffer) == 0
        staging.receive(bytes(1024))
        assert staging.commit(tmp_path / "f").bytes == 64 << 20


def test_thousands_of_files_go_through_as_one_stream(tmp_path: Path) -> None:
    for directory in range(30):
        (tmp_path / f"s/{directory}").mkdir(parents=True)
        for number in range(100):
            (tmp_path / f"s/{directory}/{number}").write_bytes(b"%d" % number)
    assert unpack(pack(tmp_path / "s"), tmp_path / "t").entries == 3_031
    assert (tmp_path / "t/17/42").read_bytes() == b"42"


# -- properties --------------------------------------------------------------------------------------------------------

components = st.sampled_from(["a", "b", "..", ".", "c" * 120, "ä", ""])
paths = st.lists(components, min_size=1, max_size=5).map("/".join)
members = st.one_of(
    st.builds(member, paths, st.just(tarfile.REGTYPE), data=st.binary(max_size=700)),
    st.builds(member, paths, st.just(tarfile.DIRTYPE), mode=st.integers(0, 0o7777)),
    st.builds(member, paths, st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE]), target=paths),
)


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(members, min_size=1, max_size=8), st.integers(1, 2000))
def test_whatever_comes_nothing_changes_outside_and_no_link_leads_out(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], piece: int
) -> None:
    base = tmp_path_factory.mktemp("p")
    (base / "a").write_text("canary")
    (base / "in/b").mkdir(parents=True)
    before = everything(base)
    stream = b"".join(parts) + bytes(1024)
    try:
        unpack((stream[at : at + piece] for at in range(0, len(stream), piece)), base / "in/out")
    except SpaceError:
        assert everything(base) == before
        return
    finally:
        assert (base / "a").read_text() == "canary"
    assert [path for path in everything(base) if not path.startswith("in/out")] == before
    inside = os.path.realpath(base / "in/out") if not (base / "in/out").is_symlink() else os.path.realpath(base / "in")
    for path in [base / "in/out", *(base / "in/out").rglob("*")]:
        assert os.path.realpath(path).startswith(inside)
        assert not path.lstat().st_mode & 0o6000 or path.is_symlink()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 2500), st.integers(1, 700))
def test_the_reader_takes_any_bytes_and_any_split_alike(noise: bytes, at: int, piece: int) -> None:
    stream = bytearray(tree(file("./a", b"1" * 700), link("./l", "a" * 120), hard("./h", "a")))
    stream[at : at + len(noise) % 40] = noise[: len(noise) % 40]
    assert _events([bytes(stream)]) == _events(bytes(stream[i : i + piece]) for i in range(0, len(stream), piece))


def _events(pieces: object) -> list[object]:
    events: list[object] = []
    reader = TarReader()
    try:
        for data in pieces:  # type: ignore[attr-defined]
            for event in reader.receive(data):
                if isinstance(event, bytes) and events and isinstance(events[-1], bytes):
                    events[-1] += event
                else:
                    events.append(event)
        reader.finish()
    except SpaceError as error:
        events.append(str(error))
    return events


names = st.text(st.characters(min_codepoint=1, exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=70).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= 255
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=2000), min_size=1, max_size=5), st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_the_reader_agrees_with_the_standard_library(files: dict[str, bytes], form: int) -> None:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}/{name}")
            info.size, info.mtime = len(data), 1_700_000_000
            archive.addfile(info, io.BytesIO(data))
            linked = tarfile.TarInfo(f"./{name}/l")
            linked.type, linked.linkname = tarfile.SYMTYPE, f"{name}/{name}"
            archive.addfile(linked)
    found = _events([output.getvalue()])
    entries = [event for event in found if isinstance(event, Entry)]
    with tarfile.open(fileobj=io.BytesIO(output.getvalue())) as archive:
        oracle = archive.getmembers()
    assert [(e.name.decode(), e.size, e.mtime, e.target.decode()) for e in entries] == [
        (m.name, m.size if m.isreg() else 0, m.mtime, m.linkname) for m in oracle
    ]
    assert b"".join(event for event in found if isinstance(event, bytes)) == b"".join(files.values())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([(b"a",), (b"b",), (b"d", b"c"), (b"d", b"e", b"f")]), paths.filter(bool), min_size=1))
def test_the_judgement_of_links_agrees_with_the_kernel(
    tmp_path_factory: pytest.TempPathFactory, links: dict[tuple[bytes, ...], str]
) -> None:
    """A link that is judged to stay inside does; the kernel's own walk, fenced to the tree, is the oracle for those that lead out."""
    root = tmp_path_factory.mktemp("l") / "root"
    (root / "d/e").mkdir(parents=True)
    for name, target in links.items():
        os.symlink(target, os.path.join(os.fsencode(root), *name))
    raw = {name: target.encode() for name, target in links.items()}
    for name in links:
        if not leads_out(name, raw):
            real = os.path.realpath(os.path.join(os.fsencode(root), *name))
            assert (real + b"/").startswith(os.fsencode(os.path.realpath(root)) + b"/")


# -- packing -----------------------------------------------------------------------------------------------------------


def test_packing_leaves_out_what_is_excluded(tmp_path: Path) -> None:
    for name in (".git/config", "src/a.py", "src/a.pyc", "build/x", "src/build/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    stream = b"".join(pack(tmp_path, exclude=[".git", "*.pyc", "build"]))
    assert unpacked_names(stream) == [".", "./src", "./src/a.py"]
    stream = b"".join(pack(tmp_path, exclude=lambda path: path == "src/build"))
    assert "./build/x" in unpacked_names(stream)


def test_packing_never_follows_a_link_inside(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "s/l").symlink_to("../secret")
    (tmp_path / "s/d").symlink_to(tmp_path)
    stream = b"".join(pack(tmp_path / "s"))
    assert b"secret\0" in stream
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        assert [(m.name, m.issym()) for m in archive] == [(".", False), ("./d", True), ("./l", True)]


def test_packing_refuses_what_cannot_be_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidArgument, match="FIFO"):
        b"".join(pack(tmp_path))
    with pytest.raises(InvalidArgument, match="cannot read"):
        b"".join(pack(tmp_path / "none"))


def test_a_file_that_shrinks_while_it_is_packed_is_an_error(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(4 << 20))

    def consume(stream: Iterator[bytes]) -> None:
        next(stream)
        os.truncate(big, 100)
        for _ in stream:
            pass

    with pytest.raises(InvalidArgument, match="became shorter"):
        consume(pack(big))


def test_packing_holds_little_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as big:
        for _ in range(32):
            big.write(b"x" * (1 << 20))
    assert max(len(piece) for piece in pack(tmp_path)) < 1 << 20


def test_an_old_directory_entry_is_a_directory() -> None:
    (entry,) = (event for event in _events([member("./d/", tarfile.AREGTYPE) + bytes(1024)]) if isinstance(event, Entry))
    assert entry.kind is EntryKind.DIRECTORY
