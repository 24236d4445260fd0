"""From what policies say to the document of a sandbox: judged, narrowed to what its tenant may have, put together. On threads."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from space.control import limits, shelf
from space.control.policy_store import LayerRow, Texts
from space.control.shelf import Shelf
from space.core.policy import document
from space.core.policy.document import DocumentRefused, Level
from space.core.policy.loader import Note, PolicyRefused, load
from space.model.egress import PolicyNote
from space.model.errors import InvalidArgument, TooLarge

T = TypeVar("T")
_MOST_TEXT = 300
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy that is one. source: the digest of `data`, which is what it says."""

    source: str
    data: bytes
    rules: int
    open: bool
    records: bool
    warnings: tuple[PolicyNote, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A document. digest: empty where nothing may leave. reason: why the layers make none, and so nothing leaves."""

    digest: str = ""
    data: bytes = b""
    open: bool = False
    reason: str | None = None


class Compiler:
    """One for all: so many at a time."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._room = asyncio.Semaphore(limits.POLICY_READING)
        self._made: OrderedDict[tuple[Any, ...], Made] = OrderedDict()
        self._shelf: tuple[tuple[Any, ...], Shelf] | None = None

    async def judge(self, policy: Mapping[str, Any], level: Level) -> Judged:
        """InvalidArgument with every mistake as `details`; TooLarge."""
        return await self._on_thread(lambda: _judged(policy, level, self._on_shelf()))

    async def make(self, operator: LayerRow, tenant: LayerRow, own: str) -> Made:
        """The document of a sandbox. own: what its own policy says, by digest."""
        if not own:
            return Made()
        key = (operator.source, tenant.source, tenant.permits, own, shelf.stamp())
        found = self._made.get(key)
        if found is None:
            sources: dict[Level, str] = {"operator": operator.source, "tenant": tenant.source, "sandbox": own}
            data = {level: await self._texts.get(source) for level, source in sources.items() if source}
            found = await self._on_thread(lambda: _made(data, tenant.permits, self._on_shelf()))
            self._made[key] = found
            while sum(len(one.data) for one in self._made.values()) > limits.POLICY_CACHE or len(self._made) > _REMEMBERED:
                if len(self._made) == 1:
                    break
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return found

    def _on_shelf(self) -> Shelf:
        now = shelf.stamp()
        if self._shelf is None or self._shelf[0] != now:
            self._shelf = (now, shelf.read())
        return self._shelf[1]

    async def _on_thread(self, work: Callable[[], T]) -> T:
        async with self._room:
            return await asyncio.to_thread(work)


def _judged(policy: Mapping[str, Any], level: Level, there: Shelf) -> Judged:
    try:
        loaded = load(policy, name=level, presets=there.rules, bundles=frozenset(there.bundles))
        data = document.canonical(policy)
    except PolicyRefused as refused:
        raise not_right(refused.notes) from None
    except (DocumentRefused, RecursionError) as error:
        raise InvalidArgument(f"the policy is not right: {str(error)[:_MOST_TEXT]}", hint="docs/policy.md has an example") from None
    if len(data) > document.MOST_BYTES:
        raise TooLarge(f"a policy of {len(data)} bytes, at most {document.MOST_BYTES} are possible")
    found = loaded.policy
    return Judged(document.digest(data), data, len(found.rules), found.open, found.mode == "record", notes(loaded.warnings))


def _made(data: Mapping[Level, bytes], permits: Collection[str], there: Shelf) -> Made:
    policies: dict[Level, dict[str, Any]] = {level: json.loads(text) for level, text in data.items()}
    policies["sandbox"] = within(policies["sandbox"], permits)
    try:
        composed = document.compose(policies, presets=there.presets, bundles=there.bundles)
        return Made(document.digest(composed), composed, document.read(composed).open)
    except DocumentRefused as refused:
        return Made(reason=str(refused)[:_MOST_TEXT])


def within(policy: Mapping[str, Any], permits: Collection[str]) -> dict[str, Any]:
    """A policy without what its tenant may not have: a permission that is taken back closes what it had opened."""
    kept = dict(policy)
    if "open" not in permits:
        kept.pop("open", None)
    if kept.get("mode") == "record" and "record" not in permits:
        del kept["mode"]
    return kept


def not_right(mistakes: Sequence[Note]) -> InvalidArgument:
    """The refusal of a policy."""
    first, more = mistakes[0], len(mistakes) - 1
    said = f"the policy is not right: {first.path[:80]}: {first.message[:_MOST_TEXT]}" + (f", and {more} more" if more else "")
    fault = InvalidArgument(said, hint=first.hint[:_MOST_TEXT] or "`space policy check` says all of it offline")
    fault.details = [{"path": one.path, "message": one.message, "hint": one.hint} for one in notes(mistakes)]
    return fault


def notes(given: Sequence[Note]) -> tuple[PolicyNote, ...]:
    """As many as somebody reads, none of them long."""
    return tuple(PolicyNote(one.path[:80], one.message[:_MOST_TEXT], one.hint[:_MOST_TEXT]) for one in given[: limits.POLICY_NOTES])
