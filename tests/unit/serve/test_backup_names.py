"""A backup brings back whom clients trust for the server's names, and what seals exported sandboxes."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from pathlib import Path

import pytest
from tests.unit.serve.test_backup import instance, put_back, rewritten, root, state

from space.config.instance import Instance, claim
from space.model.errors import InvalidArgument
from space.node import parcels
from space.serve import authority, exchange
from space.serve.backup import EXPORT, MANIFEST, backup, rights_of

__all__ = ["instance", "root"]  # fixtures


def authorities(instance: Instance) -> dict[str, bytes]:
    return {str(path.relative_to(instance.ingress_ca)): path.read_bytes() for path in instance.ingress_ca.rglob("*.pem")}


LONG = ".".join(["a" * 58] * 3)


def test_names_authority_and_the_seal_of_exports_come_back(instance: Instance, root: Path) -> None:
    for domain in ("sandboxes.example.com", LONG):
        authority.certificate(instance, domain)
    with rights_of(instance.node_uid):
        seal = parcels.key(instance.data / EXPORT)
    before = authorities(instance)
    backup(instance, root / "b")
    shutil.rmtree(instance.ingress_ca / LONG)
    (instance.ingress_ca / "sandboxes.example.com" / "ca.pem").unlink()
    for domain in ("sandboxes.example.com", "other.example.com"):
        authority.certificate(instance, domain)
    other = {name: data for name, data in authorities(instance).items() if name.startswith("other.")}
    (instance.data / EXPORT).write_bytes(bytes(32))
    for _ in range(2):  # over another one, and where there is none
        put_back(instance, root / "b")
        assert authorities(instance) == before | other, "what somebody trusts besides stays"
        facts = (instance.data / EXPORT).stat()
        assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (instance.node_uid, instance.node_uid, 0o600)
        with rights_of(instance.node_uid):
            assert parcels.key(instance.data / EXPORT) == seal
        for path in instance.ingress_ca.rglob("*"):
            wanted = 0o600 if path.name == "ca-key.pem" else 0o644 if path.is_file() else 0o755
            assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (0, wanted), path
        assert not list(instance.data.glob(".restore-*"))
        (instance.data / EXPORT).unlink()
    new = claim("fresh", data_root=instance.data_root, run_root=instance.run_root)
    put_back(new, root / "b")
    assert authorities(new) == before
    with rights_of(new.node_uid):
        assert parcels.key(new.data / EXPORT) == seal


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_exchange_that_ended_midway_is_ended_by_the_next(
    instance: Instance, root: Path, monkeypatch: pytest.MonkeyPatch, done: int, there: bool
) -> None:
    authority.certificate(instance, "example.com")
    with rights_of(instance.node_uid):
        seal = parcels.key(instance.data / EXPORT)
    before = authorities(instance)
    backup(instance, root / "b")
    (instance.data / EXPORT).write_bytes(bytes(32))
    if not there:
        (instance.data / EXPORT).unlink()
        shutil.rmtree(instance.ingress_ca)
    left = iter(range(done))

    def once(path: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "sync_directory", lambda path: once(path) if any(instance.data.glob(".restore-*/journal.json")) else None)
        with pytest.raises(KeyboardInterrupt):
            put_back(instance, root / "b")
    assert exchange.finish(instance)
    assert not exchange.finish(instance)
    assert authorities(instance) == before
    assert (instance.data / EXPORT).read_bytes() == seal
    assert not list(instance.data.glob(".restore-*"))


@pytest.mark.parametrize(
    "names",
    [
        ["ingress-ca/example.com/ca.pem"],
        ["ingress-ca/example.com/ca-key.pem", "ingress-ca/example.com/ca.pem"],
        ["ingress-ca/../ca.pem", "ingress-ca/../ca-key.pem"],
        ["ingress-ca//ca.pem", "ingress-ca//ca-key.pem"],
        ["ingress-ca/a/b/ca.pem", "ingress-ca/a/b/ca-key.pem"],
        ["node/export.key", "node/export.key"],
        ["node/ledger"],
    ],
)
def test_a_backup_that_names_other_places_is_refused(instance: Instance, root: Path, names: list[str]) -> None:
    backup(instance, root / "b")

    def change(members: dict[str, bytes]) -> None:
        manifest = json.loads(members[MANIFEST])
        for name in names:
            members[name] = b"x"
            manifest["files"].append({"name": name, "bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()})
        members[MANIFEST] = json.dumps(manifest).encode()

    rewritten(root / "b", change)
    was = state(instance)
    with pytest.raises(InvalidArgument, match="names other files"):
        put_back(instance, root / "b")
    assert state(instance) == was
