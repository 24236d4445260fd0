"""Instances get uid blocks that nobody else has, and a block or an instance that a crash left is found again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from space.config import blocks, instance
from space.config.instance import Instance, abandoned, claim, instances, load, release
from space.model.ids import instance_name

Claim = Callable[..., Instance]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """Claims in a directory of the test's own, on a host whose other uids do not matter."""
    monkeypatch.setattr(blocks, "taken", lambda *_: [])
    return lambda name, **more: claim(name, data_root=tmp_path / "data", run_root=tmp_path / "run", **more)


def test_blocks_lie_outside_what_others_hand_out() -> None:
    everybody = range(blocks.uids(0).start, blocks.uids(instance.MAX_INSTANCES).start)
    assert everybody.start > 0x6FFF_FFFF  # systemd-nspawn's last
    assert everybody.stop <= 0x7FFE_0000  # systemd's foreign ids begin there; from 0x80000000 on uids are trouble
    assert blocks.uids(1).start == blocks.uids(0).stop


def test_every_uid_of_an_instance_is_its_own(make: Claim) -> None:
    one = make("one")
    services = [one.control_uid, one.node_uid, one.broker_uid, one.gateway_uid, one.dialer_uid, one.audit_uid]
    machines = [one.vm_uid(slot) for slot in range(instance.SLOTS)]
    workers = [one.worker_uid(slot) for slot in range(instance.SLOTS)]
    everybody = services + machines + workers
    assert len(set(everybody)) == len(everybody)
    assert set(everybody) <= set(one.uid_range)
    for uid in (one.vm_uid, one.worker_uid):
        for slot in (-1, instance.SLOTS):
            with pytest.raises(ValueError, match=f"slot {slot} is not within"):
                uid(slot)


def test_a_block_of_subordinate_ids_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = blocks.uids(0), blocks.uids(1)
    (tmp_path / "subuid").write_text(f"ann:100000:65536\nnonsense\n:x:\nbob:{first.stop - 1}:1\n")
    (tmp_path / "subgid").write_text(f"bob:{second.start}:65536\n")
    (tmp_path / "proc").mkdir()
    found = blocks.taken((tmp_path / "subuid", tmp_path / "subgid", tmp_path / "missing"), tmp_path / "proc")
    assert found == [range(100_000, 165_536), range(first.stop - 1, first.stop), range(second.start, second.start + 65536)]
    monkeypatch.setattr(blocks, "taken", lambda: found)
    assert claim("one", data_root=tmp_path / "data", run_root=tmp_path / "run").index == 17  # 65,536 are 16 blocks


def test_a_block_whose_uid_a_process_has_is_passed_over(tmp_path: Path) -> None:
    index = 400  # past every instance's, so that no real one is disturbed
    uid = blocks.uids(index)[7]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(0, 0, uid)  # the saved one alone
        os.close(writer)
        signal.pause()
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    try:
        assert blocks.overlaps(blocks.uids(index), blocks.taken())
        assert not blocks.overlaps(blocks.uids(index + 1), blocks.taken())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not blocks.overlaps(blocks.uids(index), blocks.taken())


def died(act: Callable[[], object]) -> None:
    """Run it in a child that dies within."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def kill_ourselves(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_claim_that_was_killed_leaves_its_block_to_the_next(make: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", kill_ourselves)
        died(lambda: make("lost", ephemeral=True))
    root = tmp_path / "data" / "instances"
    assert (root / ".blocks" / "0").exists()
    assert load("lost", data_root=tmp_path / "data") is None
    assert make("next").index == 0
    assert {entry.name for entry in root.iterdir()} == {".blocks", "next"}
    assert make("other").index == 1
    assert make("next").index == 0


def test_a_release_that_was_killed_leaves_its_block_to_the_next(make: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make("one"), make("two")
    unlink = Path.unlink

    def cut(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        kill_ourselves()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cut)
        died(lambda: release(one))
    assert [found.name for found in instances(data_root=tmp_path / "data")] == ["two"]
    assert make("three").index == 0
    release(one)  # late, and no harm to who has the block now
    assert (tmp_path / "data" / "instances" / ".blocks" / "0").read_text() == "three"
    release(two)
    release(two)
    assert make("four").index == 1


def test_an_ephemeral_instance_is_abandoned_when_the_one_who_claimed_it_is_dead(make: Claim, tmp_path: Path) -> None:
    roots = {"data_root": tmp_path / "data", "run_root": tmp_path / "run"}

    def claim_and_die() -> None:
        make("lost", ephemeral=True)
        kill_ourselves()

    make("kept")
    make("mine", ephemeral=True)
    assert abandoned(**roots) == []
    died(claim_and_die)
    assert [found.name for found in abandoned(**roots)] == ["lost"]


def test_cgroups_of_two_instances_differ_by_the_index_too() -> None:
    name = instance_name("same")
    assert Instance(name, 1).cgroup == "space-same-1"
    assert Instance(name, 2).cgroup == "space-same-2"
