"""Debian layers: which list is which, and what a later set-up makes of those that are there (as root, as set-up is)."""

from __future__ import annotations

from pathlib import Path

import pytest

from space.config.artefacts import Store
from space.core.template.plan import debian_name
from space.model.errors import InvalidArgument
from space.setup import layer, rootfs, shelf, template


def artefact(store: Store, kind: str, letter: str, **facts: object) -> Path:
    final = store.path(kind, letter * 32)
    with shelf.staged(final) as stage:
        (stage / "disk.img").write_bytes(bytes(4096))
        shelf.describe(stage, **facts)
    return final


def test_list_of_packages_is_one_whatever_its_order() -> None:
    assert layer.listed(["jq", "git", "jq"]) == ("git", "jq")
    assert debian_name(["jq", "git"]) == debian_name(["git", "jq"]) != debian_name(["git"])
    assert rootfs.recipe(["jq", "git"]) == rootfs.recipe(["git", "jq"]) != rootfs.recipe()


@pytest.mark.parametrize("name", ["-o", "jq,evil", "jq=1", "./x.deb", "", "a b", "--include=x"])
def test_what_is_no_packages_name_never_reaches_a_command(name: str) -> None:
    with pytest.raises(InvalidArgument):
        layer.listed(["git", name])


def test_list_comes_out_of_a_recipe_that_stands_on_packages_only(tmp_path: Path) -> None:
    (recipe := tmp_path / "a.toml").write_text('version = 1\n[base]\ndebian = ["jq"]\n')
    assert layer.of_recipe(recipe) == ("jq",)
    recipe.write_text('version = 1\n[base]\ntemplate = "base"\n')
    with pytest.raises(InvalidArgument, match="does not stand on Debian packages"):
        layer.of_recipe(recipe)
    with pytest.raises(InvalidArgument, match="cannot read"):
        layer.of_recipe(tmp_path / "none")


def test_layers_boot_with_what_a_later_set_up_brought(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (artefact(store, "kernel", letter, release=f"6.1.{letter}") for letter in "12")
    initramfs, qemu = artefact(store, "initramfs", "3"), artefact(store, "qemu", "4")
    artefact(store, "rootfs", "5", suite="bookworm", recipe="r", packages={})
    assert layer.refresh(store, kernel=first, initramfs=initramfs, qemu=qemu)[1] is False
    disk = artefact(store, "rootfs", "6", suite="bookworm", recipe="s", extra=["jq"], packages={})
    template.make(store, kernel=first, initramfs=initramfs, qemu=qemu, disk=disk, name=debian_name(["jq"]))
    assert layer.refresh(store, kernel=first, initramfs=initramfs, qemu=qemu)[1] is False
    assert layer.refresh(store, kernel=second, initramfs=initramfs, qemu=qemu)[1] is True
    manifest = store.template(debian_name(["jq"]))
    assert (manifest.kernel, manifest.kernel_release, manifest.disk_bytes) == ("2" * 32, "6.1.2", 4096)
    assert manifest.source == f"Debian bookworm minbase with jq, root disk {disk.name}"


def test_disk_leaves_room_beside_its_packages() -> None:
    gib = 1 << 30
    assert [rootfs.disk_bytes(size) for size in (0, gib, 2 * gib)] == [2 * gib, 2 * gib, 4 * gib]
