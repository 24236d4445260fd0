"""Digests of inputs: an artefact is named by what it was made from, so that the same inputs are never worked on twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LENGTH = 32  # hex digits: 128 bits, and a path that can still be read


def of_value(value: Any) -> str:
    """The digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def of_file(path: Path) -> str:
    """The digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_LENGTH]


def of_tree(root: Path, files: Iterable[Path]) -> str:
    """The digest of files with their places below `root` and their execute bits; the order given does not matter."""
    rows = sorted((str(path.relative_to(root)), of_file(path), bool(path.stat().st_mode & 0o100)) for path in files)
    return of_value(rows)


def sources(root: Path, *, without: frozenset[str] = frozenset()) -> list[Path]:
    """Every file below `root` outside directories named in `without`, byte code and hidden files left out."""
    skipped = without | {"__pycache__"}
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part in skipped or part.startswith(".") for part in parts[:-1]) and not parts[-1].endswith(".pyc"):
            found.append(path)
    return found
