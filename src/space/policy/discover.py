"""Presets from this machine's own package managers: asks them, reads their files, looks at one page of each index, decides nothing.

Every manager that is not here, or does not say, is told so in a note; nothing is known of anybody's hosts beforehand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from space.core.policy import aptsources, managers
from space.core.policy.addresses import Address, Undialable, judge_all
from space.core.policy.discovery import Finding, Place, Want, links_of, preset_text
from space.core.policy.presets import load_preset
from space.host.process import ProcessFailed, run
from space.policy.fetch import Access, FetchFailed, Page, addresses_of, get
from space.policy.overheard import overheard

_MOST_TEXT = 1 << 20
_MOST_RESOLVED = 16
# What a page of one project is asked for: the manager's own, which every whole mirror has.
_PIP_PROJECT, _NPM_PROJECT = "pip", "npm-normalize-package-bin"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where configuration is looked for. offline: no page is fetched."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    directory: Path = field(default_factory=Path.cwd)
    root: Path = Path("/")
    offline: bool = False
    fetch: Callable[..., Page] = get
    resolve: Callable[[str], Sequence[Address]] = addresses_of

    @property
    def home(self) -> Path:
        return Path(self.environment.get("HOME") or "/nonexistent")

    def ask(self, *argv: str, directory: Path | None = None) -> str | None:
        """What a program says, asked in `directory` or ours; None where it is not installed, or fails.

        What it complains of may hold secrets, and is not shown.
        """
        path = shutil.which(argv[0], path=self.environment.get("PATH"))
        if path is None:
            return None
        try:
            done = run([path, *argv[1:]], env=self.environment, cwd=directory or self.directory, timeout=60)
        except ProcessFailed:
            return None
        return done.stdout.decode(errors="replace")

    def text(self, path: Path) -> str:
        """A file's text; "" where there is none."""
        try:
            with path.open("rb") as file:
                return file.read(_MOST_TEXT).decode(errors="replace")
        except OSError:
            return ""


def discover(manager: str, machine: Machine) -> Finding:
    """What was found of one package manager."""
    found, look = _MANAGERS[manager](machine)
    if machine.offline:
        return replace(found, notes=(*found.notes, "offline: where an index's own links lead was not looked at")) if look else found
    for where, link in look:
        try:
            more = link(where)
            found = replace(found, wants=(*found.wants, *more))
        except FetchFailed as failed:
            found = replace(found, notes=(*found.notes, f"where the links of {where.host} lead is not known: {failed}"))
    hosts = dict.fromkeys(want.place.host for want in found.wants)
    return replace(found, notes=(*found.notes, *_inside(machine, list(hosts)[:_MOST_RESOLVED])))


def _inside(machine: Machine, hosts: Sequence[str]) -> list[str]:
    """Hosts that the gateway will not dial by itself, as a company's mirror often is."""
    notes = []
    for host in hosts:
        answers = machine.resolve(host)
        verdict = judge_all(answers) if answers else None
        if isinstance(verdict, Undialable):
            notes.append(f"{host} has an address here that is not public ({verdict.kind}): it is dialled only if egress_reachable lists it")
    return notes


def preset(manager: str, machine: Machine) -> tuple[str, int]:
    """The text of a manager's preset, and how many rules it has."""
    text = preset_text(discover(manager, machine))
    return text, len(load_preset(tomllib.loads(text), manager).rules)


_Look = tuple[Place, Callable[[Place], Sequence[Want]]]


