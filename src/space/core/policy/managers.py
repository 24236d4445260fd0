"""What pip, npm, cargo and go say of their configuration, read into findings. Pure: text in, `Finding` out. (apt: `aptsources`.)"""

from __future__ import annotations

import ast
import configparser
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import urljoin

from space.core.policy.discovery import Finding, Place, PlaceRefused, Want, place

MOST_LINKS = 20_000
_PIP_KEYS = ("index-url", "extra-index-url", "find-links", "no-index", "proxy", "cert")
_HREF = re.compile(r"""<a\s[^<>]{0,2000}?\bhref\s?=\s?["']([^"'<>]{1,2000})["']""", re.IGNORECASE)


def placed(text: str, what: str, notes: list[str]) -> Place | None:
    """A place, or a note that says why there is none. what: where the text stands, in our words."""
    try:
        return place(text)
    except PlaceRefused as refused:
        notes.append(f"{what} was left out: {refused}")
        return None


# -- pip -----------------------------------------------------------------------------------------------------------------


def pip_list(text: str) -> dict[str, str]:
    """`pip config list`: the keys that matter, the environment's before those of a command before those for all."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, equals, written = line.partition("=")
        section, _, key = name.rpartition(".")
        if not equals or key not in _PIP_KEYS:
            continue
        try:
            value = ast.literal_eval(written)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, str):
            found.setdefault(key, {})[section] = value
    order = (":env:", "install", "download", "global")
    return {key: next((values[one] for one in order if one in values), "") for key, values in found.items()}


def pip_file(text: str) -> dict[str, str]:
    """A pip configuration file, where there is no pip to ask."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    found: dict[str, str] = {}
    for section in ("global", "download", "install"):
        if parser.has_section(section):
            found |= {key.replace("_", "-"): value or "" for key, value in parser.items(section)}
    return {key: value for key, value in found.items() if key in _PIP_KEYS}


def pip_default(help_text: str) -> str | None:
    """The index that pip uses when nobody says another, from its own help."""
    found = re.search(r"--index-url[^(]{0,400}\(default:?\s+(https?://[^\s)]+)\s*\)", help_text)
    return found[1] if found else None


def pip(settings: Mapping[str, str], default: str | None) -> Finding:
    """settings: by pip's long option names. default: the index that pip knows by itself; None: unknown."""
    notes: list[str] = []
    indexes = [settings.get("index-url") or default or "", *settings.get("extra-index-url", "").split()]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
        notes.append("pip is told to use no index")
    elif not indexes[0]:
        notes.append("pip did not say which index it uses: there is no rule for its default")
    places = [found for text in indexes if text and (found := placed(text, "an index", notes)) is not None]
    wants = [Want(one, ("/**",), "an index") for one in places]
    for text in settings.get("find-links", "").split():
        if re.match(r"https?://", text, re.IGNORECASE):
            found = placed(text, "a find-links page", notes)
            wants += [Want(_folder(found), ("/**",), "a find-links page")] if found is not None else []
        else:
            notes.append("a find-links entry is a directory of this machine, which a guest does not have")
    if settings.get("proxy"):
        notes.append("pip goes through a proxy here; the gateway dials by itself")
    usable = [one.url() for one in places if one.usable]
    lines = ["[global]"]
    lines += [f"index-url = {usable[0]}"] if usable else []
    lines += ["extra-index-url =", *[f"    {url}" for url in usable[1:]]] if usable[1:] else []
    return Finding("pip", tuple(wants), {"/etc/pip.conf": "\n".join(lines) + "\n"} if usable else {}, {}, tuple(notes))


def _folder(where: Place) -> Place:
    """Where the page stands: relative links lead beside it."""
    head, _, last = where.path.rpartition("/")
    return Place(where.scheme, where.host, where.port, head, where.stripped) if "." in last else where


def page_links(page: str, base: str) -> list[str]:
    """Where a page's links lead. A pattern in place of a parser: its time is linear in whatever the page is."""
    return _joined(base, [html.unescape(found[1]) for found in islice(_HREF.finditer(page), MOST_LINKS)])


def tarballs(document: Any, base: str) -> list[str]:
    """Where the archives of an npm package's document are."""
    versions = document.get("versions") if isinstance(document, dict) else None
    dists = [one.get("dist") for one in versions.values() if isinstance(one, dict)] if isinstance(versions, dict) else []
    links = [dist.get("tarball") for dist in dists if isinstance(dist, dict)]
    return _joined(base, [link for link in links if isinstance(link, str)][:MOST_LINKS])


