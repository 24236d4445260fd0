"""What of policies stands on the machine: presets, and the operator's bundles of certificates. Read when a policy that names them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from space.core.policy.document import MOST_BUNDLE_TEXT
from space.core.policy.loader import PolicyRefused
from space.core.policy.model import Rule
from space.core.policy.presets import NAME, load_preset
from space.policy.files import decoded

PRESETS = Path("/etc/space/presets")
BUNDLES = Path("/etc/space/ca")


@dataclass(frozen=True, slots=True)
class Shelf:
    """What is there at one moment. presets: as data; rules: of those that can be read."""

    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rules: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    bundles: Mapping[str, str] = field(default_factory=dict)


def stamp(presets: Path = PRESETS, bundles: Path = BUNDLES) -> tuple[Any, ...]:
    """Equal as long as nothing has changed there."""
    return tuple(_of(folder) for folder in (presets, bundles))


def _of(folder: Path) -> tuple[Any, ...]:
    try:
        found = sorted(folder.iterdir())
        return tuple((one.name, (held := one.stat()).st_mtime_ns, held.st_size, held.st_ino) for one in found)
    except OSError:
        return ()


def read(presets: Path = PRESETS, bundles: Path = BUNDLES) -> Shelf:
    """All of it. A file that is none of what belongs there is left out: a policy that names it is refused with the name."""
    certificates = {}
    for file in _files(bundles, ".pem"):
        try:
            text = file.read_text("ascii")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) <= MOST_BUNDLE_TEXT:
            certificates[file.stem] = text
    data, rules = {}, {}
    for file in _files(presets, ".toml"):
        try:
            content = decoded(file)
            rules[file.stem] = load_preset(content, file.stem, bundles=frozenset(certificates)).rules
        except PolicyRefused:
            continue
        data[file.stem] = content
    return Shelf(data, rules, certificates)


def _files(folder: Path, suffix: str) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.suffix == suffix and NAME.match(one.stem) and one.is_file())
    except OSError:
        return []
