"""The policy document: everything that decides what may leave one sandbox, as bytes that mean the same to everybody who holds them.

    {"version": 1,
     "layers": [{"level": "operator" | "tenant" | "sandbox", "policy": {...}}],    in this order, the sandbox's always there
     "presets": {name: {"version": 1, "rule": [...]}},                            those that the layers name
     "bundles": {name: PEM}}                                                      those that `ca` of a rule names

Control writes it, worker and dialer each load a copy of their own. The bytes are canonical, so a document has one digest, and everything
it needs stands in it: what it decides depends on no file of the machine. A sandbox without a policy has a layer that allows nothing,
so that no document is wider than nothing because a layer is not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, get_args

from space.core.policy.loader import PolicyRefused, load
from space.core.policy.model import Rule
from space.core.policy.presets import NAME, load_preset
from space.core.policy.verdict import Layer, Stack

Level = Literal["operator", "tenant", "sandbox"]
LEVELS: tuple[Level, ...] = get_args(Level)
VERSION = 1
MOST_BYTES = 8 << 20
MOST_BUNDLES = 64
MOST_BUNDLE_TEXT = 1 << 20
MOST_PRESETS = 256
NOTHING: Mapping[str, Any] = {"version": 1}
DIGEST = re.compile(r"[0-9a-f]{32}\Z")
_BUNDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}\Z")
_CERTIFICATES = re.compile(r"(?:\s*-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----)+\s*\Z", re.ASCII)


class DocumentRefused(ValueError):
    """Not a policy document; the message says what is wrong, without quoting more than a little of it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A loaded document. bundles: PEM by name, for the rules' `ca`."""

    digest: str
    stack: Stack
    bundles: Mapping[str, str]

    @property
    def open(self) -> bool:
        """Whether any public name may be reached: every layer is open, or the lowest only records what it does not allow."""
        *above, lowest = self.stack.layers
        return all(layer.policy.open for layer in above) and (lowest.policy.open or lowest.policy.mode == "record")

    @property
    def literals(self) -> bool:
        """Whether some address may be dialled that no name stands for: every layer is open or has blocks."""
        return all(layer.policy.open or layer.policy.blocks for layer in self.stack.layers)


def digest(data: bytes) -> str:
    """What a document is called by: 32 hex digits."""
    return sha256(data).hexdigest()[:32]


def canonical(policy: Mapping[str, Any]) -> bytes:
    """A policy as bytes, the same for the same policy. DocumentRefused for what is no JSON."""
    return _canonical(policy)


def compose(
    policies: Mapping[Level, Mapping[str, Any]],
    *,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    bundles: Mapping[str, str] | None = None,
) -> bytes:
    """The document of these layers, with what they name of presets and bundles. Without the sandbox's policy nothing is allowed.

    DocumentRefused where they make none, with the layer's name before its first mistake.
    """
    given = {level: policies.get(level, NOTHING) for level in LEVELS if level in policies or level == "sandbox"}
    named = {name for policy in given.values() for name in _names(policy, "presets")}
    used = {name: {key: value for key, value in data.items() if key != "guest"} for name, data in (presets or {}).items() if name in named}
    sources = [*given.values(), *used.values()]
    wanted = {row["ca"] for source in sources for row in _rows(source) if isinstance(row.get("ca"), str)}
    kept = {name: text for name, text in (bundles or {}).items() if name in wanted}
    layers = [{"level": level, "policy": policy} for level, policy in given.items()]
    data = _canonical({"version": VERSION, "layers": layers, "presets": used, "bundles": kept})
    read(data)
    return data


