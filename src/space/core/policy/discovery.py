"""From where a package manager fetches, told as a preset: read-only rules, and the settings that make a guest ask there.

Configuration of package managers holds secrets: user information, tokens, query strings, segments of paths. A `Place` is what remains of
a URL without them. Text of the configuration is never repeated otherwise, in messages neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from space.core.policy.loader import PolicyRefused, load
from space.core.policy.names import NameRefused, canon
from space.core.policy.paths import PathPattern, PathRefused, normalise
from space.core.policy.suffixes import is_public_suffix

MOST_PLACES = 200
_URL = re.compile(r"(https?)://([^/?#\\\s]*)([^?#\\\s]*)(\?[^#]*)?(#.*)?\Z", re.IGNORECASE)
_HOST = re.compile(r"([^:\[\]@]+)(?::([0-9]{1,5}))?\Z")
_PORTS = {"https": 443, "http": 80}
HIDDEN = "*"


class PlaceRefused(ValueError):
    """No place that a rule can name. The message holds nothing of the text."""


@dataclass(frozen=True, slots=True)
class Place:
    """A URL without secrets. path: normal, without a slash at its end; a segment that looked like a token is `*`.

    stripped: what was taken away, in words.
    """

    scheme: Literal["https", "http"]
    host: str
    port: int
    path: str = ""
    stripped: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """`https://host`, with the port unless it is the scheme's own."""
        return f"{self.scheme}://{self.host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    @property
    def usable(self) -> bool:
        """Whether a guest can ask there with what is left."""
        return HIDDEN not in self.path

    def url(self, end: str = "/") -> str:
        """For the guest's settings. end: what follows the path."""
        return self.origin + self.path + end


def place(text: str) -> Place:
    """What remains of a URL. PlaceRefused for what is no plain http or https URL of a named host."""
    if len(text) > 4096 or not text.isascii() or not text.isprintable():
        raise PlaceRefused("it is too long, or holds characters that no URL has")
    found = _URL.match(text.strip())
    if found is None:
        raise PlaceRefused("it is no http or https URL")
    if "$" in text or "{" in text:
        raise PlaceRefused("it holds a variable that is not filled in")
    info, at, authority = found[2].rpartition("@")
    if "@" in (found[3] + (found[4] or "") + (found[5] or "")):
        raise PlaceRefused("it holds an @ behind its host, so what is secret in it cannot be told")
    where = _HOST.match(authority)
    if where is None:
        raise PlaceRefused("its host is an address, or none")
    scheme: Literal["https", "http"] = "https" if found[1].lower() == "https" else "http"
    port = int(where[2]) if where[2] else _PORTS[scheme]
    if not 1 <= port <= 65535:
        raise PlaceRefused("its port does not exist")
    try:
        host = canon(where[1])
        path = normalise((found[3] or "/").encode()).text.rstrip("/")
    except NameRefused:
        raise PlaceRefused("its host is an address, or no name") from None
    except PathRefused:
        raise PlaceRefused("its path has more than one meaning") from None
    if is_public_suffix(host):
        raise PlaceRefused("its host is one label or a public suffix, which no rule can name")
    if "*" in path:
        raise PlaceRefused("its path holds a star")
    segments = [HIDDEN if looks_random(segment) else segment for segment in path.split("/")]
    taken = [
        *(["user information"] if at and info else []),
        *(["a query"] if found[4] else []),
        *(["a segment of the path that looks like a token"] if HIDDEN in segments else []),
    ]
    return Place(scheme, host, port, "/".join(segments), tuple(taken))


def looks_random(segment: str) -> bool:
    """Whether a segment of a path looks made by a machine: long, and switching often between digits, small and capital letters."""
    kinds = ["d" if letter.isdigit() else "l" if letter.islower() else "u" for letter in segment if letter.isalnum()]
    return len(kinds) >= 16 and sum(one != other for one, other in pairwise(kinds)) >= 6


