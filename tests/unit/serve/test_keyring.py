"""The broker's key is made once, is the broker's alone, and is never made beside a store that it would not open."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from space.config.instance import Instance
from space.config.settings import Settings
from space.model.errors import Conflict, InvalidArgument, Unavailable
from space.serve import keyring
from space.serve.backup import rights_of


def test_it_is_made_once_and_is_the_brokers_alone(instance: Instance) -> None:
    keyring.ensure(instance, Settings())
    facts, first = instance.broker_keyring.stat(), instance.broker_keyring.read_bytes()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (instance.broker_uid, instance.broker_uid, 0o600)
    keyring.ensure(instance, Settings())
    assert instance.broker_keyring.read_bytes() == first
    with rights_of(instance.node_uid), pytest.raises(PermissionError):
        instance.broker_keyring.read_bytes()


def test_a_store_without_its_key_is_not_given_another(instance: Instance) -> None:
    (instance.broker_data / keyring.STORE).touch()
    with pytest.raises(Conflict, match=r"store\.db is there, and .*broker\.keyring, the key that opens it, is not") as caught:
        keyring.ensure(instance, Settings())
    assert "put the key back" in str(caught.value.hint)
    assert not instance.broker_keyring.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o700])
def test_a_key_that_others_may_read_is_refused_with_the_remedy(instance: Instance, mode: int) -> None:
    keyring.ensure(instance, Settings())
    instance.broker_keyring.chmod(mode)
    with pytest.raises(InvalidArgument, match=f"mode {mode:04o}") as caught:
        keyring.ensure(instance, Settings())
    assert f"chmod 600 {instance.broker_keyring}" in str(caught.value.hint)


def test_a_key_of_another_instance_is_refused(instance: Instance) -> None:
    keyring.ensure(instance, Settings())
    os.chown(instance.broker_keyring, instance.node_uid, instance.node_uid)
    with pytest.raises(InvalidArgument, match=f"of uid {instance.node_uid}"):
        keyring.ensure(instance, Settings())


def test_the_setting_says_where_it_lies_and_a_link_there_is_refused(instance: Instance, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "ring"
    settings = replace(Settings(), broker_keyring=str(place))
    with pytest.raises(Unavailable, match="No such file or directory"):
        keyring.ensure(instance, settings)
    place.parent.mkdir()
    keyring.ensure(instance, settings)
    assert keyring.path(instance, settings) == place
    assert not instance.broker_keyring.exists()
    place.rename(place.with_name("moved"))
    place.symlink_to(place.with_name("moved"))
    with pytest.raises(InvalidArgument, match="no regular file"):
        keyring.ensure(instance, settings)
