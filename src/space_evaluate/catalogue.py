"""Every technique, found by its file: `battery/<group>/<name>.py`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import space_evaluate.battery
from space_evaluate.technique import Goal, Policy, Technique


@dataclass(frozen=True, slots=True)
class Entry:
    """id: the file's name; group: its directory's. module: of it, by its name."""

    id: str
    group: str
    module: str
    technique: Technique
    outside: Any = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One technique, with one goal, under one policy, in one variant."""

    entry: Entry
    goal: Goal
    policy: Policy
    variant: str

    @property
    def name(self) -> str:
        """In a line."""
        return " ".join(filter(None, (self.entry.id, self.goal, self.policy, self.variant)))


@cache
def entries() -> tuple[Entry, ...]:
    """All, in the order of their groups and names. ValueError for a file that is no technique, or two of one name."""
    found = list(_found())
    names = [one.id for one in found]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two techniques are called {min(doubled)}")
    return tuple(found)


def _found() -> Iterator[Entry]:
    for group in sorted(pkgutil.iter_modules(space_evaluate.battery.__path__), key=lambda one: one.name):
        package = importlib.import_module(f"space_evaluate.battery.{group.name}")
        for one in sorted(pkgutil.iter_modules(package.__path__), key=lambda one: one.name):
            name = f"{package.__name__}.{one.name}"
            yield _entry(group.name, name, importlib.import_module(name))


def _entry(group: str, name: str, module: ModuleType) -> Entry:
    technique = getattr(module, "TECHNIQUE", None)
    if not isinstance(technique, Technique) or not callable(getattr(module, "attack", None)):
        raise ValueError(f"{name} has no TECHNIQUE and attack")  # noqa: TRY004 - of a file
    outside = getattr(module, "outside", None)
    if technique.around != (outside is not None):
        raise ValueError(f"{name}: around and outside come together")
    return Entry(name.rpartition(".")[2].replace("_", "-"), group.replace("_", "-"), name, technique, outside)


def attempts(chosen: tuple[Entry, ...], *, quick: bool = False, variants: int | None = None) -> list[Attempt]:
    """What a run tries: everything, or with quick the first of each technique of the quick set. variants: so many of each at most."""
    found = []
    for entry in chosen:
        told = entry.technique
        every = [
            Attempt(entry, goal, policy, variant)
            for policy in told.policies
            for goal in told.goals
            for variant in list(told.variants)[:variants]
        ]
        found += (every[:1] if told.quick else []) if quick else every
    return found


def files() -> dict[str, str]:
    """What a guest needs to run techniques: paths below a directory, and their text."""
    root = Path(space_evaluate.__file__).parent
    wanted = [
        *(root / name for name in ("__init__.py", "technique.py", "inside.py", "guestside.py")),
        *sorted((root / "battery").rglob("*.py")),
    ]
    return {str(path.relative_to(root.parent)): path.read_text() for path in wanted}
