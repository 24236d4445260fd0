"""A template's manifest: what boots its disk and how a sandbox of it begins. Pure: bytes in, a value out, or a refusal with the way out.

The machine's half (kernel, initramfs, VMM, sizes) is written by set-up and by rootd, from what root owns; the author's half (`AUTHORS`:
environment, user, start command...) is what a build says, and reaches nothing but the guest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from space.model.errors import Conflict
from space.model.ids import digest

VERSION = 2
MOST_SETTINGS = 60 << 10
_REBAKE = "`space template rebake` makes its disk into one that this version of space boots"


@dataclass(frozen=True, slots=True)
class TemplateManifest:
    """A template that boots. Digests name artefacts; disk_bytes is the size of disk.img as built.

    kind: `template`, or `step` for a disk that a build keeps. tenant: whose it is; empty for a shipped one. parent: the template that it
    stands on. user, cwd: of commands that name none; empty for the daemon's own. start: what runs from the beginning. ready: ends with 0
    once that serves, within ready_seconds. root: fingerprint of the certificate that its guests trust.
    """

    name: str
    digest: str
    kernel: str
    initramfs: str
    qemu: str
    disk_bytes: int
    protocol: int
    kernel_release: str
    source: str
    version: int = VERSION
    complete: bool = True
    root: str = ""
    parent: str = ""
    kind: str = "template"
    tenant: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    cwd: str = ""
    start: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    ready_seconds: int = 60
    hooks: tuple[str, ...] = ()
    created_us: int = 0

    def save(self, path: Path) -> None:
        """Write manifest.json."""
        path.write_text(self.text())

    def write(self, descriptor: int) -> None:
        """Write it to an open file."""
        with os.fdopen(os.dup(descriptor), "w") as file:
            file.write(self.text())

    def text(self) -> str:
        """As it stands in the file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def settings(self) -> str:
        """The author's half, as `settings` reads it."""
        return json.dumps({name: getattr(self, name) for name in AUTHORS}, sort_keys=True)


def _words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) and "\0" not in word for word in value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _environment(value: Any) -> bool:
    return isinstance(value, dict) and all(_text(name) and name and "=" not in name and _text(text) for name, text in value.items())


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


AUTHORS: Mapping[str, Callable[[Any], bool]] = {
    "name": _text,
    "source": _text,
    "kind": lambda value: value in ("template", "step"),
    "tenant": _text,
    "env": _environment,
    "user": _text,
    "cwd": _text,
    "start": _words,
    "ready": _words,
    "ready_seconds": _count,
    "hooks": _words,
    "created_us": _count,
}
_MACHINES: Mapping[str, Callable[[Any], bool]] = {
    "digest": _text,
    "kernel": _text,
    "initramfs": _text,
    "qemu": _text,
    "disk_bytes": _count,
    "protocol": _count,
    "kernel_release": _text,
    "version": _count,
    "complete": lambda value: isinstance(value, bool),
    "root": _text,
    "parent": _text,
}
_FIRST = frozenset(("name", "digest", "kernel", "initramfs", "qemu", "disk_bytes", "protocol", "kernel_release", "source"))


def settings(text: str) -> dict[str, Any]:
    """The author's half out of its JSON; ValueError names what is wrong. Every field is there, and no other."""
    if len(text) > MOST_SETTINGS:
        raise ValueError(f"the settings of a template have at most {MOST_SETTINGS} bytes")
    return _fields(text, AUTHORS)


def load(data: bytes, wanted: str) -> TemplateManifest:
    """The manifest of the directory that is named `wanted`; Conflict says why it is refused, and the way out."""
    try:
        raw = json.loads(data)
        # what set-up wrote before there were versions: a shipped template, whole
        first = isinstance(raw, dict) and raw.keys() == _FIRST
        version = 1 if first else raw.get("version") if isinstance(raw, dict) else None
        if version not in (1, VERSION):
            raise _refused(wanted, f"its manifest has version {str(version)[:20]}, and this version of space reads {VERSION}")
        known = {**AUTHORS, **_MACHINES}
        found = _fields(raw, {name: known[name] for name in _FIRST} if first else known)
        for name in ("digest", "kernel", "initramfs", "qemu"):
            digest(found[name])
    except (ValueError, RecursionError) as error:
        raise _refused(wanted, f"its manifest is none: {str(error)[:200]}") from None
    manifest = TemplateManifest(**found)
    if manifest.digest != wanted:
        raise _refused(wanted, f"its manifest is that of {manifest.digest}")
    if not manifest.complete:
        raise _refused(wanted, "it was never completed")
    return manifest


def salvage(data: bytes, wanted: str) -> TemplateManifest:
    """What can be read of a manifest of any version, for a rebake: whose it is, how its sandboxes begin, what they trust.

    What it boots with is empty. Conflict: it is none, it was never completed, or it is another's.
    """
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise Conflict(f"template {wanted[:64]} cannot be used: its manifest is none", hint="build it again")
    if raw.get("digest") != wanted or raw.get("complete", True) is not True:
        raise Conflict(f"template {wanted[:64]} cannot be used: its manifest is another's, or not complete", hint="build it again")
    fit = {name: raw[name] for name, fits in AUTHORS.items() if name in raw and fits(raw[name])}
    facts = {name: raw[name] for name in ("root", "disk_bytes", "kernel_release", "parent") if name in raw and _MACHINES[name](raw[name])}
    plain: dict[str, Any] = {"name": "", "source": "", "protocol": 0, "kernel_release": "", "disk_bytes": 0}
    read = {name: tuple(value) if isinstance(value, list) else value for name, value in fit.items()}
    return TemplateManifest(**{**plain, **facts, **read}, digest=wanted, kernel="", initramfs="", qemu="")


def _fields(source: str | Mapping[str, Any], wanted: Mapping[str, Callable[[Any], bool]]) -> dict[str, Any]:
    raw = json.loads(source) if isinstance(source, str) else source
    if not isinstance(raw, dict):
        raise ValueError("not an object")  # noqa: TRY004 (what is read is a value, whatever it is)
    if missing := wanted.keys() - raw.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    if unknown := raw.keys() - wanted.keys():
        raise ValueError(f"it has {str(min(unknown))[:60]!r}, which is not known")
    for name, fits in wanted.items():
        if not fits(raw[name]):
            raise ValueError(f"{name} is not right: {str(raw[name])[:60]!r}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


def _refused(name: str, why: str) -> Conflict:
    return Conflict(f"template {name[:64]} cannot be used: {why}", hint=_REBAKE)


assert {each.name for each in fields(TemplateManifest)} == AUTHORS.keys() | _MACHINES.keys()