def _joined(base: str, links: Iterable[str]) -> list[str]:
    found = []
    for link in links:
        try:
            url = urljoin(base, link)
        except ValueError:
            continue
        before, _, fragment = url.partition("#")
        if "@" not in fragment:  # else what stands before it may be a password, and not the host
            found.append(before)
    return found


# -- npm -----------------------------------------------------------------------------------------------------------------

# Documents of packages, and their archives; with a scope, one segment more. Nothing else of a registry is for reading packages.
_NPM = ("/*", "/@*/*", "/*/-/*.tgz", "/@*/*/-/*.tgz")
_CREDENTIAL = re.compile(r"(//[^\s=]*?):(?:_authToken|_auth|_password|username)\Z")


def npmrc(text: str) -> dict[str, str]:
    """A .npmrc: registries by key (`registry`, `@scope:registry`), proxies, and keys of credentials with nothing behind them."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        key = name.strip().strip("\"'")
        if not equals or key.startswith(("#", ";")):
            continue
        if _CREDENTIAL.match(key):
            found[key] = ""
        elif key == "registry" or re.fullmatch(r"@[A-Za-z0-9][\w.-]*:registry", key) or key in ("proxy", "https-proxy"):
            found[key] = value.strip().strip("\"'")
    return found


def npm(settings: Mapping[str, str], default: str | None) -> Finding:
    """settings: of the files, the nearest first over the others. default: what npm itself says its registry is; None: unknown."""
    notes: list[str] = []
    credentials = {match[1] for key in settings if (match := _CREDENTIAL.match(key))}
    rows = {"registry": default or settings.get("registry", "")}
    rows |= {key: value for key, value in settings.items() if key.endswith(":registry")}
    if not rows["registry"]:
        notes.append("npm did not say which registry it uses: there is no rule for its default")
    wants, lines = [], []
    for key, text in rows.items():
        what = "the registry" if key == "registry" else "the registry of a scope"
        found = placed(text, what, notes) if text else None
        if found is None:
            continue
        has = any(_same(found, one) for one in credentials)
        wants.append(Want(found, _NPM, what, credential=has))
        if has:
            notes.append(f"{found.host}: npm has a credential for it, which was left out")
        if found.usable:
            lines.append(f"{key}={found.url()}")
    if settings.get("proxy") or settings.get("https-proxy"):
        notes.append("npm goes through a proxy here; the gateway dials by itself")
    return Finding("npm", tuple(wants), {"/etc/npmrc": "\n".join(lines) + "\n"} if lines else {}, _npm_environment(lines), tuple(notes))


def _npm_environment(lines: Sequence[str]) -> dict[str, str]:
    return {"NPM_CONFIG_GLOBALCONFIG": "/etc/npmrc"} if lines else {}


def _same(where: Place, key: str) -> bool:
    """Whether a credential's key (`//host/path/`) is for a place."""
    try:
        other = place("https:" + key)
    except PlaceRefused:
        return False
    return (other.host, other.path) == (where.host, where.path) or (other.host == where.host and not other.path)


# -- cargo ---------------------------------------------------------------------------------------------------------------

_SPARSE = ("/config.json", "/1/*", "/2/*", "/3/*/*", "/*/*/*")


@dataclass(frozen=True, slots=True)
class DefaultIndex:
    """An index of cargo's that no file names. config: its `config.json`, None if nobody has seen it. rooted: that is where it stood."""

    origin: str
    config: Any = None
    rooted: bool = False


def cargo(configs: Sequence[Mapping[str, Any]], defaults: Sequence[DefaultIndex] = ()) -> Finding:
    """configs: decoded, the nearest first. defaults: what cargo uses where no source is replaced."""
    notes: list[str] = []
    sources, registries = _tables(configs, "source"), _tables(configs, "registries")
    rows = [(f"source {at + 1}", table.get("registry")) for at, table in enumerate(sources.values())]
    rows += [(f"registry {at + 1}", table.get("index")) for at, table in enumerate(registries.values())]
    wants, kept = [], {}
    for what, text in rows:
        if not isinstance(text, str):
            continue
        if not text.startswith("sparse+"):
            notes.append(f"{what} is no sparse index: it is fetched with git, which reading alone does not do")
            continue
        found = placed(text.removeprefix("sparse+"), what, notes)
        if found is not None:
            wants.append(Want(found, _SPARSE, what))
            kept[text] = found
    if any("directory" in table or "local-registry" in table for table in sources.values()):
        notes.append("a source is a directory of this machine, which a guest does not have")
    if not any(isinstance(table.get("replace-with"), str) for table in sources.values()):
        for index in defaults:
            found = placed(index.origin, "cargo's own index", notes)
            wants += [Want(found, _SPARSE if index.rooted else ("/**",), "cargo's own index")] if found is not None else []
            wants += cargo_downloads(index.config, notes) if index.config is not None else []
        if not defaults:
            notes.append("cargo does not say which index it uses by default, and has none in its cache: there is no rule for it")
    text = _cargo_text(sources, registries, kept)
    return Finding("cargo", tuple(wants), {"/.cargo/config.toml": text} if text else {}, {}, tuple(notes))