def read(data: bytes) -> Document:
    """The document. DocumentRefused for anything but what `compose` gives: another spelling of the same is another document."""
    if len(data) > MOST_BYTES:
        raise DocumentRefused(f"a policy document of {len(data)} bytes, at most {MOST_BYTES} are possible")
    try:
        content = json.loads(data)
        same = _canonical(content) == data
    except (ValueError, RecursionError) as error:
        raise DocumentRefused(f"no policy document: {str(error)[:200]}") from None
    if not same:
        raise DocumentRefused("a policy document that is not in its canonical form")
    keys = {"version", "layers", "presets", "bundles"}
    if not isinstance(content, dict) or content.keys() != keys or type(content["version"]) is not int or content["version"] != VERSION:
        raise DocumentRefused(f"a policy document has version {VERSION}, layers, presets and bundles")
    bundles = _bundles(content["bundles"])
    presets = _presets(content["presets"], frozenset(bundles))
    layers = _layers(content["layers"], presets, frozenset(bundles))
    _all_used(content, presets, layers)
    return Document(digest(data), Stack(layers), bundles)


def _canonical(content: Any) -> bytes:
    try:
        return json.dumps(content, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentRefused(f"a policy that is no JSON: {str(error)[:200]}") from None


def _bundles(given: Any) -> Mapping[str, str]:
    if not isinstance(given, dict) or len(given) > MOST_BUNDLES:
        raise DocumentRefused(f"bundles are a table of at most {MOST_BUNDLES}")
    for name, text in given.items():
        if not _BUNDLE.match(name) or not isinstance(text, str) or len(text) > MOST_BUNDLE_TEXT or not _CERTIFICATES.match(text):
            raise DocumentRefused(f"bundle {name[:64]!r} is not certificates in PEM")
    return given


def _presets(given: Any, bundles: frozenset[str]) -> dict[str, tuple[Rule, ...]]:
    if not isinstance(given, dict) or len(given) > MOST_PRESETS:
        raise DocumentRefused(f"presets are a table of at most {MOST_PRESETS}")
    found = {}
    for name, data in given.items():
        if not NAME.match(name) or not isinstance(data, dict) or data.keys() - {"version", "rule"}:
            raise DocumentRefused(f"preset {name[:64]!r} is not version and rules")
        try:
            found[name] = load_preset(data, name, bundles=bundles).rules
        except PolicyRefused as refused:
            raise DocumentRefused(_first(f"preset {name!r}", refused)) from None
    return found


def _layers(given: Any, presets: Mapping[str, tuple[Rule, ...]], bundles: frozenset[str]) -> list[Layer]:
    shaped = isinstance(given, list) and all(
        isinstance(one, dict) and one.keys() == {"level", "policy"} and isinstance(one["policy"], dict) for one in given
    )
    levels = [one["level"] for one in given] if shaped else []
    if not levels or levels != [level for level in LEVELS if level in levels] or levels[-1] != "sandbox":
        raise DocumentRefused("layers are the operator's, the tenant's and the sandbox's, in this order, and the sandbox's is always there")
    found = []
    for one in given:
        try:
            found.append(Layer(load(one["policy"], name=one["level"], presets=presets, bundles=bundles).policy))
        except PolicyRefused as refused:
            raise DocumentRefused(_first(f"the {one['level']}'s policy", refused)) from None
    return found


def _all_used(content: Mapping[str, Any], presets: Mapping[str, object], layers: list[Layer]) -> None:
    """Nothing stands in a document that decides nothing: the same decisions have the same digest."""
    named = {name for one in content["layers"] for name in _names(one["policy"], "presets")}
    if presets.keys() - named:
        raise DocumentRefused("a preset stands in the document that no layer names")
    if content["bundles"].keys() - {rule.ca for layer in layers for rule in layer.policy.rules}:
        raise DocumentRefused("a bundle stands in the document that no rule names")


def _names(policy: Mapping[str, Any], key: str) -> list[str]:
    value = policy.get(key)
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _rows(policy: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    value = policy.get("rule")
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _first(where: str, refused: PolicyRefused) -> str:
    first, more = refused.notes[0], len(refused.notes) - 1
    return f"{where}: {str(first)[:300]}" + (f", and {more} more" if more else "")
