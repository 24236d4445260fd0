"""Public suffixes: names under which anybody may register. A rule for one would be a rule for everybody below it."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _list() -> Any:
    from publicsuffixlist import PublicSuffixList  # 30 ms: only who loads a policy needs it

    return PublicSuffixList()


def is_public_suffix(name: str) -> bool:
    """Whether a canonical name is a public suffix; a name of one label always is."""
    return "." not in name or bool(_list().is_public(name))
