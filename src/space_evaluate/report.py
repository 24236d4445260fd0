"""The report of a run: report.json for programs, report.html for people, in one file that needs nothing else, on a phone and on paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from space_evaluate.outcome import Outcome, Run

LIMITS = (
    "What is told to an allowed host, in bodies, paths, queries or by the times of requests, is told: no gateway closes that.",
    "Allowed hosts that fetch, relay or publish for their callers reach whatever they reach; a host that is taken over is still allowed.",
    "Opaque streams and passthrough are not looked into; open policies contain nothing but addresses that are not public.",
    "Sandboxes of one machine share processors, caches and disks, and can signal to each other by load.",
    "Under emulation the processor is no boundary: figures of emulated guests say nothing of the hypervisor.",
    "No observed escape is no proof: this is what was tried.",
)
_COUNTS = ("techniques", "attempts", "stopped", "reached", "errors")
_STYLE = """
:root{color-scheme:light dark;--line:#8884;--bad:#b3261e;--good:#1b7f3b;--odd:#9a6700}
*{box-sizing:border-box}body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem}h2{margin-top:2.2rem;font-size:1.25rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}
.big{display:flex;flex-wrap:wrap;gap:.75rem}.big div{border:1px solid var(--line);border-radius:.5rem;padding:.6rem 1rem;min-width:8rem}
.big b{display:block;font-size:1.7rem}.reached{color:var(--bad)}.stopped{color:var(--good)}.error{color:var(--odd)}
details{border-bottom:1px solid var(--line);padding:.35rem 0}summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.8rem;margin:.4rem 0}
code{overflow-wrap:anywhere}
@media print{body{max-width:none;font-size:11px}details{break-inside:avoid}a{color:inherit}}
"""


def write(run: Run, directory: Path) -> None:
    """report.json and report.html there."""
    directory.mkdir(parents=True, exist_ok=True)
    told = run.as_json() | {"outcomes": [one.as_json() for one in run.outcomes], "limits": list(LIMITS)}
    (directory / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    (directory / "report.html").write_text(page(run))


def page(run: Run) -> str:
    """The page. Everything that came from a guest is escaped."""
    about = run.surroundings
    body = [
        f"<h1>Security evaluation of space {escape(about.get('version', ''))}</h1>",
        _big(run),
        "<h2>Surroundings</h2>",
        _table(("", ""), ((key, value) for key, value in about.items())),
        "<h2>By group and outcome</h2>",
        _table(
            ("group", "techniques", "attempts", "stopped", "reached", "errors"),
            (
                (group, *(row[key] for key in ("techniques", "attempts", "stopped", "reached", "errors")))
                for group, row in run.by_group().items()
            ),
        ),
        "<h2>By goal and policy</h2>",
        _table(("goal", "policy", "attempts", "stopped", "reached", "errors"), _by_goal(run.outcomes)),
        "<h2>Mutations: which techniques notice that a defence is gone</h2>",
        _table(("defence", "noticed by"), _noticed(run.mutations)),
        "<h2>Techniques</h2>",
        *_techniques(run.outcomes),
        "<h2>What no gateway can close, and what this cannot say</h2>",
        "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in LIMITS) + "</ul>",
        "<h2>To repeat it</h2>",
        "<pre>space evaluate --report DIR\nspace evaluate --technique ID --report DIR</pre>",
    ]
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return f"{head}<title>Security evaluation of space</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"


def _big(run: Run) -> str:
    told = run.as_json()
    good, bad, odd = "stopped", "reached", "error"
    figures: tuple[tuple[str, Any, str], ...] = (
        ("verdict", "passed" if run.passed else "failed", good if run.passed else bad),
        ("techniques", told["techniques"], ""),
        ("attempts", told["attempts"], ""),
        ("reached", run.reached, bad if run.reached else good),
        ("errors", run.errors, odd if run.errors else good),
        ("controls", "all worked" if run.controls_ok else "failed", good if run.controls_ok else bad),
        ("seconds", round(run.seconds), ""),
    )
    return (
        '<div class="big">'
        + "".join(f'<div>{name}<b class="{kind}">{escape(str(value))}</b></div>' for name, value, kind in figures)
        + "</div>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def cell(tag: str, value: object) -> str:
        return f"<{tag}{' class=n' if isinstance(value, int) else ''}>{escape(str(value))}</{tag}>"

    lines = "".join("<tr>" + "".join(cell("td", one) for one in row) + "</tr>" for row in rows)
    return '<div class="scroll"><table><tr>' + "".join(cell("th", one) for one in head) + f"</tr>{lines}</table></div>"


def _by_goal(outcomes: Sequence[Outcome]) -> Iterable[Sequence[Any]]:
    for goal, policy in sorted({(one.attempt.goal, one.attempt.policy) for one in outcomes}):
        here = [one.word for one in outcomes if (one.attempt.goal, one.attempt.policy) == (goal, policy)]
        yield goal, policy, len(here), here.count("stopped"), here.count("reached"), here.count("error")


def _techniques(outcomes: Sequence[Outcome]) -> Iterable[str]:
    ordered = sorted(outcomes, key=lambda one: (one.attempt.entry.group, one.attempt.entry.id))
    for group, of_group in groupby(ordered, key=lambda one: one.attempt.entry.group):
        yield f"<h3>{escape(group)}</h3>"
        for name, found in groupby(of_group, key=lambda one: one.attempt.entry.id):
            yield _technique(name, list(found))


def _technique(name: str, found: Sequence[Outcome]) -> str:
    told = found[0].attempt.entry.technique
    worst = next((word for word in ("reached", "error") if any(one.word == word for one in found)), "stopped")
    by = sorted({each for one in found for each in one.by})
    about = f"claim {told.claim}; defences: {', '.join(told.defences)}" + (f"; from: {told.source}" if told.source else "")
    more = f"<p>{escape(told.blank)}</p>" if told.blank else ""
    attempts = "".join(_attempt(one) for one in found)
    head = f'<b>{escape(name)}</b> <span class="{worst}">{worst}</span> {len(found)} attempts: {escape(told.tries)}'
    return f"<details><summary>{head}</summary><p>{escape(about)}. Stopped by: {escape(', '.join(by)[:600])}</p>{more}{attempts}</details>"


def _attempt(one: Outcome) -> str:
    what = escape(" ".join(filter(None, (one.attempt.goal, one.attempt.policy, one.attempt.variant))))
    return f'<pre><span class="{one.word}">{one.word}</span> {what} ({one.seconds:.1f} s)\n{escape(chr(10).join(one.evidence))}</pre>'


def _noticed(found: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Rows of the table; a blank has the reason that is written for it."""
    why = {defence: str(row.get("reason", "")) for defence, row in _mutated().items()}
    for defence, ids in found.items():
        yield defence, ", ".join(ids) or f"none of these: {why.get(defence) or 'nobody has said why'}"


def mutations() -> Mapping[str, Sequence[str]]:
    """The checked-in table: {defence: [ids of the techniques that noticed its removal]}."""
    return {defence: row["noticed"] for defence, row in _mutated().items()}


def _mutated() -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_name("mutations.json")
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {"defences": {}}
    return table["defences"]
