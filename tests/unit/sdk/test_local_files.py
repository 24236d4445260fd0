"""Files of the caller's machine: what arrives is whole and its owner's alone, or not there; a fault is a typed error with the path."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from space.cli.main import main
from space.model.errors import Conflict, InvalidArgument, SpaceError, Unavailable
from space.sdk import Sandbox
from space.sdk.buildfiles import digest, packed, recipe_text
from space.sdk.localfile import Arriving, text
from space.sdk.testing import MockServer


def test_what_arrives_is_its_owners_alone_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with MockServer().client() as client, Sandbox.create(client=client) as sandbox:
            sandbox.suspend()
            sandbox.export(tmp_path / "night.space")
            client.export_template("base", tmp_path / "base.space")
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {"night.space": 0o600, "base.space": 0o600}


def test_a_name_that_is_taken_meanwhile_is_not_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with Arriving(target) as file:
        file.write(b"ours")
        target.write_text("theirs")
        with pytest.raises(Conflict, match="is there already"):
            file.commit()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "theirs")]


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with Arriving(tmp_path / "file") as file:
        file.write(b"some")
        with pytest.raises(Unavailable, match=r"cannot write .*: No space left on device"):
            file.commit()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nowhere/file", "plain/file", "x" * 300])
def test_a_place_that_nothing_can_be_written_to_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").write_text("no directory")
    with pytest.raises(InvalidArgument, match="cannot write"):
        Arriving(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_a_directory_is_there_already(tmp_path: Path) -> None:
    for taken in (tmp_path, Path(), Path(".."), Path("/")):
        with pytest.raises(Conflict):
            Arriving(taken)


def test_a_text_is_read_no_further_than_it_may_be_long() -> None:
    with pytest.raises(InvalidArgument, match="larger than 262144 bytes"):
        text(Path("/dev/zero"), what="a recipe")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"name = '\xc3'"])
def test_a_recipe_that_is_no_text_is_refused_by_every_command(
    tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe := tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(InvalidArgument, match="is not UTF-8"):
        recipe_text(recipe)
    server = MockServer()
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        assert main(["template", "build", str(recipe)]) == 125
        assert main(["run-code", "sb-x", "--file", str(recipe)]) == 125
    assert capfd.readouterr().err.count("is not UTF-8") == 2


@pytest.mark.parametrize("use", [lambda tree: list(packed(tree, ["it"], None)), lambda tree: digest(tree / "it")])
def test_what_a_recipe_copies_and_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object]
) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it/file").write_text("content")

    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "open", refuse)  # tests may run as root, who may read all
    with pytest.raises(SpaceError, match=r"cannot read .*it/file: Permission denied"):
        use(tmp_path)
