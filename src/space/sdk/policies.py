"""Policies as a caller writes them, as requests; and the server's answers about egress as values."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from space.model.egress import (
    Ask,
    EgressCounters,
    ExplainStep,
    Explanation,
    NamedPolicy,
    PolicyLayer,
    PolicyNote,
    PolicyStatus,
    SandboxPolicy,
)
from space.model.errors import InvalidArgument, NotFound, ProtocolError
from space.sdk.answers import record

# A table; TOML text; a file (TOML, or JSON by its name); or the name of a stored policy.
PolicySource = Mapping[str, Any] | str | os.PathLike[str]
MOST_BYTES = 8 << 20


def policy_request(policy: PolicySource) -> dict[str, Any] | str:
    """What the API takes: a table, or a name. InvalidArgument, or NotFound for a file that is not there.

    Text of more than a word is TOML; a word is a name.
    """
    if isinstance(policy, str):
        if not policy.strip():
            raise InvalidArgument("a policy is empty text", hint="None is no policy at all")
        return policy if not set("\n=") & set(policy) else _decoded(policy.encode(), "the policy", as_json=False)
    if isinstance(policy, Mapping):
        return dict(policy)
    if isinstance(policy, os.PathLike):
        return policy_file(Path(policy))
    raise InvalidArgument(f"a policy is a table, TOML text, a path or a name, not {type(policy).__name__}")


def policy_table(policy: PolicySource) -> dict[str, Any]:
    """As `policy_request`, where a name will not do."""
    found = policy_request(policy)
    if isinstance(found, str):
        raise InvalidArgument(f"{found!r} is no policy", hint="a table, TOML text such as 'version = 1', or a path (pathlib.Path)")
    return found


def policy_file(path: Path) -> dict[str, Any]:
    """A file's policy."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise InvalidArgument(f"cannot read {str(path)!r}: {error.strerror}") from None
    return _decoded(data, str(path), as_json=path.suffix == ".json")


def _decoded(data: bytes, name: str, *, as_json: bool) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise InvalidArgument(f"{name}: more than {MOST_BYTES} bytes")
    try:
        found = json.loads(data) if as_json else tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name}: {error}", hint="docs/policy.md has an example") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{name}: a policy is a table, not {type(found).__name__}")
    return found


def named_policy(answer: Any) -> NamedPolicy:
    """A stored policy."""
    found = record(NamedPolicy, answer)
    return NamedPolicy(**{**_fields(found), "warnings": _notes(answer)})


def layer(answer: Any) -> PolicyLayer:
    """A layer."""
    found = record(PolicyLayer, answer)
    return PolicyLayer(**{**_fields(found), "warnings": _notes(answer), "permits": tuple(found.permits)})


def sandbox_policy(answer: Any) -> SandboxPolicy:
    """A sandbox's policy."""
    found = record(SandboxPolicy, answer)
    return SandboxPolicy(record(PolicyStatus, found.status), found.policy, tuple(found.layers), _notes(answer))


def asks(answer: Any) -> list[Ask]:
    """Requests that wait."""
    try:
        return [record(Ask, one) for one in answer["asks"]]
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the server's answer is no list of asks: {error!r}", hint="is the server of another version?") from error


def explanation(answer: Any) -> Explanation:
    """What becomes of a URL."""
    found = record(Explanation, answer)
    return Explanation(found.outcome, found.rule, found.digest, found.generation, tuple(record(ExplainStep, one) for one in found.steps))


def counters(answer: Any) -> EgressCounters:
    """A sandbox's counters."""
    return record(EgressCounters, answer)


def _notes(answer: Any) -> tuple[PolicyNote, ...]:
    return tuple(record(PolicyNote, one) for one in answer.get("warnings") or ())


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