@dataclass(frozen=True, slots=True)
class Want:
    """A place, and which paths below it are fetched. below: patterns behind the place's path. why: for the reader of the preset."""

    place: Place
    below: tuple[str, ...] = ("/**",)
    why: str = ""
    credential: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one package manager. files, environment: the guest's half. notes: what whoever reviews it should know."""

    manager: str
    wants: tuple[Want, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def links_of(urls: Iterable[str], project: str) -> tuple[Want, ...]:
    """Where the links of an index's page lead: hosts, with the first segment that all links to one share (unless it is the project's)."""
    first: dict[tuple[Literal["https", "http"], str, int], set[str]] = {}
    for url in urls:
        try:
            found = place(url)
        except PlaceRefused:
            continue
        segments = found.path.split("/")
        shared = segments[1] if len(segments) > 2 and segments[1] not in (HIDDEN, project) else ""
        first.setdefault((found.scheme, found.host, found.port), set()).add(shared)
        if len(first) > MOST_PLACES:
            break
    return tuple(
        Want(
            Place(scheme, host, port), ((f"/{only}/**" if (only := next(iter(starts))) else "/**") if len(starts) == 1 else "/**",), "links"
        )
        for (scheme, host, port), starts in first.items()
    )


# -- the preset ----------------------------------------------------------------------------------------------------------


def preset_text(found: Finding) -> str:
    """The preset's file. It always loads: what no rule can say is left out and told in a comment."""
    rules, notes = _rules(found)
    lines = [f"# What {found.manager} of this machine fetches from: reading only. Review it, then name it in a policy: presets = [...]"]
    lines += [f"# note: {note}" for note in notes]
    lines += ["", "version = 1", ""]
    for at, (key, paths, why, stripped) in enumerate(rules):
        scheme, host, port = key
        lines += [f"# {'; '.join(why)}"] if why else []
        lines += ["[[rule]]", f'name = "{found.manager}/{at + 1}"', f"host = {_text(host)}"]
        lines += ['scheme = "http"'] if scheme == "http" else []
        lines += [f"port = {port}"] if port != _PORTS[scheme] else []
        lines += ['methods = ["GET", "HEAD"]', f"paths = [{', '.join(map(_text, paths))}]"]
        if stripped and scheme == "https":
            lines += [f"# grant = {_text(grant_name(found.manager, host))}    # its credential was left out: store it, then take this line"]
        elif stripped:
            lines += ["# its credential was left out, and there is no grant over plain HTTP"]
        lines += [""]
    lines += ["[guest.files]"]
    for path, text in found.files.items():
        lines += [f"{_text(path)} = {_long(text)}"]
    lines += ["", "[guest.environment]"]
    lines += [f"{name} = {_text(value)}" for name, value in found.environment.items()]
    return "\n".join(lines) + "\n"


def grant_name(manager: str, host: str) -> str:
    """What the grant for a host's credential may be called."""
    return f"{manager}-{re.sub(r'[^a-z0-9.-]', '-', host)}"[:60].rstrip(".-")


_Key = tuple[Literal["https", "http"], str, int]


def _rules(found: Finding) -> tuple[list[tuple[_Key, list[str], list[str], bool]], list[str]]:
    """A rule for each host and port, in the order of the wants, and every note."""
    notes = list(dict.fromkeys(found.notes))
    merged: dict[_Key, tuple[list[str], list[str], bool]] = {}
    schemes: dict[tuple[str, int], str] = {}
    for want in found.wants[:MOST_PLACES]:
        where = want.place
        if not _possible(where):
            notes.append("a place was left out: its host is one label or a public suffix, which no rule can name")
            continue
        if schemes.setdefault((where.host, where.port), where.scheme) != where.scheme:
            notes.append(f"{where.host}:{where.port} is used with http and with https: only the first was taken")
            continue
        if where.scheme == "http":
            notes.append(f"{where.host} is asked over plain HTTP: what is fetched is as safe as the manager's own signatures")
        if where.stripped:
            notes.append(f"{where.host}: {' and '.join(where.stripped)} was left out")
        paths, why, stripped = merged.setdefault((where.scheme, where.host, where.port), ([], [], False))
        paths += [pattern for below in want.below if (pattern := _pattern(where.path, below)) not in paths]
        why += [want.why] if want.why and want.why not in why else []
        secret = stripped or want.credential or "user information" in where.stripped
        merged[(where.scheme, where.host, where.port)] = (paths, why, secret)
    if len(found.wants) > MOST_PLACES:
        notes.append(f"{len(found.wants)} places, of which {MOST_PLACES} were taken")
    if not merged:
        notes.append("nothing was found that a rule could allow")
    return [(key, ["/**"] if "/**" in paths else paths, why, secret) for key, (paths, why, secret) in merged.items()], list(
        dict.fromkeys(notes)
    )


def _possible(where: Place) -> bool:
    try:
        load({"version": 1, "rule": [{"host": where.host, "port": where.port}]})
    except PolicyRefused:
        return False
    return True


def _pattern(path: str, below: str) -> str:
    """A pattern below a path; where the two together make none, everything below the path, and at last everything."""
    for text in (path + below, path + "/**"):
        try:
            return str(PathPattern.parse(text))
        except ValueError:
            continue
    return "/**"


def _text(value: str) -> str:
    return json.dumps(value.encode("ascii", "replace").decode().replace("\x7f", "?"))


def _long(text: str) -> str:
    lines: Sequence[str] = text.split("\n")
    return '"""\n' + "\n".join(_text(line)[1:-1] for line in lines) + '"""'
