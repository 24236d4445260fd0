"""The host's verdict on /dev/kvm goes from instance to instance, bounded, and never through a link that a service made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from space.config.instance import Instance
from space.model.ids import instance_name
from space.serve import layout, verdict


def other(instance: Instance) -> Instance:
    made = replace(instance, name=instance_name("other"), index=instance.index)
    layout.make_directories(made)
    return made


def test_a_new_instance_gets_the_verdict_that_an_earlier_one_left(instance: Instance) -> None:
    (instance.node_data / "accelerator.json").write_text('{"accelerator": "tcg"}')
    verdict.keep(instance)
    fresh = other(instance)
    verdict.hand_on(fresh)
    given = fresh.node_data / "accelerator.json"
    assert given.read_text() == '{"accelerator": "tcg"}'
    assert (given.stat().st_uid, given.stat().st_mode & 0o777) == (fresh.node_uid, 0o600)


def test_its_own_verdict_is_not_replaced(instance: Instance) -> None:
    (instance.run_root / "accelerator.json").write_text("shared")
    (instance.node_data / "accelerator.json").write_text("own")
    verdict.hand_on(instance)
    assert (instance.node_data / "accelerator.json").read_text() == "own"


def test_a_link_is_not_followed_and_a_large_file_is_cut(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root's")
    own = instance.node_data / "accelerator.json"
    own.symlink_to(tmp_path / "secret")
    verdict.keep(instance)
    assert not (instance.run_root / "accelerator.json").exists()
    own.unlink()
    own.write_bytes(b"x" * 100_000)
    verdict.keep(instance)
    assert (instance.run_root / "accelerator.json").stat().st_size == 4096
