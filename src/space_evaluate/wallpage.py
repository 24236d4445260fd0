"""The page of what other walls let through, made of what `walls` found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Found = Mapping[str, Mapping[str, Mapping[str, Any]]]  # {wall: {technique: {"group", "reached", "of", "evidence"}}}
_WORDS = {"addresses": "a filter of addresses", "proxy": "squid with a list of names"}
_HEAD = """# What other walls let through

Written by `python -m space_evaluate.walls --page`, from a run in the evaluation's town: the techniques of the network that share a guest,
under the narrow policy, against two walls as people deploy them. *A filter of addresses*: a router with nftables that lets out to the
addresses which allowed names have, learned from the DNS replies that pass. *squid*: a router that forwards nothing, and squid with the
same names (CONNECT to port 443 only). What is counted is what the oracles of the evaluation saw: that a name, method, path, address or
question got out which the policy of `space` does not allow. Neither of the two claims to judge methods and paths: where a row is about
those, it says what a wall of that kind does not do. `space` lets none of them through ([evaluation.md](evaluation.md)).

The two published bypasses are `forged-reply`, and `sni` with `host-field`.
"""


def page(found: Found) -> str:
    """In Markdown: by group, then each technique."""
    walls = list(found)
    names = sorted({name for rows in found.values() for name in rows}, key=lambda name: (_group(found, name), name))
    lines = [
        _HEAD,
        "| group | techniques | " + " | ".join(f"through {_WORDS[wall]}" for wall in walls) + " |",
        "|---|---|" + "---|" * len(walls),
    ]
    for group in sorted({_group(found, name) for name in names}):
        here = [name for name in names if _group(found, name) == group]
        counts = [str(sum(bool(found[wall].get(name, {}).get("reached")) for name in here)) for wall in walls]
        lines.append(f"| {group} | {len(here)} | {' | '.join(counts)} |")
    lines += ["", "## Each technique", "Variants that got through, of those that were tried.", ""]
    lines += ["| technique | " + " | ".join(_WORDS[wall] for wall in walls) + " | for example |", "|---|" + "---|" * (len(walls) + 1)]
    lines += [f"| `{name}` | {' | '.join(_cell(found[wall].get(name)) for wall in walls)} | {_example(found, name)} |" for name in names]
    return "\n".join(lines) + "\n"


def _group(found: Found, name: str) -> str:
    return next(str(rows[name]["group"]) for rows in found.values() if name in rows)


def _cell(row: Mapping[str, Any] | None) -> str:
    return "not tried" if row is None else f"{len(row['reached'])} of {row['of']}" if row["reached"] else "none"


def _example(found: Found, name: str) -> str:
    seen = next((str(rows[name]["evidence"]) for rows in found.values() if rows.get(name, {}).get("evidence")), "")
    plain = "".join(each if each.isprintable() and each not in "|`<>" else "." for each in seen)
    return plain[:110]
