"""The artefact store: what set-up built and every instance shares, read-only, each named by the digest of its inputs.

    <artefacts>/kernel/<digest>/     vmlinux, modules/*.ko, modules.order, manifest.json
    <artefacts>/initramfs/<digest>/  initrd.cpio, manifest.json
    <artefacts>/qemu/<digest>/       root/ (binary, libraries, firmware: the jail's root file system), manifest.json
    <artefacts>/template/<digest>/   disk.img, manifest.json (`config.manifest`)
    <artefacts>/root/<fingerprint>/  certificate.pem, key.pem (0400): the authority whose certificate lies in root disks that name it
    <artefacts>/names/<template>     a symbolic link to ../template/<digest>

A directory is staged under a random name and committed by rename, so one that has its final name is whole. Templates that users made lie
in their instance, `<instance>/templates/<digest>/` (`config.shelf`), and stand on the same kernels, initramfs and VMMs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from space.config.manifest import TemplateManifest, load, salvage
from space.model.errors import Conflict, NotFound
from space.model.ids import digest, template_name

__all__ = ["Store", "TemplateManifest"]
_SHIPPED = "template"
_MOST = 1 << 20
_ROOT_NAME = 32  # hex digits of a fingerprint that name its directory
CERTIFICATE, KEY = "certificate.pem", "key.pem"


@dataclass(frozen=True, slots=True)
class Store:
    """The artefact directory of a host. own: the instance's templates, if it is looked at for one."""

    root: Path
    own: Path | None = None

    def path(self, kind: str, artefact: str) -> Path:
        """Where an artefact lies (whether or not it is there)."""
        return self.root / kind / digest(artefact)

    def authority(self, fingerprint: str) -> Path:
        """Where the authority lies whose certificate has that SHA-256."""
        return self.path("root", fingerprint[:_ROOT_NAME])

    def template(self, name: str) -> TemplateManifest:
        """The manifest behind a shipped template's name; NotFound when there is none, Conflict when it cannot be used."""
        link = self.root / "names" / template_name(name)
        try:
            return _loaded(link.resolve(strict=True))
        except FileNotFoundError:
            raise NotFound(f"there is no template {name!r} on this machine", hint="`space setup` builds the base template") from None

    def template_by_digest(self, wanted: str) -> TemplateManifest:
        """The manifest of one build; NotFound when it is gone, Conflict when it cannot be used."""
        try:
            return _loaded(self.directory(wanted))
        except FileNotFoundError:
            raise NotFound(f"template {wanted} is not on this machine") from None

    def directory(self, wanted: str) -> Path:
        """Where a template lies: a shipped one, else one of the instance's (whether or not it is there)."""
        shipped = self.path(_SHIPPED, wanted)
        return shipped if self.own is None or shipped.exists() else self.own / digest(wanted)

    def templates(self) -> list[TemplateManifest]:
        """Every shipped template."""
        names = self.root / "names"
        return [self.template(entry.name) for entry in sorted(names.iterdir())] if names.is_dir() else []

    def own_templates(self) -> list[TemplateManifest]:
        """Every one of the instance's that can be used, steps of builds among them."""
        found = []
        for entry in sorted(self.own.iterdir()) if self.own is not None and self.own.is_dir() else ():
            if not entry.name.startswith("."):
                try:
                    found.append(_loaded(entry))
                except (Conflict, FileNotFoundError):  # refused by whoever names it, with the reason
                    continue
        return found

    def salvaged(self, wanted: str) -> TemplateManifest:
        """What can be read of one that cannot be used any more (`manifest.salvage`), or of one that can; NotFound, Conflict."""
        try:
            return self.template_by_digest(wanted)
        except Conflict:
            with (self.directory(wanted) / "manifest.json").open("rb") as file:
                return salvage(file.read(_MOST), wanted)

    def unusable_templates(self) -> list[tuple[TemplateManifest, Conflict]]:
        """Those of the instance that this version of space does not read, as far as they can be, and why."""
        found = []
        for entry in sorted(self.own.iterdir()) if self.own is not None and self.own.is_dir() else ():
            if not entry.name.startswith("."):
                try:
                    _loaded(entry)
                except FileNotFoundError:
                    continue
                except Conflict as error:
                    with suppress(Conflict, OSError):
                        found.append((self.salvaged(entry.name), error))
        return found

    def stands(self, manifest: TemplateManifest) -> None:
        """Conflict when what it boots with is not on this machine any more."""
        for kind, name in (("kernel", manifest.kernel), ("initramfs", manifest.initramfs), ("qemu", manifest.qemu)):
            if not self.path(kind, name).is_dir():
                raise Conflict(
                    f"template {manifest.digest} boots with {kind} {name}, which is not on this machine any more",
                    hint="`space template rebake` makes its disk boot with what is there",
                )


def _loaded(directory: Path) -> TemplateManifest:
    with (directory / "manifest.json").open("rb") as file:
        return _read(file.read(_MOST), directory.name)


# The same bytes say the same; each create looks, for what lies there may have gone.
_read = lru_cache(maxsize=64)(load)
