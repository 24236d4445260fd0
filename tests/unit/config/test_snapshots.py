"""The manifest of a snapshot: read strictly, refused with what differs; digests that holes do not change."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.config import snapshots
from space.config.snapshots import Machine, SnapshotManifest
from space.core.plan import machine
from space.model.errors import Conflict

NAME = "sn-" + "a2" * 10
HERE = Machine("a" * 16, "b" * 16, "c" * 16, 1, "tcg", "max", 1, 256, "quiet", "d" * 32, 2_400_000)
GOOD = SnapshotManifest(snapshots.VERSION, NAME, "sb-x", 1, "e" * 16, "", True, True, HERE, 2048, 1, 2, 3, 4, 5.0, {"state": "f"}, True)


def test_a_manifest_survives_the_disk() -> None:
    assert snapshots.parse(json.loads(json.dumps(GOOD.to_json())), NAME) == GOOD


@pytest.mark.parametrize("name", [field.name for field in fields(SnapshotManifest)])
def test_every_field_is_needed_and_has_its_type(name: str) -> None:
    raw = GOOD.to_json()
    for wrong in ({key: value for key, value in raw.items() if key != name}, raw | {name: None}, raw | {name: ["x"]}):
        with pytest.raises(Conflict) as caught:
            snapshots.parse(wrong, NAME)
        assert NAME in caught.value.message
        assert "rebake" in (caught.value.hint or "")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)))
def test_whatever_else_lies_there_is_refused(raw: Any) -> None:
    with pytest.raises(Conflict):
        snapshots.parse(raw, NAME)


@pytest.mark.parametrize(
    ("there", "here", "same"),
    [
        (2_400_000, 2_400_050, True),  # the next boot's measurement
        (2_400_000, 2_399_500, True),
        (2_400_000, 2_401_000, False),
        (2_400_000, 2_399_000, False),
        (0, 3_000_000, True),  # of a processor whose rate is not known
        (3_000_000, 0, True),
    ],
)
def test_a_counter_of_another_rate_is_refused_with_both(there: int, here: int, same: bool) -> None:
    found = replace(GOOD, machine=replace(HERE, counter_khz=there))
    if same:
        snapshots.check(found, replace(HERE, counter_khz=here))
        return
    with pytest.raises(Conflict, match=f"counter runs at {there} kHz there and at {here} kHz here") as caught:
        snapshots.check(found, replace(HERE, counter_khz=here))
    assert "boots from its disk" in (caught.value.hint or "")


@pytest.mark.parametrize("name", [field.name for field in fields(Machine) if field.name != "counter_khz"])
def test_a_machine_that_differs_in_anything_is_refused_by_its_name(name: str) -> None:
    snapshots.check(GOOD, HERE)
    value = getattr(HERE, name)
    other = Machine(**{**asdict(HERE), name: value + 1 if isinstance(value, int) else value + "x"})
    with pytest.raises(Conflict, match=f"{name} is "):
        snapshots.check(GOOD, other)


def test_the_fingerprint_is_of_devices_and_not_of_one_start() -> None:
    plan = machine.Machine(1, 256, "tcg", 2_400_000)
    same = (replace(plan, tsc_khz=3_000_000), replace(plan, tsc_sure=True), replace(plan, restore=True))
    found = snapshots.fingerprint(machine.devices(plan))
    assert {snapshots.fingerprint(machine.devices(each)) for each in same} == {found}
    for other in (replace(plan, cpus=2), replace(plan, memory_mib=512), replace(plan, accelerator="kvm")):
        assert snapshots.fingerprint(machine.devices(other)) != found


def test_a_digest_is_of_what_is_read_and_not_of_where_the_holes_are(tmp_path: Path) -> None:
    data = os.urandom(100_000) + bytes(300_000) + os.urandom(50_000) + bytes(200_000)
    (tmp_path / "full").write_bytes(data)
    with (tmp_path / "holes").open("wb") as file:
        file.write(data[:100_000])
        file.seek(400_000)
        file.write(data[400_000:450_000])
        file.truncate(len(data))
    (tmp_path / "longer").write_bytes(data + b"\0")
    (tmp_path / "moved").write_bytes(bytes(65536) + data[:-65536])

    def digest(name: str) -> str:
        descriptor = os.open(tmp_path / name, os.O_RDONLY)
        try:
            return snapshots.digest(descriptor)
        finally:
            os.close(descriptor)

    assert digest("full") == digest("holes")
    assert len({digest(name) for name in ("full", "longer", "moved")}) == 3
