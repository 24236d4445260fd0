"""rootd hands a template's root to the broker of its instance, and to nobody else; whatever lies where it writes."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from space.config.artefacts import CERTIFICATE, KEY, Store, TemplateManifest
from space.model.errors import Conflict, NotFound
from space.testing.roothost import RootHost

TEMPLATE, OLD, FINGERPRINT = "d" * 32, "e" * 32, "f" * 64


@pytest.fixture
def host(host: RootHost) -> RootHost:
    """With a store of its own, in which one template has a root and another has none."""
    instance = host.instance
    instance.artefacts.unlink()
    store = Store(instance.artefacts)
    manifest = TemplateManifest("base", TEMPLATE, OLD, OLD, OLD, 1, 1, "none", "test", root=FINGERPRINT)
    for one in (manifest, replace(manifest, digest=OLD, root="")):
        directory = store.path("template", one.digest)
        directory.mkdir(parents=True)
        one.save(directory / "manifest.json")
    place = store.authority(FINGERPRINT)
    place.mkdir(parents=True)
    (place / CERTIFICATE).write_text("certificate\n")
    (place / KEY).write_text("key\n")
    (place / KEY).chmod(0o400)
    instance.broker_roots.mkdir(mode=0o700)
    os.chown(instance.broker_roots, instance.broker_uid, instance.broker_uid)
    return host


def provide(host: RootHost, template: str = TEMPLATE) -> Path:
    host.ask(lambda client: client.provide_root(template))
    return host.instance.broker_roots / f"{template}.pem"


def test_it_is_the_brokers_alone_and_again_is_the_same(host: RootHost) -> None:
    for _ in range(2):
        path = provide(host)
        facts = path.lstat()
        assert (facts.st_uid, facts.st_gid) == (host.instance.broker_uid, host.instance.broker_uid)
        assert stat.S_ISREG(facts.st_mode)
        assert stat.S_IMODE(facts.st_mode) == 0o400
        assert path.read_text() == f"{FINGERPRINT}\ncertificate\nkey\n"
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert "key\n" not in host.log.read_text()


def test_a_template_without_a_root_has_no_egress_and_the_way_out_is_said(host: RootHost) -> None:
    with pytest.raises(NotFound, match="has no root certificate") as caught:
        provide(host, OLD)
    assert "space setup" in str(caught.value.hint)
    with pytest.raises(NotFound):
        provide(host, "1" * 32)
    assert list(host.instance.broker_roots.iterdir()) == []


def test_a_broker_that_was_taken_leads_rootd_nowhere(host: RootHost, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    link = host.instance.broker_roots / f"{TEMPLATE}.pem"
    link.symlink_to(victim)
    path = provide(host)
    assert victim.read_text() == "mine"
    assert not path.is_symlink()
    path.unlink()
    path.mkdir()
    with pytest.raises(Conflict, match="is a directory"):
        provide(host)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
