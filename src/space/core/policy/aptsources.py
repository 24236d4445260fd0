"""apt's sources, in both of their forms, read into a finding. Pure: text in, `Finding` out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from space.core.policy.discovery import Finding, Want, looks_random
from space.core.policy.managers import placed

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+/-]{0,127}\Z")
_KEYRING = re.compile(r"/[A-Za-z0-9._/+-]{1,200}\Z")
_LINE = re.compile(r"(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+\S+)*)\s*\Z")


_COMMENT = re.compile(r"(?:^|\s)#")
_KINDS = frozenset({"cdrom", "copy", "file", "mirror", "mirror+file", "mirror+http", "mirror+https", "ssh", "tor+http", "tor+https"})


_MOST_SUITES = 64


@dataclass(frozen=True, slots=True)
class Source:
    """One entry. signed_by: the path of a keyring; "" where there is none, or the key stands in the entry itself."""

    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


def one_line(text: str) -> list[Source]:
    """A `.list` file: `deb [options] uri suite component...`."""
    found = []
    for raw in text.splitlines():
        match = _LINE.match(_COMMENT.split(raw, maxsplit=1)[0].strip())
        if match is not None:
            options = dict(option.partition("=")[::2] for option in (match[2] or "").split())
            found.append(Source((match[1],), (match[3],), (match[4],), tuple(match[5].split()), _keyring(options.get("signed-by", ""))))
    return found


def deb822(text: str) -> list[Source]:
    """A `.sources` file: stanzas of fields; a stanza that is not enabled is left out."""
    found = []
    for stanza in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.split("\n"):
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and name:
                fields[name] += f" {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "uris" in fields and fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off", "without", "disable"):
            words = {key: tuple(fields.get(key, "").split()) for key in ("types", "uris", "suites", "components")}
            signed_by = _keyring(fields.get("signed-by", ""))
            found.append(Source(words["types"], words["uris"], words["suites"], words["components"], signed_by))
    return found


def proxies(text: str) -> list[str]:
    """Names of the proxy settings that `apt-config dump` shows with a value."""
    return [found[1] for line in text.splitlines() if (found := re.match(r'(Acquire::https?::Proxy(?:-Auto-Detect)?) "(?!DIRECT").', line))]


def apt(sources: Sequence[Source], proxied: Sequence[str] = ()) -> Finding:
    """What apt fetches: below each URI, the suites that are named and the pool."""
    notes: list[str] = []
    wants: list[Want] = []
    stanzas: list[str] = []
    for source in sources:
        suites = [suite for suite in source.suites[:_MOST_SUITES] if _is_word(suite) or suite in ("/", "./")]
        if len(suites) < len(source.suites):
            notes.append("a suite was left out: its name holds a variable or leads out of the archive, or there are too many")
        usable = []
        for uri in source.uris:
            kind = uri.partition(":")[0].lower()
            if kind not in ("http", "https"):
                notes.append(f"a source of another kind was left out ({kind if kind in _KINDS else 'unknown'}): no rule can say it")
                continue
            found = placed(uri, "a source", notes)
            if found is None:
                continue
            below = [one for suite in suites for one in _below(suite)]
            wants += [Want(found, tuple(dict.fromkeys(below)), "packages")] if below else []
            usable += [found.url("")] if found.usable else []
        if usable and suites:
            stanzas.append(_stanza(source, usable, suites))
    if not sources:
        notes.append("apt has no sources on this machine")
    notes += [f"apt goes through a proxy here ({name}); the gateway dials by itself" for name in proxied]
    if any(source.signed_by for source in sources):
        notes.append("the guest needs the keyrings that its sources name")
    files = {"/etc/apt/sources.list.d/space.sources": "\n".join(dict.fromkeys(stanzas))} if stanzas else {}
    return Finding("apt", tuple(wants), files, {}, tuple(notes))


def _below(suite: str) -> tuple[str, ...]:
    if suite.endswith("/"):  # a flat repository: everything is beside its index
        inner = suite.strip("./")
        return (f"/{inner}/**",) if inner else ("/**",)
    return (f"/dists/{suite}/**", "/pool/**")


def _stanza(source: Source, uris: Sequence[str], suites: Sequence[str]) -> str:
    types = [kind for kind in source.types if kind in ("deb", "deb-src")] or ["deb"]
    components = [word for word in source.components if _is_word(word)]
    rows = [f"Types: {' '.join(types)}", f"URIs: {' '.join(uris)}", f"Suites: {' '.join(suites)}"]
    rows += [f"Components: {' '.join(components)}"] if components else []
    rows += [f"Signed-By: {source.signed_by}"] if source.signed_by else []
    return "\n".join(rows) + "\n"


def _is_word(text: str) -> bool:
    """Whether a suite's or component's name may be repeated: a URL with a space in it leaves what it holds in their places."""
    return _WORD.match(text) is not None and not looks_random(text)


def _keyring(text: str) -> str:
    return text if _KEYRING.match(text) and not looks_random(text) else ""
