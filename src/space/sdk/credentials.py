"""Secrets and grants as a caller writes them, as requests; and the server's answers about them as values."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from space.model.credentials import GrantInfo, SecretInfo, SecretKind
from space.model.errors import InvalidArgument, NotFound, ProtocolError
from space.model.secret import Secret
from space.sdk.answers import record

SecretText = Secret | str | bytes
# The value of a static secret, or the secret parts of another kind by name.
SecretSource = SecretText | Mapping[str, SecretText]
# A table; TOML text; or a file (TOML, or JSON by its name).
GrantSource = Mapping[str, Any] | str | os.PathLike[str]
MOST_GRANT = 16_384


def secret_body(
    value: SecretSource,
    kind: SecretKind,
    public: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
    description: str,
    expires: str | None,
) -> bytes:
    """A request's body. InvalidArgument, which says nothing of the value."""
    whole: dict[str, Any] = {"kind": kind, "public": dict(public or {}), "labels": dict(labels or {})}
    whole |= {"description": description} | ({"expires": expires} if expires else {})
    if isinstance(value, Mapping):
        whole["value"] = {name: _text(part) for name, part in value.items()}
    else:
        whole["value"] = _text(value)
    return json.dumps(whole).encode()


def _text(value: Any) -> str:
    if isinstance(value, Secret):
        value = value.reveal()
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise InvalidArgument("a secret's value is no UTF-8", hint="encode it as its user expects, such as base64") from None
    if not isinstance(value, str):
        raise InvalidArgument(f"a secret's value is a Secret, text or bytes, not {type(value).__name__}")
    return value


def grant_table(grant: GrantSource) -> dict[str, Any]:
    """A grant as the API takes it. InvalidArgument, or NotFound for a file that is not there."""
    if isinstance(grant, Mapping):
        return dict(grant)
    if isinstance(grant, str):
        return _decoded(grant.encode(), "the grant", as_json=False)
    if isinstance(grant, os.PathLike):
        return grant_file(Path(grant))
    raise InvalidArgument(f"a grant is a table, TOML text or a path, not {type(grant).__name__}")


def grant_file(path: Path) -> dict[str, Any]:
    """A file's grant."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_GRANT + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise InvalidArgument(f"cannot read {str(path)!r}: {error.strerror}") from None
    return _decoded(data, str(path), as_json=path.suffix == ".json")


def _decoded(data: bytes, name: str, *, as_json: bool) -> dict[str, Any]:
    if len(data) > MOST_GRANT:
        raise InvalidArgument(f"{name}: more than {MOST_GRANT} bytes")
    try:
        found = json.loads(data) if as_json else tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name}: {error}", hint="docs/howto/credentials.md has an example") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{name}: a grant is a table, not {type(found).__name__}")
    return found


def secret_info(answer: Any) -> SecretInfo:
    """A secret, without its value."""
    return record(SecretInfo, answer)


def grant_info(answer: Any) -> GrantInfo:
    """A grant."""
    return record(GrantInfo, answer)


def page(answer: Any, what: str) -> tuple[list[Any], str | None]:
    """Items of a page, and the next cursor."""
    found = answer.get(what) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise ProtocolError(f"the server's answer holds no list of {what}", hint="is the server of another version?")
    return found, answer.get("next_cursor")
