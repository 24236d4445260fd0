"""The boundary under arbitrary bytes: an operation whose every value is in range, or a refusal; never anything else."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from ipaddress import ip_network
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from space.config.instance import SLOTS
from space.model.errors import InvalidArgument
from space.model.rootd import BeginSnapshot, CreateSandbox, EdgeOp, SandboxOp, SlotOp, SnapshotOp, StartVmm
from space.rootd import records

_VALID: dict[str, st.SearchStrategy[Any]] = {
    "sandbox": st.from_regex(r"sb-[a-z2-7]{20}", fullmatch=True),
    "template": st.from_regex(r"[0-9a-f]{16,64}", fullmatch=True),
    "accelerator": st.sampled_from(["tcg", "kvm", "firecracker"]),
    "synthetic": st.sampled_from(["198.18.0.0/15", "10.0.0.0/8", "100.64.0.0/10"]) | st.from_regex(r"[0-9./]{0,20}", fullmatch=True),
    "snapshot": st.from_regex(r"sn-[a-z2-7]{20}", fullmatch=True) | st.just(""),
    **dict.fromkeys(("digest", "onto"), st.from_regex(r"[0-9a-f]{16,64}", fullmatch=True)),
    "settings": st.just("{}") | st.text(max_size=20),
    **dict.fromkeys(("literal", "force", "shared", "durable", "restore"), st.booleans()),
    "slot": st.integers(-2, SLOTS + 2),
    **dict.fromkeys(("generation", "following"), st.integers(-2, 2**64)),
    "disk_mib": st.integers(0, (1 << 20) + 2),
    "memory_mib": st.integers(0, (1 << 20) + 2),
    "cpus": st.integers(0, 70),
    "state_bytes": st.integers(0, (1 << 20) + 2),
    "facts": st.sampled_from(["{}", '{"a": {"b": 1}}', "[]", "1", "null", "{", '"x"', "[" * 5000]) | st.text(max_size=20),
}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _nearly(draw: st.DrawFn) -> bytes:
    """An operation, right or with something wrong about one of its fields."""
    op = draw(st.sampled_from(sorted(records.OPERATIONS)))
    message: dict[str, Any] = {"op": op}
    for name in records.OPERATIONS[op].__dataclass_fields__:
        message[name] = draw(_VALID[name])
    if draw(st.booleans()):
        message[draw(st.sampled_from([*message, "path"]) | st.text(max_size=8))] = draw(_JSON)
    if draw(st.booleans()):
        message.pop(draw(st.sampled_from(sorted(message))), None)
    return json.dumps(message).encode()


def _must_be_bounded(refusal: bytes) -> None:
    assert json.loads(refusal)["code"] == "invalid_argument"
    assert len(refusal) < 10_000


def _must_be_an_operation_or_a_refusal(message: bytes) -> None:
    try:
        op, record = records.decode(message)
    except InvalidArgument as refused:
        _must_be_bounded(records.refusal(refused))
        return
    assert type(record) is records.OPERATIONS[op]
    for name, value in asdict(record).items():
        assert type(value) in (int, str, bool), name
    if isinstance(record, EdgeOp):
        network = ip_network(record.synthetic)
        assert str(network) == record.synthetic
        assert 8 <= network.prefixlen <= 24
        assert type(record.literal) is bool
    if isinstance(record, SlotOp | EdgeOp | CreateSandbox):
        assert 0 <= record.slot < SLOTS
    if isinstance(record, SandboxOp | CreateSandbox | StartVmm):
        assert re.fullmatch(r"sb-[a-z2-7]{20}", record.sandbox)
        assert 1 <= record.generation < 2**63
    if "following" in asdict(record):
        assert 1 <= asdict(record)["following"] < 2**63
    if isinstance(record, CreateSandbox):
        assert re.fullmatch(r"[0-9a-f]{16,64}", record.template)
        assert 1 <= record.disk_mib <= 1 << 20
        assert 32 <= record.memory_mib <= 1 << 20
        assert 1 <= record.cpus <= 64
        assert re.fullmatch(r"(sn-[a-z2-7]{20})?", record.snapshot)
    if isinstance(record, BeginSnapshot | SnapshotOp):
        assert re.fullmatch(r"sn-[a-z2-7]{20}", record.snapshot)
    if isinstance(record, StartVmm):
        assert record.accelerator in ("tcg", "kvm", "firecracker")


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(message: bytes) -> None:
    _must_be_an_operation_or_a_refusal(message)


@settings(max_examples=300, deadline=None)
@given(_JSON.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_json(message: bytes) -> None:
    _must_be_an_operation_or_a_refusal(message)


@settings(max_examples=600, deadline=None)
@given(_nearly())
def test_nearly_right_operations(message: bytes) -> None:
    _must_be_an_operation_or_a_refusal(message)


@settings(max_examples=400, deadline=None)
@given(_nearly(), st.data())
def test_operations_with_bytes_changed(message: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(message) - 1))
    _must_be_an_operation_or_a_refusal(message[:at] + data.draw(st.binary(max_size=4)) + message[at + data.draw(st.integers(0, 4)) :])
