"""The artefact store: what set-up built and every instance shares, read-only, each named by the digest of its inputs.

    <artefacts>/kernel/<digest>/     vmlinux, modules/*.ko, modules.order, manifest.json
    <artefacts>/initramfs/<digest>/  initrd.cpio, manifest.json
    <artefacts>/qemu/<digest>/       root/ (binary, libraries, firmware: the jail's root file system), manifest.json
    <artefacts>/template/<digest>/   disk.img, manifest.json (a `TemplateManifest`)
    <artefacts>/names/<template>     a symbolic link to ../template/<digest>

A directory is staged under a random name and committed by rename, so one that has its final name is whole.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from space.model.errors import NotFound
from space.model.ids import digest, template_name


@dataclass(frozen=True, slots=True)
class TemplateManifest:
    """A template that boots. Digests name artefacts; disk_bytes is the size of disk.img as built."""

    name: str
    digest: str
    kernel: str
    initramfs: str
    qemu: str
    disk_bytes: int
    protocol: int
    kernel_release: str
    source: str

    def save(self, path: Path) -> None:
        """Write manifest.json."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True)
class Store:
    """The artefact directory of a host."""

    root: Path

    def path(self, kind: str, artefact: str) -> Path:
        """Where an artefact lies (whether or not it is there)."""
        return self.root / kind / digest(artefact)

    def template(self, name: str) -> TemplateManifest:
        """The manifest behind a template's name; NotFound when there is none."""
        link = self.root / "names" / template_name(name)
        try:
            raw = json.loads((link.resolve(strict=True) / "manifest.json").read_text())
        except FileNotFoundError:
            raise NotFound(f"there is no template {name!r} on this machine", hint="`space setup` builds the base template") from None
        return TemplateManifest(**raw)

    def template_by_digest(self, wanted: str) -> TemplateManifest:
        """The manifest of one build; NotFound when it is gone."""
        try:
            raw = json.loads((self.path("template", wanted) / "manifest.json").read_text())
        except FileNotFoundError:
            raise NotFound(f"template {wanted} is not on this machine") from None
        return TemplateManifest(**raw)

    def templates(self) -> list[TemplateManifest]:
        """Every named template."""
        names = self.root / "names"
        return [self.template(entry.name) for entry in sorted(names.iterdir())] if names.is_dir() else []
