"""Presets: rules that policies take over by name, and what a guest must be told so that it asks where they allow.

A preset's file is a policy of rules alone with a `guest` table:

    version = 1

    [[rule]]
    name = "pip/1"
    host = "index.example.com"
    methods = ["GET", "HEAD"]
    paths = ["/simple/**"]

    [guest.files]
    "/etc/pip.conf" = "..."

    [guest.environment]
    NAME = "..."
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from space.core.policy.loader import Note, PolicyRefused, load
from space.core.policy.model import Rule

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_KEYS = frozenset({"version", "rule", "guest"})
_READING = frozenset({"GET", "HEAD"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_FILE = re.compile(r"/[\x21-\x7e]{1,254}\Z")
MOST_TEXT = 65_536


@dataclass(frozen=True, slots=True)
class Guest:
    """The guest's half. files: text by absolute path; environment: by name."""

    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset, and what whoever writes it should know."""

    name: str
    rules: tuple[Rule, ...]
    guest: Guest
    warnings: tuple[Note, ...] = ()


def load_preset(data: Mapping[str, Any], name: str, *, bundles: frozenset[str] = frozenset()) -> Preset:
    """The preset. PolicyRefused with every mistake. Rules without a name are called after the preset."""
    mistakes = [Note(key, "unknown", "a preset has version, rule and guest") for key in data if key not in _KEYS]
    if not NAME.match(name):
        mistakes.append(Note("name", f"{name!r} is no name for a preset", f"it looks like {NAME.pattern}"))
    guest = _guest(data.get("guest", {}), mistakes)
    try:
        loaded = load({key: data[key] for key in ("version", "rule") if key in data}, name=name, bundles=bundles)
    except PolicyRefused as refused:
        raise PolicyRefused([*mistakes, *refused.notes]) from None
    if mistakes:
        raise PolicyRefused(mistakes)
    rules = tuple(replace(rule, name=f"{name}.{rule.name}") if rule.name.startswith("rule[") else rule for rule in loaded.policy.rules)
    writing = [rule for rule in rules if rule.judged and (rule.methods is None or not rule.methods <= _READING)]
    warnings = [Note(rule.name, "a preset's rule that does more than read", 'narrow it: methods = ["GET", "HEAD"]') for rule in writing]
    return Preset(name, rules, guest, (*loaded.warnings, *warnings))


def _guest(value: Any, mistakes: list[Note]) -> Guest:
    if not isinstance(value, Mapping):
        mistakes.append(Note("guest", f"a table, not {type(value).__name__}"))
        return Guest()
    mistakes += [Note(f"guest.{key}", "unknown", "known: environment, files") for key in value if key not in ("files", "environment")]
    files = _texts(value.get("files", {}), "guest.files", _FILE, mistakes)
    return Guest(files, _texts(value.get("environment", {}), "guest.environment", _VARIABLE, mistakes))


def _texts(value: Any, path: str, shape: re.Pattern[str], mistakes: list[Note]) -> dict[str, str]:
    if not isinstance(value, Mapping):
        mistakes.append(Note(path, f"a table, not {type(value).__name__}"))
        return {}
    for key, text in value.items():
        if not isinstance(key, str) or not shape.match(key) or "/../" in f"{key}/":
            mistakes.append(Note(f"{path}.{key}", "no name for it", f"it looks like {shape.pattern}"))
        if not isinstance(text, str) or len(text) > MOST_TEXT or "\0" in text:
            mistakes.append(Note(f"{path}.{key}", f"text of at most {MOST_TEXT} characters"))
    return dict(value)
