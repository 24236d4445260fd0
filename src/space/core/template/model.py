"""What a recipe says, as frozen values. `recipe` reads them, `plan` turns them into steps with digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["deb", "wheel", "npm", "file"]


@dataclass(frozen=True, slots=True)
class FromTemplate:
    """Stands on another template: `name` or `name:tag`."""

    reference: str


@dataclass(frozen=True, slots=True)
class FromDebian:
    """Stands on Debian by package list: these, beside what every machine for agents has. In order, each once."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FromOci:
    """Stands on an image: an archive or a layout directory below the recipe's directory. image: which of several, by its reference name."""

    path: str
    image: str = ""


Base = FromTemplate | FromDebian | FromOci


@dataclass(frozen=True, slots=True)
class Run:
    """A command in the builder. cwd, user: None for the guest's root directory and root. egress: the policy under which it reaches
    anything outside, as JSON (a stored one's name, or a policy); empty for nothing.
    """

    argv: tuple[str, ...]
    user: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: int = 1800
    egress: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A file or a tree that comes with the recipe, to an absolute path. source: below its directory. owner: a user of the guest."""

    source: str
    to: str
    owner: str = "root"


@dataclass(frozen=True, slots=True)
class Write:
    """A file by its text. mode: permission bits."""

    to: str
    text: str
    mode: int = 0o644
    owner: str = "root"


Step = Run | Copy | Write


@dataclass(frozen=True, slots=True)
class Download:
    """Something fetched before the build, as a file. what: a package with its version, or a URL. sha256, name: of the file."""

    kind: Kind
    what: str
    sha256: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """When a started template is ready: this command ends with 0, tried each second for so long."""

    argv: tuple[str, ...]
    timeout_seconds: int = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """How a sandbox of the template begins: None and empty inherit the base's. start: a command in the background from then on."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    cwd: str | None = None
    start: tuple[str, ...] | None = None
    ready: Ready | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A template, as its author wrote it. disk_mib: None for the base's. hooks: files of /etc/space/restore.d by name."""

    base: Base
    steps: tuple[Step, ...] = ()
    downloads: tuple[Download, ...] = ()
    settings: Settings = Settings()
    hooks: Mapping[str, str] = field(default_factory=dict)
    disk_mib: int | None = None
    memory_mib: int = 1024
    name: str = ""