def cargo_downloads(config: Any, notes: list[str]) -> list[Want]:
    """Where a sparse index says that crates are: its `config.json`."""
    text = config.get("dl") if isinstance(config, dict) else None
    if not isinstance(text, str):
        notes.append("an index does not say where its crates are")
        return []
    head, brace, _ = text.partition("{")
    found = placed(head.rpartition("/")[0] if brace else text, "where crates are", notes)
    if found is None:
        return []
    return [Want(found, ("/**",) if brace else ("/*/*/download",), "crates", credential=config.get("auth-required") is True)]


def _tables(configs: Sequence[Mapping[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """Tables of a kind by their names, the nearest file's values over the others'."""
    found: dict[str, dict[str, Any]] = {}
    for config in reversed(configs):
        tables = config.get(name)
        for key, table in tables.items() if isinstance(tables, dict) else ():
            if isinstance(table, dict):
                found[key] = found.get(key, {}) | table
    return found


def _cargo_text(sources: Mapping[str, Any], registries: Mapping[str, Any], kept: Mapping[str, Place]) -> str:
    named = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")
    lines: list[str] = []
    for kind, tables, key in (("source", sources, "registry"), ("registries", registries, "index")):
        for name, table in tables.items():
            where = kept.get(str(table.get(key)))
            rows = [f'{key} = "sparse+{where.url()}"'] if where is not None and where.usable else []
            target = table.get("replace-with")
            if kind == "source" and isinstance(target, str) and named.match(target):
                rows += [f'replace-with = "{target}"'] if str(sources.get(target, {}).get("registry")) in kept else []
            lines += [f"[{kind}.{name}]", *rows, ""] if rows and named.match(name) else []
    return "\n".join(lines)


# -- go ------------------------------------------------------------------------------------------------------------------

_SUMS = ("/supported", "/latest", "/lookup/**", "/tile/**")
_VERIFIER = re.compile(r"([A-Za-z0-9.-]+)(\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{44})?\Z")
_GLOBS = re.compile(r"[A-Za-z0-9._/*?,-]{1,1000}\Z")


def go(env: Mapping[str, Any]) -> Finding:
    """env: what `go env -json` says."""
    notes: list[str] = []
    said = {key: value for key, value in env.items() if isinstance(value, str)}
    wants, proxies = [], []
    for text in re.split(r"[,|]", said.get("GOPROXY", "")):
        if text.strip() == "direct":
            notes.append("modules that the proxy lacks come from hosts of their own (direct): no preset can say which")
        elif text.strip() not in ("", "off") and (found := placed(text, "a module proxy", notes)) is not None:
            wants.append(Want(found, ("/**",), "a module proxy"))
            proxies += [found.url("")] if found.usable else []
    if not said.get("GOPROXY"):
        notes.append("go did not say which proxy it uses: there is no rule for it")
    environment = {"GOPROXY": ",".join(proxies)} if proxies else {}
    environment |= _sums(said.get("GOSUMDB", ""), wants, notes)
    for key in ("GONOSUMDB", "GOPRIVATE", "GONOPROXY"):
        if _GLOBS.match(said.get(key, "")):
            environment[key] = said[key]
    if said.get("GOPRIVATE") or said.get("GONOPROXY"):
        notes.append("some modules are private, and fetched from hosts of their own: no preset can say which")
    return Finding("go", tuple(wants), {}, environment, tuple(notes))


def _sums(text: str, wants: list[Want], notes: list[str]) -> dict[str, str]:
    """The checksum database: `off`, or a name (with a key) and perhaps where it is."""
    name, _, url = text.partition(" ")
    if not name or name == "off":
        return {"GOSUMDB": "off"} if name else {}
    verifier = _VERIFIER.match(name)
    found = placed(url.strip() or f"https://{verifier[1] if verifier else ''}", "the checksum database", notes)
    if found is None or verifier is None:
        return {}
    wants.append(Want(found, _SUMS, "the checksum database"))
    return {"GOSUMDB": name + (f" {found.url('')}" if url.strip() else "")} if found.usable else {}
