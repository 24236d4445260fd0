"""A policy drafted from what was seen: as little as was asked for, for reading only, and to be read by a person before it holds.

    draft(seen) -> TOML text, which the loader takes whatever was seen

What is seen comes from a guest, and may be made to be drafted: so nothing is written that a person would overlook. Requests that do more
than read stand as comments, with their counts; paths are exact while there are few of them, and are put together where a folder holds many;
text of the guest's stands quoted everywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from space.core.policy.loader import PolicyRefused, load
from space.core.policy.names import NameRefused, canon
from space.core.policy.paths import PathPattern

READING = ("GET", "HEAD")
MOST_PATHS = 8  # of a rule, before folders are put together
_MOST_SIBLINGS = 3  # in a folder, before it is
_MOST_HOSTS = 500
_CUT = 1024  # a recorded path of that length may go on


@dataclass(frozen=True, slots=True)
class Seen:
    """Something that was asked for. name: of the host. method, path: empty where only a name or a connection was seen."""

    name: str
    port: int = 443
    scheme: str = "https"
    method: str = ""
    path: str = ""
    count: int = 1


@dataclass(slots=True)
class _Host:
    count: int = 0
    looked_up: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    others: Counter[tuple[str, str]] = field(default_factory=Counter)


def draft(seen: Iterable[Seen], *, title: str = "") -> str:
    """The text of a policy. title: its first line, a comment."""
    hosts: dict[tuple[str, int, str], _Host] = {}
    names: Counter[str] = Counter()
    for one in seen:
        if not one.method and one.scheme in ("https", "http") and not one.port:
            names[one.name] += one.count
            continue
        host = hosts.setdefault((one.name, one.port, one.scheme), _Host())
        host.count += one.count
        if one.method in READING:
            host.reads[one.path] += one.count
        elif one.method:
            host.others[(one.method, one.path)] += one.count
    known = {name for name, _, _ in hosts}
    parts = [_head(title)]
    taken: dict[tuple[str, int], str] = {}
    for (name, port, scheme), host in sorted(hosts.items(), key=lambda item: (-item[1].count, item[0]))[:_MOST_HOSTS]:
        clash = taken.setdefault((name, port), scheme)
        parts.append(_rule(name, port, scheme, host, clash=clash))
    for name, count in sorted(names.items(), key=lambda item: (-item[1], item[0]))[:_MOST_HOSTS]:
        if name not in known:
            parts.append(_looked_up(name, count))
    left = max(0, len(hosts) - _MOST_HOSTS) + max(0, len(names) - _MOST_HOSTS)
    if left:
        parts.append(f"# and {left} more hosts\n")
    return "\n".join(parts)


def _head(title: str) -> str:
    lines = [f"# {quoted(title)[1:-1]}"] if title else []
    lines += [
        "# A draft: code in the sandbox asked for this, which is no reason to allow it. Read every rule, drop what is not needed.",
        "version = 1",
    ]
    return "\n".join(lines) + "\n"


def _rule(name: str, port: int, scheme: str, host: _Host, *, clash: str) -> str:
    lines = [f"# {_times(host.count, 'request') if host.reads or host.others else _times(host.count, 'connection')}"]
    row = _where(name, port, scheme)
    if clash != scheme:
        return _commented([*lines, f"# {quoted(name)} speaks {clash} on port {port} above"], row, "two schemes on one port")
    if scheme in ("https", "http"):
        row["methods"] = list(READING)
        row["paths"] = list(grouped(host.reads)) if host.reads else ["/**"]
    lines += [f"# not in it: {quoted(method)} {quoted(path)} ({_times(count, 'request')})" for (method, path), count in _most(host.others)]
    wrong = _mistake(row)
    if wrong:
        return _commented(lines, row, wrong)
    if scheme in ("https", "http") and not host.reads:
        what = "nothing but requests that do more than read was seen" if host.others else "no request was seen, so no path is known"
        return _commented(lines, row, what)
    return "\n".join([*lines, *_table(row)]) + "\n"


def _looked_up(name: str, count: int) -> str:
    lines = [f"# {_times(count, 'look-up')}, and no request was seen, for the name was refused"]
    row: dict[str, Any] = {"host": name, "methods": list(READING)}
    wrong = _mistake(row)
    return _commented(lines, row, wrong) if wrong else "\n".join([*lines, *_table(row)]) + "\n"


def _where(name: str, port: int, scheme: str) -> dict[str, Any]:
    if scheme == "tcp":
        return {"tcp": f"{name}:{port}"}
    row: dict[str, Any] = {"host": name}
    if scheme == "http":
        row["scheme"] = "http"
    if port != (80 if scheme == "http" else 443):
        row["port"] = port
    return row


def _mistake(row: dict[str, Any]) -> str:
    name = row["host"] if "host" in row else row["tcp"].rpartition(":")[0]
    try:
        if canon(name) != name:  # a guest that asks for `*.example.com` must not get a wildcard
            return "a name that is not in its canonical form"
        load({"version": 1, "rule": [row]})
    except NameRefused as refused:
        return str(refused)
    except PolicyRefused as refused:
        return refused.notes[0].message
    return ""


def _commented(lines: Sequence[str], row: dict[str, Any], why: str) -> str:
    return "\n".join([*lines, f"# left out: {quoted(why)[1:-1]}", *(f"# {line}" for line in _table(row))]) + "\n"


def _table(row: dict[str, Any]) -> list[str]:
    return ["[[rule]]", *(f"{key} = {_value(value)}" for key, value in row.items())]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    """As a TOML string of printable ASCII on one line, whatever it holds."""
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is, and for halves of surrogate pairs, which TOML does not have.
    whole = "".join(letter if letter.isprintable() and letter.isascii() else "?" for letter in text[:_CUT])
    return json.dumps(whole)


def _times(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _most(counts: Counter[tuple[str, str]]) -> list[tuple[tuple[str, str], int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_PATHS]


# -- paths ------------------------------------------------------------------------------------------------------------


def grouped(paths: Iterable[str]) -> tuple[str, ...]:
    """Patterns that match every one of these paths: exact while there are few, a folder and all below it where it holds many."""
    wanted = sorted(set(paths))
    found = {path: _exact(path) for path in wanted}
    depth = max((pattern.count("/") for pattern in found.values()), default=0)
    while len(set(found.values())) > MOST_PATHS and depth > 0:
        folders = Counter(_folder(pattern) for pattern in set(found.values()))
        for path, pattern in found.items():
            if pattern.count("/") >= depth and (folders[_folder(pattern)] > _MOST_SIBLINGS or len(set(found.values())) > MOST_PATHS * 4):
                found[path] = _below(_folder(pattern))
        if not any(pattern.count("/") >= depth for pattern in found.values()) or all(
            folders[_folder(pattern)] <= _MOST_SIBLINGS for pattern in set(found.values()) if pattern.count("/") >= depth
        ):
            depth -= 1
    if len(set(found.values())) > MOST_PATHS * 4:
        return ("/**",)
    return tuple(_without_covered(sorted(set(found.values()))))


def _exact(path: str) -> str:
    """A pattern for that path and no other; its folder where there is none (a `*` in it, or it was cut off)."""
    try:
        pattern = PathPattern.parse(path)
    except ValueError:
        pattern = None
    if pattern is not None and "*" not in path and len(path) < _CUT and pattern.matches(path):
        return path
    return _valid(_below(_folder(path.partition("*")[0] if path.startswith("/") else "/")))


def _folder(pattern: str) -> str:
    """`/a/b` and `/a/**` of which `/a/` is the folder; the root's is itself."""
    bare = pattern.removesuffix("/**") if pattern.endswith("/**") else pattern
    return bare.rpartition("/")[0] + "/"


def _below(folder: str) -> str:
    return folder + "**"


def _valid(pattern: str) -> str:
    try:
        PathPattern.parse(pattern)
    except ValueError:
        return "/**"
    return pattern


def _without_covered(patterns: list[str]) -> list[str]:
    kept: list[str] = []
    for pattern in sorted(patterns, key=lambda one: (not one.endswith("/**"), len(one))):
        if not any(other.endswith("/**") and pattern.startswith(other[:-2]) for other in kept):
            kept.append(pattern)
    return sorted(kept)
