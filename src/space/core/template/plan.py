"""A recipe as a chain of steps, each named by the digest of everything that went into the disk up to it.

    base -> [oci] -> step 1 -> ... -> step n -> hooks

A step's digest is made of its predecessor's and of what it says and brings, so an equal digest is an equal history: the disk that an
earlier build kept under it is taken instead of doing it again. What only says how a sandbox begins (user, directory, start command)
changes the template's digest, never a step's; the environment is every step's too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from space.core.template.model import Copy, FromOci, Recipe, Run, Step, Write

_LENGTH = 32
_BUILDER = 1
HOOKS = "/etc/space/restore.d"


@dataclass(frozen=True, slots=True)
class Unpack:
    """The image's layers, unpacked over an empty disk in the builder."""

    source: str
    image: str


Action = Step | Unpack


@dataclass(frozen=True, slots=True)
class Layer:
    """One step. digest: of the disk after it. title: for the log."""

    digest: str
    action: Action
    title: str


class InputMissing(ValueError):
    """A recipe names something that did not come with it."""


def wants(recipe: Recipe) -> tuple[str, ...]:
    """What has to come with the recipe from beside it: paths below its directory, each once, in order."""
    found = [recipe.base.path] if isinstance(recipe.base, FromOci) else []
    found += [step.source for step in recipe.steps if isinstance(step, Copy)]
    return tuple(dict.fromkeys(found))


def egresses(recipe: Recipe) -> tuple[str, ...]:
    """Policies under which its steps reach anything outside, each once."""
    return tuple(dict.fromkeys(step.egress for step in recipe.steps if isinstance(step, Run) and step.egress))


def layers(
    recipe: Recipe,
    base: str,
    inputs: Mapping[str, str],
    downloads: str = "",
    *,
    salt: str = "",
    policies: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Layer, ...]:
    """The steps after the base.

    base: digest of the disk that it stands on. inputs: digest of what came, by its path (`wants`). downloads: digest of all that was
    fetched, empty for nothing. salt: whose cache it is: steps of two tenants never have one name. policies: digest of the document
    that each of `egresses` makes: a step under another one is another step.
    """
    found: list[Layer] = []
    at = _digest(["base", _BUILDER, salt, base, recipe.disk_mib, downloads])
    for action in _actions(recipe):
        said = {name: value for name, value in asdict(action).items() if name != "egress" or value}
        at = _digest([at, type(action).__name__, said, dict(sorted(recipe.settings.env.items())), _brought(action, inputs, policies)])
        found.append(Layer(at, action, title(action)))
    return tuple(found)


def template_digest(last: str, facts: Mapping[str, Any]) -> str:
    """The name of the template: of its disk (`last`: the last step's digest, or the base's) and how it boots and begins."""
    return _digest(["template", _BUILDER, last, dict(facts)])


def debian_name(packages: Sequence[str]) -> str:
    """The shipped name of the template with these packages beside those of every machine for agents."""
    return f"debian-{template_digest('debian', {'packages': sorted(packages)})[:16]}"


def title(action: Action) -> str:
    """One line about a step."""
    match action:
        case Run(argv=("/bin/sh", "-ec", text)):
            return f"run {' '.join(text.split())[:100]}"
        case Run(argv=argv):
            return f"run {' '.join(argv)[:100]}"
        case Copy(source=source, to=to):
            return f"copy {source} to {to}"
        case Write(to=to):
            return f"write {to}"
        case Unpack(source=source):
            return f"unpack image {source}"


def _actions(recipe: Recipe) -> list[Action]:
    first: list[Action] = [Unpack(recipe.base.path, recipe.base.image)] if isinstance(recipe.base, FromOci) else []
    hooks = [Write(f"{HOOKS}/{name}", text, 0o755) for name, text in sorted(recipe.hooks.items())]
    return [*first, *recipe.steps, *hooks]


def _brought(action: Action, inputs: Mapping[str, str], policies: Mapping[str, str]) -> str:
    if isinstance(action, Run) and action.egress:
        if action.egress not in policies:
            raise InputMissing(f"the policy {action.egress[:80]} did not come with the recipe")
        return policies[action.egress]
    if not isinstance(action, Copy | Unpack):
        return ""
    if action.source not in inputs:
        raise InputMissing(f"{action.source!r} did not come with the recipe")
    return inputs[action.source]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_LENGTH]
