"""A recipe from its text: strict, with the path of every mistake and a hint; unknown keys are refused.

version = 1
name = "numbers"

[base]
template = "base"                                   # or debian = ["python3-numpy"], or oci = "image.tar"

[[download]]
wheel = "attrs==25.3.0"                             # or deb = "...", npm = "name@1.2.3", file = "https://..." with sha256

[[step]]
run = "pip install --no-index --find-links $SPACE_DOWNLOADS/wheel attrs"

[[step]]
copy = "app"                                        # below the recipe's directory
to = "/opt/app"
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from space.core.template.model import (
    Base,
    Copy,
    Download,
    FromDebian,
    FromOci,
    FromTemplate,
    Kind,
    Ready,
    Recipe,
    Run,
    Settings,
    Step,
    Write,
)

T = TypeVar("T")

VERSION = 1
MOST_BYTES = 256 << 10
MOST_STEPS = 200
MOST_DOWNLOADS = 500
MOST_WORDS = 200
MOST_TEXT = 64 << 10
LEAST_DISK_MIB, MOST_DISK_MIB = 256, 1 << 18
LEAST_MEMORY_MIB, MOST_MEMORY_MIB = 256, 1 << 16
MOST_SECONDS = 6 * 3600

_TOP = ("version", "name", "base", "download", "step", "env", "user", "cwd", "start", "ready", "hooks", "disk_mib", "memory_mib")
_KINDS: tuple[Kind, ...] = ("deb", "wheel", "npm", "file")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
TAG = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"
_TAG = re.compile(TAG)
_DEB = re.compile(r"[a-z0-9][a-z0-9+.-]{0,127}(=[A-Za-z0-9][A-Za-z0-9.+:~-]{0,127})?\Z")
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}==[A-Za-z0-9][A-Za-z0-9.!+_-]{0,127}\Z")
_NPM = re.compile(r"(@[a-z0-9][a-z0-9._-]{0,127}/)?[a-z0-9][a-z0-9._-]{0,127}@[0-9][A-Za-z0-9.+-]{0,127}\Z")
_URL = re.compile(r"https://[!-~]{1,2000}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_POLICY = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z|[0-9]{1,10}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_SHAPES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "deb": (_DEB, "a package's name, with =version if wanted"),
    "wheel": (_WHEEL, "name==version"),
    "npm": (_NPM, "name@version"),
    "file": (_URL, "an https:// address"),
}


@dataclass(frozen=True, slots=True)
class Note:
    """A mistake. path: where, such as `step[3].run`. hint: what to do, or empty."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class RecipeRefused(ValueError):
    """A recipe with mistakes: all of them, in the order of the file."""

    def __init__(self, notes: Sequence[Note]) -> None:
        super().__init__("; ".join(map(str, notes)))
        self.notes = tuple(notes)


def reference(text: str) -> tuple[str, str]:
    """Name and tag (`latest` when none is given) of a template's reference; ValueError when it is none."""
    name, colon, tag = text.partition(":")
    if not _NAME.match(name) or (colon and not _TAG.match(tag)):
        raise ValueError(f"not a template: {text[:130]!r} (name or name:tag)")
    return name, tag or "latest"