def _pip(machine: Machine) -> tuple[Finding, list[_Look]]:
    name = next((name for name in ("pip", "pip3") if shutil.which(name, path=machine.environment.get("PATH"))), "pip")
    listed = machine.ask(name, "config", "list")
    settings = _pip_files(machine) if listed is None else managers.pip_list(listed)
    said = managers.pip_default(machine.ask(name, "download", "--help") or "")
    found = managers.pip(settings, said)
    if listed is None:
        found = replace(found, notes=("pip is not installed here: its files and variables alone were read", *found.notes))
    authorities = settings.get("cert") or machine.environment.get("REQUESTS_CA_BUNDLE") or machine.environment.get("CURL_CA_BUNDLE")
    access = Access(settings.get("proxy") or None, authorities)

    def links(where: Place) -> Sequence[Want]:
        page = machine.fetch(where.url(f"/{_PIP_PROJECT}/"), access, accept="text/html")
        body = page.body.decode(errors="replace")
        return links_of([*page.visited[1:], *managers.page_links(body, page.visited[-1])], _PIP_PROJECT)

    return found, [(want.place, links) for want in found.wants if want.why == "an index" and want.place.usable]


def _pip_files(machine: Machine) -> dict[str, str]:
    """The nearest last: the machine's, the user's, the environment's."""
    home, root = machine.home, machine.root
    config = Path(machine.environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = [root / "etc/xdg/pip/pip.conf", root / "etc/pip.conf", home / ".pip/pip.conf", config / "pip/pip.conf"]
    files += [Path(machine.environment["PIP_CONFIG_FILE"])] if machine.environment.get("PIP_CONFIG_FILE") else []
    found: dict[str, str] = {}
    for file in files:
        found |= managers.pip_file(machine.text(file))
    keys = ("index-url", "extra-index-url", "find-links", "no-index", "proxy", "cert")
    variables = {key: machine.environment.get("PIP_" + key.upper().replace("-", "_"), "") for key in keys}
    return found | {key: value for key, value in variables.items() if value}


def _apt(machine: Machine) -> tuple[Finding, list[_Look]]:
    folder = machine.root / "etc/apt"
    sources = aptsources.one_line(machine.text(folder / "sources.list"))
    for file in sorted((folder / "sources.list.d").glob("*")):
        read = {".list": aptsources.one_line, ".sources": aptsources.deb822}.get(file.suffix)
        sources += read(machine.text(file)) if read is not None else []
    return aptsources.apt(sources, aptsources.proxies(machine.ask("apt-config", "dump") or "")), []


def _npm(machine: Machine) -> tuple[Finding, list[_Look]]:
    said = _json(machine.ask("npm", "config", "list", "-l", "--json"))
    files = [said.get("globalconfig"), said.get("userconfig") or str(machine.home / ".npmrc"), str(machine.directory / ".npmrc")]
    settings: dict[str, str] = {}
    for file in files:
        settings |= managers.npmrc(machine.text(Path(file))) if isinstance(file, str) else {}
    settings |= {key: value for key in ("proxy", "https-proxy") if isinstance(value := said.get(key), str)}
    registry = said.get("registry")
    found = managers.npm(settings, registry if isinstance(registry, str) else None)
    if not said:
        found = replace(found, notes=("npm is not installed here: its files alone were read", *found.notes))
    authorities = said.get("cafile") or machine.environment.get("NODE_EXTRA_CA_CERTS")
    access = Access(settings.get("https-proxy") or settings.get("proxy"), authorities if isinstance(authorities, str) else None)

    def links(where: Place) -> Sequence[Want]:
        page = machine.fetch(where.url(f"/{_NPM_PROJECT}"), access, accept="application/vnd.npm.install-v1+json")
        urls = managers.tarballs(_json(page.body.decode(errors="replace")), page.visited[-1])
        # What is on the registry itself is where its protocol has it, which is narrower.
        more = links_of([*page.visited[1:], *urls], _NPM_PROJECT)
        return [want for want in more if want.place.origin != where.origin or not all(_beside(where, url) for url in urls)]

    return found, [(want.place, links) for want in found.wants if want.why == "the registry" and want.place.usable]


def _beside(where: Place, url: str) -> bool:
    """Whether an archive is where npm's own registry has it: `<registry>/<package>/-/<file>.tgz`; others' are their links' affair."""
    return not url.startswith(where.origin + "/") or re.match(re.escape(where.url()) + r"(@[^/]+/)?[^/]+/-/[^/]+\.tgz\Z", url) is not None


def _cargo(machine: Machine) -> tuple[Finding, list[_Look]]:
    home = Path(machine.environment.get("CARGO_HOME") or machine.home / ".cargo")
    folders = [folder / ".cargo" for folder in (machine.directory, *machine.directory.parents)]
    texts = [machine.text(folder / "config.toml") or machine.text(folder / "config") for folder in dict.fromkeys([*folders, home])]
    configs = [_cargo_variables(machine.environment), *map(_toml, texts)]
    http: dict[str, Any] = next((config["http"] for config in configs if isinstance(config.get("http"), dict)), {})
    proxy, authorities = http.get("proxy"), machine.environment.get("CARGO_HTTP_CAINFO") or http.get("cainfo")
    access = Access(proxy if isinstance(proxy, str) else None, authorities if isinstance(authorities, str) else None)
    found = managers.cargo(configs, _cargo_defaults(machine, home, access))
    if shutil.which("cargo", path=machine.environment.get("PATH")) is None:
        found = replace(found, notes=("cargo is not installed here: its files alone were read", *found.notes))

    def links(where: Place) -> Sequence[Want]:
        page = machine.fetch(where.url("/config.json"), access, accept="application/json")
        notes: list[str] = []
        wants = managers.cargo_downloads(_json(page.body.decode(errors="replace")), notes)
        if notes:
            raise FetchFailed(notes[0])
        return [*links_of(page.visited[1:], ""), *wants]

    return found, [(want.place, links) for want in found.wants if re.match(r"source|registry", want.why) and want.place.usable]


def _cargo_defaults(machine: Machine, home: Path, access: Access) -> list[managers.DefaultIndex]:
    """The index that cargo uses by itself: what it would connect to, or what is in its cache."""
    cached: dict[str, Any] = {}
    for file in sorted(home.glob("registry/index/*/config.json")):
        match = re.fullmatch(r"(.+)-[0-9a-f]{16}", file.parent.name)
        if match is not None:
            cached[f"https://{match[1]}"] = _json(machine.text(file))
    path = shutil.which("cargo", path=machine.environment.get("PATH"))
    argv = [path or "", "search", "--limit", "1", "space"]
    once = {**machine.environment, "CARGO_NET_RETRY": "0"}
    asked = overheard(argv, once, proxy="CARGO_HTTP_PROXY", home="CARGO_HOME") if path is not None else []
    origins = [f"https://{host}" + (f":{port}" if port != 443 else "") for host, port in asked[:1]] or list(cached)
    return [_cargo_default(machine, origin, cached.get(origin), access) for origin in origins]


def _cargo_default(machine: Machine, origin: str, cached: Any, access: Access) -> managers.DefaultIndex:
    if not machine.offline:
        with suppress(FetchFailed):
            page = machine.fetch(f"{origin}/config.json", access, accept="application/json")
            config = _json(page.body.decode(errors="replace"))
            if "dl" in config:
                return managers.DefaultIndex(origin, config, rooted=True)
    return managers.DefaultIndex(origin, cached)


def _cargo_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {match[1].lower(): value for key, value in environment.items() if (match := re.fullmatch(r"CARGO_REGISTRIES_(\w+)_INDEX", key))}
    return {"registries": {name: {"index": value} for name, value in names.items()}}


def _go(machine: Machine) -> tuple[Finding, list[_Look]]:
    # Not where we are: a go.mod there may make it fetch another version of itself first.
    keys = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY")
    said = _json(machine.ask("go", "env", "-json", *keys, directory=machine.root))
    found = managers.go(said)
    return (found if said else replace(found, notes=("go is not installed here", *found.notes))), []


_MANAGERS: Mapping[str, Callable[[Machine], tuple[Finding, list[_Look]]]] = {
    "pip": _pip,
    "apt": _apt,
    "npm": _npm,
    "cargo": _cargo,
    "go": _go,
}
MANAGERS = tuple(_MANAGERS)


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return {}
