"""The boundary: bytes from the node in, typed operations out; answers in, bytes out. Pure.

Everything that the node may say is in `OPERATIONS`; a message that is not exactly one of these is answered with
`invalid_argument` and nothing is done. Values are checked here once, so that what acts behind it need not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from space.config import manifest
from space.config.instance import SLOTS
from space.core.plan.edge import parse_range
from space.model import ids
from space.model.errors import InvalidArgument, SpaceError
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

MESSAGE_LIMIT = 64 << 10  # a template's settings; every other operation has at most about 300 bytes

OPERATIONS: dict[str, type[Operation]] = {
    "describe": Describe,
    "create_slot": SlotOp,
    "create_edge": EdgeOp,
    "destroy_slot": SlotOp,
    "slot_counters": SlotOp,
    "worker_cgroup": SlotOp,
    "provide_root": TemplateOp,
    "create_sandbox": CreateSandbox,
    "renew_sandbox": RenewSandbox,
    "start_vmm": StartVmm,
    "adopt_vmm": SandboxOp,
    "kill_vmm": SandboxOp,
    "destroy_sandbox": SandboxOp,
    "usage": SandboxOp,
    "keep_template": KeepTemplate,
    "rebase_template": RebaseTemplate,
    "stage_template": StageTemplate,
    "seal_template": SealTemplate,
    "open_template": OpenTemplate,
    "drop_template": DropTemplate,
    "begin_snapshot": BeginSnapshot,
    "list_snapshots": ListSnapshots,
    "discard_snapshot": SnapshotOp,
    "open_snapshot": SnapshotOp,
    "stage_snapshot": StageSnapshot,
    "seal_snapshot": SealSnapshot,
    "hold_memory": SnapshotOp,
    "release_memory": SnapshotOp,
}

# Inclusive, by field. disk_mib ends at 1 TiB.
_RANGES: dict[str, tuple[int, int]] = {
    "slot": (0, SLOTS - 1),
    "generation": (1, 2**63 - 1),
    "following": (1, 2**63 - 1),
    "disk_mib": (1, 1 << 20),
    "memory_mib": (32, 1 << 20),
    "cpus": (1, 64),
    "state_bytes": (1, 1 << 20),
}
_CHECKS: dict[str, Callable[[str], object]] = {
    "sandbox": ids.sandbox_id,
    "template": ids.digest,
    "synthetic": parse_range,
    "snapshot": ids.snapshot_id,
    "digest": ids.digest,
    "onto": ids.digest,
    "settings": manifest.settings,
    "facts": lambda text: json.loads(text).keys(),
}
_MAY_BE_EMPTY = {("create_sandbox", "snapshot")}
_KINDS: dict[Any, type[int] | type[str]] = {"int": int, "str": str, "bool": bool}
_CHOICES = {"accelerator": ("tcg", "kvm", "firecracker")}


def decode(message: bytes) -> tuple[str, Operation]:
    """The operation of a message, with its name; InvalidArgument for anything else."""
    if len(message) > MESSAGE_LIMIT:
        raise InvalidArgument(f"a message has at most {MESSAGE_LIMIT} bytes")
    try:
        raw = json.loads(message, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a JSON object: {str(error)[:80]!r}") from None
    if not isinstance(raw, dict):
        raise InvalidArgument(f"not a JSON object but a {type(raw).__name__}")
    op = raw.pop("op", None)
    if not isinstance(op, str) or op not in OPERATIONS:
        raise InvalidArgument(f"no such operation: {op!r:.60}", hint="known: " + ", ".join(OPERATIONS))
    return op, _record(op, raw)


def encode(op: str, record: Operation) -> bytes:
    """The message of an operation, as a client sends it."""
    return json.dumps({"op": op, **{field.name: getattr(record, field.name) for field in fields(record)}}).encode()


def answer(values: dict[str, Any]) -> bytes:
    """The answer of an operation that was done."""
    return json.dumps({"ok": True, **values}).encode()


def refusal(error: SpaceError) -> bytes:
    """The answer of one that was not: never more than a code and a sentence with its remedy."""
    body = {"error": True, "code": error.code, "message": error.message[:1000]}
    return json.dumps(body | ({"hint": error.hint[:500]} if error.hint else {})).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is given twice")
    return found


def _record(op: str, raw: dict[str, Any]) -> Operation:
    kind = OPERATIONS[op]
    wanted = {field.name: field.type for field in fields(kind)}
    for name in raw:
        if name not in wanted:
            raise InvalidArgument(f"{op} has no field {name!r:.60}")
    for name, annotation in wanted.items():
        if name not in raw:
            raise InvalidArgument(f"{op} needs the field {name!r}")
        if raw[name] != "" or (op, name) not in _MAY_BE_EMPTY:
            _check(name, raw[name], _KINDS[annotation])
    return kind(**raw)


def _check(name: str, value: Any, kind: type[int] | type[str]) -> None:
    if type(value) is not kind:  # a bool is no int here
        raise InvalidArgument(f"{name} is of type {kind.__name__}, not {type(value).__name__}")
    if isinstance(value, int) and name in _RANGES and not _RANGES[name][0] <= value <= _RANGES[name][1]:
        raise InvalidArgument(f"{name} is {_RANGES[name][0]} to {_RANGES[name][1]}, not {str(value)[:24]}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InvalidArgument(f"{name} is one of {', '.join(_CHOICES[name])}, not {value!r:.40}")
    if isinstance(value, str) and name in _CHECKS:
        try:
            _CHECKS[name](value)
        except (ValueError, AttributeError, RecursionError) as error:
            raise InvalidArgument(str(error)[:200]) from None
