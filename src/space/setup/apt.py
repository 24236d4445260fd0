"""What this machine's apt knows: where Debian's own packages come from, how to get there, and one package by name and version.

apt is asked rather than its files read, so sources in either format, mirrors, proxies and CA settings all count.
"""

from __future__ import annotations

import os
import pwd
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from space.setup import command
from space.setup.faults import SetupFailed

SUITE = "bookworm"
_SUITES = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
_FIELDS = ("REPO_URI", "RELEASE", "CODENAME", "COMPONENT", "ORIGIN", "TRUSTED", "BASE_URI", "SOURCESENTRY")
_UPDATE = "run `apt-get update`, and see that the machine's apt sources name a Debian 12 mirror"
_SIGNED_BY = re.compile(r"signed-by\s*[:=]\s*(/[^\s\],]+)", re.IGNORECASE)
# Neither a weaker check of signatures nor a machine's own idea of index files belongs in the base template's making.
_NOT_PASSED = re.compile(
    r"Acquire::(AllowInsecure|AllowWeak|AllowDowngrade|IndexTargets|CompressionTypes|Changelogs|GzipIndexes|cdrom)", re.IGNORECASE
)

_updating = threading.Lock()
_updated = False


@dataclass(frozen=True, slots=True)
class Source:
    """One suite on one mirror, as this machine's apt has it."""

    uri: str
    suite: str
    keyring: str | None
    release: str

    @property
    def line(self) -> str:
        """The entry in the one-line format."""
        option = f"[signed-by={self.keyring}] " if self.keyring else ""
        return f"deb {option}{self.uri} {self.suite} main"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that apt can download."""

    name: str
    version: str
    sha256: str
    depends: str


def update() -> None:
    """Fetch the indexes again, once in a set-up whoever asks for it."""
    global _updated
    with _updating:
        if not _updated:
            command.run(
                ["apt-get", "update", "-qq"], what="update the package lists", hint="see the mirror and the proxy of the machine's apt"
            )
            _updated = True


def debian_sources() -> list[Source]:
    """The signed Debian 12 suites that this machine's apt uses, base suite first; SetupFailed when the base suite is missing.

    Who signed what is in the indexes only: they are fetched first where somebody removed them.
    """
    if not (found := _listed()):
        update()
        found = _listed()
    if not any(source.suite == SUITE for source in found):
        raise SetupFailed(f"apt knows no signed source of Debian's suite {SUITE}", hint=_UPDATE)
    return sorted(found, key=lambda source: _SUITES.index(source.suite))


def _listed() -> list[Source]:
    form = "\t".join(f"$({field})" for field in _FIELDS)
    out = command.run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"], what="ask apt for its sources", hint=_UPDATE)
    return parse_sources(out.decode())


def parse_sources(text: str) -> list[Source]:
    """Sources out of `apt-get indextargets` in the order given; only signed ones of Debian 12's main component."""
    found: dict[tuple[str, str], Source] = {}
    for line in text.splitlines():
        row = dict(zip(_FIELDS, line.split("\t"), strict=True))
        if row["ORIGIN"] == "Debian" and row["CODENAME"] in _SUITES and row["COMPONENT"] == "main" and row["TRUSTED"] == "yes":
            keyring = _keyring(Path(row["SOURCESENTRY"].rpartition(":")[0]))
            found.setdefault((row["REPO_URI"], row["CODENAME"]), Source(row["REPO_URI"], row["CODENAME"], keyring, row["BASE_URI"]))
    return list(found.values())


def release_digests() -> dict[str, str]:
    """Suite to digest of the package lists as last fetched: what would be installed now."""
    out = command.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME)\t$(ORIGIN)\t$(COMPONENT)\t$(FILENAME)", "Created-By: Packages"], what="ask apt"
    )
    found = {}
    for line in out.decode().splitlines():
        codename, origin, component, name = line.split("\t")
        if origin == "Debian" and component == "main" and codename in _SUITES and Path(name).is_file():
            facts = Path(name).stat()
            found[codename] = f"{facts.st_size}-{int(facts.st_mtime)}"
    return found


def acquire_options() -> list[str]:
    """The machine's ways to reach its mirrors (proxies, certificates, time-outs) as apt options."""
    return passed_on(command.run(["apt-config", "dump", "Acquire"], what="ask apt for its configuration").decode())


def passed_on(dump: str) -> list[str]:
    """Those lines of `apt-config dump` that say how to reach a mirror."""
    lines = [line.removesuffix(";") for line in dump.splitlines()]
    return [line for line in lines if line.startswith("Acquire::") and not line.endswith(' ""') and not _NOT_PASSED.match(line)]


def show(name: str) -> Package:
    """The candidate of a package; the indexes are fetched first where they are missing."""
    for attempt in (update, None):
        try:
            text = command.run(["apt-cache", "show", "--no-all-versions", name], what=f"find the package {name}", hint=_UPDATE).decode()
        except SetupFailed:
            if attempt is None:
                raise
            attempt()
            continue
        fields = dict(line.split(": ", 1) for line in text.split("\n\n", 1)[0].splitlines() if ": " in line and not line.startswith(" "))
        return Package(fields["Package"], fields["Version"], fields.get("SHA256", ""), fields.get("Depends", ""))
    raise AssertionError("unreachable")


def download(package: Package, directory: Path) -> Path:
    """Fetch a package into `directory`, which is given to apt's own unprivileged user so that its sandbox works; the path of the file."""
    user = unprivileged()
    directory.mkdir(mode=0o755)
    os.chown(directory, user, user)
    command.run(
        ["apt-get", "download", "-qq", f"{package.name}={package.version}"], what=f"download {package.name}", cwd=directory, hint=_UPDATE
    )
    [file] = directory.glob("*.deb")
    return file


def unprivileged() -> int:
    """The uid that apt downloads as; nobody's where the machine has none."""
    for name in ("_apt", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return 65534


def _keyring(source_file: Path) -> str | None:
    """The one keyring that a sources file names, if it names exactly one that is a path."""
    try:
        named = set(_SIGNED_BY.findall(source_file.read_text(errors="replace")))
    except OSError:
        return None
    return named.pop() if len(named) == 1 else None
