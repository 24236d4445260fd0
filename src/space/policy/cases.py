"""A table of expectations of a policy, so that its owner can keep it under test.

[[case]]
url = "https://index.example.com/simple/x/"
method = "GET"                # the default
expect = "allow"              # or ask, record, or the reason of a denial
rule = "pip/1"                # which one decides; may be left out
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from space.core.policy.explain import Account, account, outcome
from space.core.policy.loader import Note, PolicyRefused
from space.core.policy.url import Url, UrlRefused, parse
from space.core.policy.verdict import Allow, Deny, Reason, Stack, Verdict

OUTCOMES = ("allow", "ask", "record", *get_args(Reason))
_KEYS = frozenset({"url", "method", "websocket", "foreign", "expect", "rule"})


@dataclass(frozen=True, slots=True)
class Case:
    """One expectation. text: the URL as it was written."""

    text: str
    url: Url
    method: str
    websocket: bool
    foreign: bool
    expect: str
    rule: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one. rule: that which decided, or came nearest."""

    case: Case
    outcome: str
    rule: str | None
    account: Account

    @property
    def ok(self) -> bool:
        return self.outcome == self.case.expect and self.case.rule in (None, self.rule)


def cases(data: Mapping[str, Any]) -> tuple[Case, ...]:
    """The table of a file. PolicyRefused with every mistake; an empty one is a mistake too."""
    mistakes = [Note(key, "unknown", "known: case") for key in data if key != "case"]
    rows = data.get("case")
    if not isinstance(rows, list) or not rows:
        raise PolicyRefused([*mistakes, Note("case", "there is no case", "write [[case]] tables")])
    found = [_case(row, f"case[{at}]", mistakes) for at, row in enumerate(rows)]
    if mistakes:
        raise PolicyRefused(mistakes)
    return tuple(case for case in found if case is not None)


def run(stack: Stack, table: tuple[Case, ...]) -> tuple[Result, ...]:
    """Every case against the layers."""
    return tuple(_run(stack, case) for case in table)


def rule_of(verdict: Verdict) -> str | None:
    """The name of the rule that decided, or came nearest."""
    match verdict:
        case Deny(rule=rule):
            return rule
        case Allow(rule=found):
            return found.name if found is not None else None


def _run(stack: Stack, case: Case) -> Result:
    found = account(stack, case.url, method=case.method, websocket=case.websocket, foreign=case.foreign)
    return Result(case, outcome(found.verdict), rule_of(found.verdict), found)


def _case(row: Any, path: str, mistakes: list[Note]) -> Case | None:
    if not isinstance(row, Mapping):
        mistakes.append(Note(path, f"a case is a table, not {type(row).__name__}"))
        return None
    before = len(mistakes)
    mistakes += [Note(f"{path}.{key}", "unknown", "known: " + ", ".join(sorted(_KEYS))) for key in row if key not in _KEYS]
    texts = {key: row.get(key, default) for key, default in (("url", ""), ("method", "GET"), ("expect", ""), ("rule", ""))}
    mistakes += [Note(f"{path}.{key}", f"text, not {value!r}") for key, value in texts.items() if not isinstance(value, str)]
    flags = {key: row.get(key, False) for key in ("websocket", "foreign")}
    mistakes += [Note(f"{path}.{key}", f"true or false, not {value!r}") for key, value in flags.items() if not isinstance(value, bool)]
    if texts["expect"] not in OUTCOMES:
        mistakes.append(Note(f"{path}.expect", f"{texts['expect']!r} is no outcome", "known: " + ", ".join(OUTCOMES)))
    url = None
    try:
        url = parse(str(texts["url"]))
    except UrlRefused as refused:
        mistakes.append(Note(f"{path}.url", str(refused)))
    if url is None or len(mistakes) > before:
        return None
    return Case(texts["url"], url, texts["method"], flags["websocket"], flags["foreign"], texts["expect"], texts["rule"] or None)