def parse(text: str) -> Recipe:
    """The recipe of a TOML text; RecipeRefused with every mistake."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise RecipeRefused([Note("recipe", f"more than {MOST_BYTES} bytes", "files come by `copy`")])
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecipeRefused([Note("recipe", f"no TOML: {str(error)[:200]}")]) from None
    return load(data)


def load(data: Mapping[str, Any]) -> Recipe:
    """The recipe of decoded data; RecipeRefused with every mistake."""
    reader = _Reader()
    found = reader.recipe(data)
    if reader.notes:
        raise RecipeRefused(reader.notes)
    return found


class _Reader:
    """Reads, and collects the mistakes; what it returns counts only when there were none."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def refuse(self, path: str, message: str, hint: str = "") -> None:
        self.notes.append(Note(path, message, hint))

    def recipe(self, data: Mapping[str, Any]) -> Recipe:
        self.known(data, _TOP, "")
        if type(data.get("version")) is not int or data["version"] != VERSION:
            self.refuse("version", f"is {data.get('version')!r:.40}, and this version of space reads {VERSION}", f"version = {VERSION}")
        return Recipe(
            base=self.base(data.get("base")),
            steps=tuple(self.each(data, "step", MOST_STEPS, self.step)),
            downloads=tuple(self.each(data, "download", MOST_DOWNLOADS, self.download)),
            settings=Settings(
                self.env(data, "env"),
                self.user(data, "user"),
                self.optional(data, "cwd", "", self.absolute),
                self.optional(data, "start", "", self.command),
                self.optional(data, "ready", "", self.ready),
            ),
            hooks=self.hooks(data.get("hooks", {})),
            disk_mib=self.optional(data, "disk_mib", "", lambda v, p: self.number(v, p, LEAST_DISK_MIB, MOST_DISK_MIB)),
            memory_mib=self.number(data.get("memory_mib", 1024), "memory_mib", LEAST_MEMORY_MIB, MOST_MEMORY_MIB),
            name=self.shape(data.get("name", ""), "name", _NAME, "1 to 63 of a-z, 0-9, dot, dash and underscore") if "name" in data else "",
        )

    # -- parts ---------------------------------------------------------------------------------------------------

    def base(self, data: Any) -> Base:
        table = self.table(data, "base")
        self.known(table, ("template", "debian", "oci", "image"), "base")
        kinds = [kind for kind in ("template", "debian", "oci") if kind in table]
        if len(kinds) != 1:
            self.refuse("base", "needs exactly one of template, debian and oci", 'template = "base" is the plain one')
            return FromTemplate("base")
        if "image" in table and kinds != ["oci"]:
            self.refuse("base.image", "goes with base.oci only")
        if kinds == ["debian"]:
            names = self.words(table["debian"], "base.debian", most=MOST_DOWNLOADS)
            for number, name in enumerate(names):
                if not _DEB.match(name) or "=" in name:
                    self.refuse(f"base.debian[{number}]", f"no package's name: {name[:80]!r}")
            return FromDebian(tuple(sorted(set(names))))
        if kinds == ["oci"]:
            return FromOci(self.below(table["oci"], "base.oci"), self.text(table.get("image", ""), "base.image", 512))
        try:
            reference(named := self.text(table["template"], "base.template", 130))
        except ValueError as error:
            self.refuse("base.template", str(error))
        return FromTemplate(named)

    def step(self, table: Mapping[str, Any], path: str) -> Step:
        kinds = [kind for kind in ("run", "copy", "write") if kind in table]
        if len(kinds) != 1:
            self.refuse(path, "needs exactly one of run, copy and write")
            return Run(())
        if kinds == ["run"]:
            self.known(table, ("run", "user", "cwd", "env", "timeout_seconds", "egress"), path)
            return Run(
                self.command(table["run"], f"{path}.run"),
                self.user(table, "user", path),
                self.optional(table, "cwd", path, self.absolute),
                self.env(table, "env", path),
                self.number(table.get("timeout_seconds", 1800), f"{path}.timeout_seconds", 1, MOST_SECONDS),
                self.optional(table, "egress", path, self.egress) or "",
            )
        owner = self.user(table, "owner", path) or "root"
        if kinds == ["copy"]:
            self.known(table, ("copy", "to", "owner"), path)
            return Copy(self.below(table["copy"], f"{path}.copy"), self.absolute(table.get("to"), f"{path}.to"), owner)
        self.known(table, ("write", "to", "owner", "mode"), path)
        return Write(
            self.absolute(table.get("to"), f"{path}.to"),
            self.text(table["write"], f"{path}.write", MOST_TEXT),
            self.mode(table.get("mode", "0644"), f"{path}.mode"),
            owner,
        )

    def download(self, table: Mapping[str, Any], path: str) -> Download:
        kinds = [kind for kind in _KINDS if kind in table]
        if len(kinds) != 1:
            self.refuse(path, f"needs exactly one of {', '.join(_KINDS)}")
            return Download("file", "")
        kind = kinds[0]
        self.known(table, (kind, "sha256", "name") if kind == "file" else (kind, "sha256"), path)
        what = self.shape(table[kind], f"{path}.{kind}", *_SHAPES[kind])
        sha256, name = "", ""
        if kind == "file" or "sha256" in table:
            sha256 = self.shape(table.get("sha256"), f"{path}.sha256", _SHA256, "64 hex digits")
        if kind == "file":
            last = what.partition("?")[0].partition("#")[0].rpartition("/")[2]
            name = self.shape(table.get("name", last), f"{path}.name", _FILE, "a plain file name")
        return Download(kind, what, sha256, name)

    def egress(self, value: Any, path: str) -> str:
        """A policy, as JSON: what it says is judged where it is compiled, with the layers above it."""
        if isinstance(value, str):
            return json.dumps(self.shape(value, path, _POLICY, "a stored policy's name"))
        try:
            text = json.dumps(self.table(value, path), sort_keys=True)
        except (TypeError, ValueError):
            text = ""
        if not text or len(text) > MOST_TEXT:
            self.refuse(path, "is a stored policy's name, or a policy as docs/policy.md has it")
        return text

    def ready(self, value: Any, path: str) -> Ready:
        table = self.table(value, path)
        self.known(table, ("run", "timeout_seconds"), path)
        seconds = self.number(table.get("timeout_seconds", 60), f"{path}.timeout_seconds", 1, MOST_SECONDS)
        return Ready(self.command(table.get("run"), f"{path}.run"), seconds)

    def hooks(self, value: Any) -> dict[str, str]:
        found = {}
        for name, text in self.table(value, "hooks").items():
            if not _FILE.match(name):
                self.refuse("hooks", f"no plain file name: {name[:80]!r}")
            found[name] = self.text(text, f"hooks.{name[:80]}", MOST_TEXT)
        return found

    # -- pieces --------------------------------------------------------------------------------------------------

    def known(self, table: Mapping[str, Any], names: Sequence[str], path: str) -> None:
        for name in table:
            if name not in names:
                self.refuse(f"{path}.{name[:80]}".lstrip("."), "no such key", f"known: {', '.join(names)}")

    def table(self, value: Any, path: str) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        self.refuse(path, "is missing" if value is None else f"is a table, not {type(value).__name__}")
        return {}

    def each(self, data: Mapping[str, Any], name: str, most: int, read: Callable[[Mapping[str, Any], str], T]) -> list[T]:
        rows = data.get(name, [])
        if not isinstance(rows, list) or len(rows) > most:
            self.refuse(name, f"is a list of at most {most} tables", f"[[{name}]]")
            return []
        return [read(self.table(row, f"{name}[{number}]"), f"{name}[{number}]") for number, row in enumerate(rows)]

    def optional(self, table: Mapping[str, Any], name: str, path: str, read: Callable[[Any, str], T]) -> T | None:
        return read(table[name], f"{path}.{name}".lstrip(".")) if name in table else None

    def text(self, value: Any, path: str, most: int) -> str:
        if not isinstance(value, str) or len(value) > most or "\0" in value:
            self.refuse(path, f"is a text of at most {most} characters, without NUL")
            return ""
        return value

    def shape(self, value: Any, path: str, wanted: re.Pattern[str], words: str) -> str:
        if not isinstance(value, str) or not wanted.match(value):
            self.refuse(path, f"is {words}, not {value!r:.100}" if value is not None else f"is missing: {words}")
            return ""
        return value

    def number(self, value: Any, path: str, least: int, most: int) -> int:
        if type(value) is not int or not least <= value <= most:
            self.refuse(path, f"is a whole number from {least} to {most}, not {value!r:.40}")
            return least
        return value

    def words(self, value: Any, path: str, *, most: int = MOST_WORDS) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            self.refuse(path, f"is a list of 1 to {most} texts")
            return ("",)
        return tuple(self.text(word, f"{path}[{number}]", MOST_TEXT) for number, word in enumerate(value))

    def command(self, value: Any, path: str) -> tuple[str, ...]:
        """A list of arguments, or a text for the guest's shell, which stops at the first failure."""
        if isinstance(value, str) and value.strip():
            return ("/bin/sh", "-ec", self.text(value, path, MOST_TEXT))
        if isinstance(value, list) and value and value[0] != "":
            return self.words(value, path)
        self.refuse(path, "is a command: a text for the shell, or a list of arguments")
        return ("",)

    def user(self, table: Mapping[str, Any], name: str, path: str = "") -> str | None:
        return self.optional(table, name, path, lambda value, where: self.shape(value, where, _USER, "a user's name or number"))

    def env(self, table: Mapping[str, Any], name: str, path: str = "") -> dict[str, str]:
        where, found = f"{path}.{name}".lstrip("."), {}
        for key, value in self.table(table.get(name, {}), where).items():
            if not _VARIABLE.match(key):
                self.refuse(where, f"no variable's name: {key[:80]!r}")
            found[key] = self.text(value, f"{where}.{key[:80]}", MOST_TEXT)
        return found

    def mode(self, value: Any, path: str) -> int:
        if not isinstance(value, str) or not re.match(r"0?[0-7]{3}\Z", value):
            self.refuse(path, f"is permission bits in octal digits, not {value!r:.40}", '"0644"')
            return 0o644
        return int(value, 8)

    def absolute(self, value: Any, path: str) -> str:
        text = self.text(value, path, 4096) if value is not None else ""
        if not text.startswith("/") or ".." in text.split("/"):
            self.refuse(path, "is an absolute path without `..`")
        return text

    def below(self, value: Any, path: str) -> str:
        """A path below the recipe's directory, in its plainest spelling."""
        text = self.text(value, path, 4096)
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if not text or text.startswith("/") or ".." in parts or any(ord(letter) < 32 for letter in text):
            self.refuse(path, f"is a path below the recipe's directory, not {text[:100]!r}")
        return "/".join(parts) or "."
