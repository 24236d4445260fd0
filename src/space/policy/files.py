"""Policy files: decoded strictly, with the presets of this machine."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from space.core.policy.loader import Loaded, Note, PolicyRefused, load
from space.core.policy.presets import Preset, load_preset
from space.host.files import need_replaceable
from space.model.errors import InvalidArgument

PRESETS = Path("/etc/space/presets")
MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Presets:
    """Those of a folder. broken: files that hold none, with their mistakes."""

    found: Mapping[str, Preset] = field(default_factory=dict)
    broken: Mapping[str, PolicyRefused] = field(default_factory=dict)


def decoded(path: Path) -> dict[str, Any]:
    """The data of a TOML file, or of a JSON file if its name ends so. PolicyRefused, with the line."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PolicyRefused([Note("file", f"cannot be read: {error.strerror}")]) from None
    if len(raw) > MOST_BYTES:
        raise PolicyRefused([Note("file", f"more than {MOST_BYTES} bytes")])
    try:
        text = raw.decode()
        data = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise PolicyRefused([Note("file", f"no {kind}: {error}")]) from None
    if not isinstance(data, dict):
        raise PolicyRefused([Note("file", f"a policy is an object, not {type(data).__name__}")])
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def presets(folder: Path = PRESETS, bundles: frozenset[str] = frozenset()) -> Presets:
    """Every `*.toml` of the folder; none where there is no folder."""
    found, broken = {}, {}
    for path in sorted(folder.glob("*.toml")):
        try:
            found[path.stem] = load_preset(decoded(path), path.stem, bundles=bundles)
        except PolicyRefused as refused:
            broken[path.stem] = refused
    return Presets(found, broken)


def read(path: Path, known: Presets, bundles: frozenset[str] = frozenset()) -> Loaded | Preset:
    """A policy, or a preset (a file with a `guest` table). PolicyRefused with every mistake, those of presets that it names included."""
    data = decoded(path)
    if "guest" in data:
        return load_preset(data, path.stem, bundles=bundles)
    rules = {name: preset.rules for name, preset in known.found.items()}
    try:
        return load(data, name=str(path), presets=rules, bundles=bundles)
    except PolicyRefused as refused:
        named = data.get("presets")
        broken = [name for name in known.broken if isinstance(named, list) and name in named]
        deeper = [Note(f"{name}.toml: {note.path}", note.message, note.hint) for name in broken for note in known.broken[name].notes]
        raise PolicyRefused([*refused.notes, *deeper]) from None


def write(folder: Path, name: str, text: str, *, replace: bool = False) -> bool:
    """Put a preset into the folder, whole or not at all; whether that changed anything. One of another text stays, unless `replace`."""
    path = folder / f"{name}.toml"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        need_replaceable(path)
        there = path.read_text() if path.exists() else None
        if there == text:
            return False
        if there is not None and not replace:
            raise InvalidArgument(f"{path} is there and says something else", hint="compare the two, then add --force")
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{name}.", delete=False) as file:
            try:
                os.fchmod(file.fileno(), 0o644)
                file.write(text)
                file.flush()
                need_replaceable(path)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None
    return True


def policy(path: Path, known: Presets, bundles: frozenset[str] = frozenset()) -> Loaded:
    """A policy to be used. InvalidArgument in place of its mistakes."""
    try:
        found = read(path, known, bundles)
    except PolicyRefused as refused:
        more = f" and {len(refused.notes) - 1} more mistakes" if len(refused.notes) > 1 else ""
        raise InvalidArgument(f"{path}: {refused.notes[0]}{more}", hint=f"space policy check {path}") from None
    if isinstance(found, Preset):
        raise InvalidArgument(f"{path} is a preset, not a policy", hint="a policy names it under presets")
    return found
