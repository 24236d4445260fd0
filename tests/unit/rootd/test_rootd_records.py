"""The boundary's grammar: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from space.config.artefacts import TemplateManifest
from space.model import errors
from space.model.errors import InvalidArgument
from space.model.rootd import (
    BeginSnapshot,
    CreateSandbox,
    Describe,
    DropTemplate,
    EdgeOp,
    KeepTemplate,
    ListSnapshots,
    OpenTemplate,
    Operation,
    RebaseTemplate,
    RenewSandbox,
    SandboxOp,
    SealSnapshot,
    SealTemplate,
    SlotOp,
    SnapshotOp,
    StageSnapshot,
    StageTemplate,
    StartVmm,
    TemplateOp,
)
from space.rootd import records

ID = "sb-" + "a2" * 10
SETTINGS = TemplateManifest("t", "ab" * 16, "a" * 16, "a" * 16, "a" * 16, 1, 1, "6.1", "test").settings()
SNAPSHOT = "sn-" + "a2" * 10
CREATE = {
    "op": "create_sandbox",
    "sandbox": ID,
    "generation": 1,
    "slot": 0,
    "template": "a" * 16,
    "disk_mib": 2048,
    "memory_mib": 512,
    "cpus": 1,
    "snapshot": "",
}

GOOD: list[tuple[str, Operation]] = [
    ("describe", Describe()),
    ("create_slot", SlotOp(0)),
    ("create_edge", EdgeOp(0, "198.18.0.0/15", literal=True)),
    ("destroy_slot", SlotOp(1535)),
    ("keep_template", KeepTemplate(ID, 1, "ab" * 16, SETTINGS)),
    ("open_snapshot", SnapshotOp(SNAPSHOT)),
    ("stage_snapshot", StageSnapshot(SNAPSHOT, 512, 1 << 16, 2048)),
    ("seal_snapshot", SealSnapshot(SNAPSHOT, ID, 1, "{}")),
    ("rebase_template", RebaseTemplate("ab" * 16, "cd" * 16, "ef" * 16, SETTINGS)),
    ("stage_template", StageTemplate("ab" * 16, 1 << 20)),
    ("seal_template", SealTemplate("ab" * 16, "cd" * 16, SETTINGS)),
    ("open_template", OpenTemplate("ab" * 16)),
    ("drop_template", DropTemplate("ab" * 16, force=True)),
    ("slot_counters", SlotOp(0)),
    ("worker_cgroup", SlotOp(0)),
    ("provide_root", TemplateOp("ab" * 16)),
    ("create_sandbox", CreateSandbox(ID, 1, 0, "a" * 16, 1 << 20, 1 << 20, 64)),
    ("create_sandbox", CreateSandbox(ID, 1, 0, "a" * 16, 1, 32, 1, SNAPSHOT)),
    ("renew_sandbox", RenewSandbox(ID, 1, 2**63 - 1)),
    ("start_vmm", StartVmm(ID, 2**63 - 1, "kvm")),
    ("start_vmm", StartVmm(ID, 1, "tcg", restore=True)),
    ("begin_snapshot", BeginSnapshot(ID, 1, SNAPSHOT, shared=True, durable=False)),
    ("list_snapshots", ListSnapshots()),
    ("discard_snapshot", SnapshotOp(SNAPSHOT)),
    ("hold_memory", SnapshotOp(SNAPSHOT)),
    ("release_memory", SnapshotOp(SNAPSHOT)),
    *((op, SandboxOp(ID, 1)) for op in ("adopt_vmm", "kill_vmm", "destroy_sandbox", "usage")),
]


@pytest.mark.parametrize(("op", "record"), GOOD, ids=[op for op, _ in GOOD])
def test_operation_survives_the_wire(op: str, record: Operation) -> None:
    assert records.decode(records.encode(op, record)) == (op, record)


def test_every_operation_of_the_contract_is_known() -> None:
    assert {op for op, _ in GOOD} == set(records.OPERATIONS)
    for kind in records.OPERATIONS.values():
        assert {field.type for field in fields(kind)} <= {"int", "str", "bool"}  # what the decoder knows to check


def test_every_field_has_a_check_of_its_value() -> None:
    names = {field.name for kind in records.OPERATIONS.values() for field in fields(kind) if field.type != "bool"}
    assert names == {*records._RANGES, *records._CHECKS, *records._CHOICES}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": None}, "no such operation: None"),
        ({"op": ["create_sandbox"]}, "no such operation: "),
        ({"op": "Create_sandbox"}, "no such operation: 'Create_sandbox'"),
        ({"sandbox": "sb-../../../etc/passwd0"}, "not a sandbox id"),
        ({"sandbox": ID + "\n"}, "not a sandbox id"),
        ({"sandbox": 7}, "sandbox is of type str, not int"),
        ({"template": "../" + "a" * 16}, "not a digest"),
        ({"template": "A" * 16}, "not a digest"),
        ({"generation": 0}, "generation is 1 to 9223372036854775807, not 0"),
        ({"generation": 2**63}, "generation is 1 to 9223372036854775807, not 9223372036854775808"),
        ({"generation": 10**2000}, "generation is 1 to 9223372036854775807, not 100000000000000000000000"),
        ({"generation": 1.0}, "generation is of type int, not float"),
        ({"generation": "1"}, "generation is of type int, not str"),
        ({"generation": None}, "generation is of type int, not NoneType"),
        ({"slot": -1}, "slot is 0 to 1535, not -1"),
        ({"slot": True}, "slot is of type int, not bool"),
        ({"disk_mib": (1 << 20) + 1}, "disk_mib is 1 to 1048576, not 1048577"),
        ({"memory_mib": 31}, "memory_mib is 32 to 1048576, not 31"),
        ({"snapshot": "sn-../../../etc/passwd0"}, "not a snapshot id"),
        ({"snapshot": 7}, "snapshot is of type str, not int"),
        ({"cpus": 65}, "cpus is 1 to 64, not 65"),
        ({"argv": ["sh"]}, "create_sandbox has no field 'argv'"),
        ({"uid": 0}, "create_sandbox has no field 'uid'"),
    ],
)
def test_wrong_field_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        records.decode(json.dumps(CREATE | change).encode())
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"literal": 1}, "literal is of type bool, not int"),
        ({"literal": "true"}, "literal is of type bool, not str"),
        ({"synthetic": None}, "synthetic is of type str, not NoneType"),
        ({"synthetic": ""}, "Address cannot be empty"),
        ({"synthetic": "198.18.0.1/15"}, "has host bits set"),
        ({"synthetic": "198.18.0.0/255.254.0.0"}, "not an IPv4 network as address/prefix"),
        ({"synthetic": "198.18.0.0"}, "not an IPv4 network as address/prefix"),
        ({"synthetic": "0.0.0.0/0"}, "a prefix of 8 to 24 bits, not 0"),
        ({"synthetic": "10.0.0.0/8"}, "overlaps 10.0.0.0/30"),
        ({"synthetic": "127.0.0.0/8"}, "overlaps 127.0.0.0/8"),
        ({"synthetic": "240.0.0.0/8"}, "overlaps 224.0.0.0/3"),
        ({"synthetic": "198.18.0.0/15; flush ruleset"}, "not an IPv4 network as address/prefix"),
    ],
)
def test_edge_of_another_shape_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        records.decode(json.dumps({"op": "create_edge", "slot": 0, "synthetic": "198.18.0.0/15", "literal": False} | change).encode())
    assert words in caught.value.message


@pytest.mark.parametrize("name", [name for name in CREATE if name != "op"])
def test_missing_field_is_named(name: str) -> None:
    message = {key: value for key, value in CREATE.items() if key != name}
    with pytest.raises(InvalidArgument, match=f"create_sandbox needs the field '{name}'"):
        records.decode(json.dumps(message).encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"\xff",
        b"null",
        b"1",
        b'"describe"',
        b"[[",
        b'{"op":"describe"',
        b'{"op":"describe"} x',
        b"[" * 4096,
        b'{"a":' * 800,
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_object_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidArgument):
        records.decode(message)


def test_field_given_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a field is given twice"):
        records.decode(b'{"op":"create_slot","slot":1,"slot":2}')


def test_long_message_is_refused_unread() -> None:
    with pytest.raises(InvalidArgument, match="at most 65536 bytes"):
        records.decode(b'{"op":"describe"' + b" " * records.MESSAGE_LIMIT + b"}")


def test_refusal_is_a_code_and_a_bounded_sentence() -> None:
    refusal = json.loads(records.refusal(errors.Conflict("x" * 5000, hint="wait")))
    assert refusal == {"error": True, "code": "conflict", "message": "x" * 1000, "hint": "wait"}
    assert "hint" not in json.loads(records.refusal(errors.Internal("rootd failed")))


def test_privileged_process_stays_small_enough_to_be_read() -> None:
    """One sitting: at most 2,960 lines, 600 of them for snapshots, 300 for Firecracker's jailer; the standard library and this project."""
    sources = sorted(Path(records.__file__).parent.glob("*.py"))
    assert len(sources) > 5
    assert sum(len(path.read_text().splitlines()) for path in sources) <= 2960
    code = "import sys, space.rootd.server; print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {"space", "__main__", "sitecustomize"} | _finders(loaded)


def _finders(loaded: list[str]) -> set[str]:
    """What the installation of an editable tree puts into every interpreter."""
    return {name for name in loaded if name.startswith(("__editable__", "_virtualenv", "_distutils_hack"))}
