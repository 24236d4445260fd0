"""What of set-up's artefacts may go: never what a name, a template, a snapshot or a sandbox leads to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.config.instance import Instance, claim
from space.model.errors import Conflict
from space.model.sandbox import Phase
from space.node.ledger import Ledger, Record
from space.serve import retire
from space.serve.retire import KINDS, Artefact, unused

keys = st.tuples(st.sampled_from(KINDS), st.sampled_from("abcdef"))
stores = st.dictionaries(keys, st.builds(Artefact, st.frozensets(keys, max_size=3), st.integers(0, 9).map(float)), max_size=20)


@given(stores, st.sets(keys, max_size=4))
def test_what_is_used_stays_with_all_that_it_needs_and_so_does_the_newest_of_each_kind(
    there: dict[retire.Key, Artefact], used: set[retire.Key]
) -> None:
    going = unused(there, used)
    left = there.keys() - set(going)
    assert set(going) <= there.keys() - used
    assert all(need in left or need not in there for key in left for need in there[key].needs)
    for kind in {kind for kind, _ in there}:
        newest = max(artefact.made for (other, _), artefact in there.items() if other == kind)
        assert any(there[key].made == newest for key in left if key[0] == kind)
    assert [KINDS.index(kind) for kind, _ in going] == sorted(KINDS.index(kind) for kind, _ in going)


@given(stores)
def test_what_nothing_leads_to_goes(there: dict[retire.Key, Artefact]) -> None:
    newest = {max((artefact.made, key) for key, artefact in there.items() if key[0] == kind)[1] for kind, _ in there}
    alone = {key for key in there if key not in newest and not any(key in artefact.needs for artefact in there.values())}
    assert alone <= set(unused(there, ()))


class Host:
    """A data directory with artefacts of three set-ups: `1` is the oldest, `3` the present one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for number in (1, 2, 3):
            self.artefact("kernel", number, {})
            self.artefact("qemu", number, {})
            self.artefact("daemon", number, {})
            self.artefact("initramfs", number, {"daemon": _name("daemon", number), "kernel": _name("kernel", number)})
            disk = self.artefact("rootfs", number, {}) / "disk.img"
            disk.write_bytes(bytes(1 << 20))
            needs = {kind: _name(kind, number) for kind in ("kernel", "initramfs", "qemu")}
            made = self.artefact("template", number, {"source": f"Debian, root disk {_name('rootfs', number)}", **needs})
            os.link(disk, made / "disk.img")
        (root / "artefacts/names").mkdir()
        (root / "artefacts/names/base").symlink_to(f"../template/{_name('template', 3)}")
        self.instance: Instance = claim("acme", data_root=root, run_root=root / "run")
        for directory in (self.instance.templates, self.instance.snapshots, self.instance.node_data):
            directory.mkdir(parents=True)

    def artefact(self, kind: str, number: int, facts: dict[str, str]) -> Path:
        place = self.root / "artefacts" / kind / _name(kind, number)
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(json.dumps(facts))
        os.utime(place, (number, number))
        return place

    def sandbox_of(self, number: int) -> None:
        ledger = Ledger(self.instance.node_data / "ledger.db")
        ledger.put(Record("sb-" + "a" * 20, "acme", 1, "base", _name("template", number), 1, 512, 2048, {}, Phase("stopped")))
        self.ledger = ledger  # open, as the node has it

    def there(self) -> set[str]:
        found = (self.root / "artefacts").glob("*/*/manifest.json")
        return {f"{path.parent.parent.name}/{path.parent.name[-1]}" for path in found if path.parent.parent.name != "names"}

    def prune(self, *, dry_run: bool = False) -> retire.Pruned:
        return retire.prune(dry_run=dry_run, data_root=self.root)


def _name(kind: str, number: int) -> str:
    return f"{KINDS.index(kind)}" * 31 + str(number)


def _all(*numbers: int) -> set[str]:
    return {f"{kind}/{number}" for kind in KINDS for number in numbers}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_prune_leaves_the_present_set_up_and_says_what_is_free_now(host: Host) -> None:
    said = host.prune(dry_run=True)
    assert host.there() == _all(1, 2, 3)
    done = host.prune()
    assert host.there() == _all(3)
    assert done == said
    assert len(done.artefacts) == 12
    assert done.freed_bytes >> 20 == 2  # each disk once, though it has two names
    assert host.prune() == retire.Pruned([], 0)


def test_what_a_sandbox_boots_with_stays_also_while_its_node_writes(host: Host) -> None:
    host.sandbox_of(1)
    host.prune()
    assert host.there() == _all(1, 3)


@pytest.mark.parametrize("kind", ["templates", "snapshots"])
def test_what_a_template_or_a_snapshot_of_an_instance_was_made_with_stays(host: Host, kind: str) -> None:
    needs = {"kernel": _name("kernel", 2), "initramfs": _name("initramfs", 2)}
    place = getattr(host.instance, kind) / "some"
    place.mkdir()
    vmm = _name("qemu", 2)
    facts: dict[str, object] = {**needs, "qemu": vmm} if kind == "templates" else {"machine": {**needs, "vmm": vmm}}
    (place / "manifest.json").write_text(json.dumps(facts))
    host.prune()
    assert host.there() == _all(3) | {"kernel/2", "initramfs/2", "qemu/2", "daemon/2"}


def test_nothing_goes_where_what_uses_it_cannot_be_read(host: Host) -> None:
    (host.instance.node_data / "ledger.db").write_bytes(b"no database" * 100)
    with pytest.raises(Conflict, match="ledger of instance acme cannot be read"):
        host.prune()
    (host.instance.node_data / "ledger.db").unlink()
    place = host.instance.snapshots / "torn"
    place.mkdir()
    (place / "manifest.json").write_text("{")
    with pytest.raises(Conflict, match=r"manifest\.json cannot be read"):
        host.prune()
    assert host.there() == _all(1, 2, 3)
