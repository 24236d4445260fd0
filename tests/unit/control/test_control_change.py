"""What may be changed of a sandbox: its time to live, metadata, idle rule, and what becomes of it at the end."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from space.control import wire
from space.control.wire_tenants import ChangeRequest, changed_spec
from space.model.errors import InvalidArgument
from space.model.sandbox import IdlePolicy, SandboxSpec


def test_a_specification_without_new_fields_has_the_digest_that_an_older_server_stored() -> None:
    spec = SandboxSpec(env={"B": "2", "A": "1"})
    old = b'{"template":"base","cpus":1,"memory_mib":512,"disk_mib":2048,"env":{"A":"1","B":"2"},"metadata":{},"ttl_seconds":3600}'
    assert hashlib.sha256(msgspec.json.encode(wire.asked_for(spec))).digest() == hashlib.sha256(old).digest()
    idle = wire.asked_for(SandboxSpec(idle=IdlePolicy(3)))
    assert idle["idle"] == {"seconds": 3, "action": "pause"}


def test_only_what_is_given_is_changed() -> None:
    spec = SandboxSpec(metadata={"a": "1", "b": "2"}, idle=IdlePolicy(60), ttl_seconds=100)
    asked = wire.decode(b'{"metadata": {"a": null, "c": "3"}, "ttl_seconds": 7}', ChangeRequest)
    changed, fields = changed_spec(spec, asked, max_ttl_seconds=1000)
    assert changed == SandboxSpec(metadata={"b": "2", "c": "3"}, idle=IdlePolicy(60), ttl_seconds=7)
    assert fields == ["ttl_seconds", "metadata"]
    changed, fields = changed_spec(spec, wire.decode(b'{"idle": null, "on_timeout": "pause"}', ChangeRequest), max_ttl_seconds=1000)
    assert (changed.idle, changed.on_timeout, fields) == (None, "pause", ["idle", "on_timeout"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "nothing is to be changed"),
        (b'{"ttl_seconds": 0}', "ttl_seconds is 1 to 1000, not 0"),
        (b'{"ttl_seconds": -1}', "ttl_seconds is 1 to 1000"),
        (b'{"ttl_seconds": 1001}', "ttl_seconds is 1 to 1000"),
        (b'{"ttl_seconds": null}', "ttl_seconds"),
        (b'{"idle": {"seconds": 0}}', "idle.seconds is 1 to"),
        (b'{"idle": {"seconds": -5}}', "idle.seconds is 1 to"),
        (b'{"idle": {}}', "seconds"),
        (b'{"idle": {"seconds": 5, "action": "stop"}}', "action"),
        (b'{"idle": 5}', "idle"),
        (b'{"on_timeout": "keep"}', "on_timeout"),
        (b'{"metadata": {"-": "x"}}', "no name"),
        (b'{"metadata": {"a": 1}}', "metadata"),
        (b'{"metadata": null}', "metadata"),
        (b'{"cpus": 2}', "cpus"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(body: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        changed_spec(SandboxSpec(), wire.decode(body, ChangeRequest), max_ttl_seconds=1000)


def test_merged_metadata_is_bounded() -> None:
    full = SandboxSpec(metadata={f"n{n}": "" for n in range(wire.MAX_METADATA)})
    with pytest.raises(InvalidArgument, match="65 names are more than 64"):
        changed_spec(full, ChangeRequest(metadata={"one.more": ""}), max_ttl_seconds=10)
    assert len(changed_spec(full, ChangeRequest(metadata={"one.more": "", "n0": None}), max_ttl_seconds=10)[0].metadata) == 64
