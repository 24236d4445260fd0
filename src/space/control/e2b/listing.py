"""Lists of sandboxes: E2B's filters, order and cursors, over what is in memory."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote, unquote_plus

from space.control.call import Call, number
from space.control.e2b import views
from space.control.e2b.seat import metadata
from space.control.e2b.sizes import ours
from space.control.e2b.store import ExtrasStore
from space.control.records import Record
from space.model.errors import InvalidArgument

_STATES = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True)
class Filter:
    """after: creation in microseconds and id of the last one shown."""

    states: frozenset[str] = _STATES
    metadata: Mapping[str, str] | None = None
    ascending: bool = False
    since_us: int = 0
    template: str | None = None
    limit: int = 100
    after: tuple[int, str] | None = None


def parse(call: Call) -> Filter:
    """InvalidArgument names the parameter."""
    states = call.argument("state")
    wanted = _STATES if states is None else frozenset(states.replace("pausing", "paused").split(","))
    if not wanted <= _STATES:
        raise InvalidArgument(f"state: {states!r} is none", hint="running, paused, or both with a comma")
    order = call.argument("order") or "desc"
    if order not in ("asc", "desc"):
        raise InvalidArgument(f"order: asc or desc, not {order[:16]!r}")
    token = call.argument("nextToken")
    return Filter(
        states=wanted,
        metadata=pairs(call.argument("metadata")),
        ascending=order == "asc",
        since_us=_since(call.argument("startedAfter")),
        template=call.argument("template"),
        limit=number(call.argument("limit"), "limit", default=100, least=1, most=100),
        after=None if not token else _from_token(token),
    )


def pairs(text: str | None) -> dict[str, str] | None:
    """`k=v&k2=v2`. The SDKs quote names and values, then the pairs (and then the parameter, which was undone before)."""
    if not text:
        return None
    found = {}
    for part in text.split("&"):
        name, there, value = part.partition("=")
        if not there:
            raise InvalidArgument(f"metadata: {part[:64]!r} is no name=value")
        found[unquote(unquote_plus(name))] = unquote(unquote_plus(value))
    return found


def page(records: list[Record], extras: ExtrasStore, wanted: Filter) -> tuple[list[Record], str | None]:
    """One page and the token for the next one."""
    found = sorted((one for one in records if _fits(one, extras, wanted)), key=_place, reverse=not wanted.ascending)
    if wanted.after is not None:
        last = wanted.after
        found = [one for one in found if (_place(one) > last if wanted.ascending else _place(one) < last)]
    shown = found[: wanted.limit]
    return shown, _to_token(shown[-1]) if len(found) > wanted.limit else None


def _place(record: Record) -> tuple[int, str]:
    return record.created_us, record.id


def _fits(record: Record, extras: ExtrasStore, wanted: Filter) -> bool:
    known = extras.of(record.id)
    if views.state(record) not in wanted.states or record.created_us < wanted.since_us:
        return False
    if wanted.template is not None:
        name, tag = views.template(record, known), ours(wanted.template)
        if tag not in (ours(name), ours(name).partition(":")[0]):
            return False
    if wanted.metadata:
        has = metadata(record, known)
        return all(has.get(name) == value for name, value in wanted.metadata.items())
    return True


def _since(text: str | None) -> int:
    if text is None:
        return 0
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a client that does not quote its `+`
        if moment.tzinfo is None:
            raise ValueError(text)
        return int(moment.timestamp() * 1e6)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"startedAfter: {text[:40]!r} is no time", hint="RFC 3339, with a zone") from None


def _to_token(record: Record) -> str:
    return base64.urlsafe_b64encode(f"{record.created_us}.{record.id}".encode()).decode().rstrip("=")


def _from_token(text: str) -> tuple[int, str]:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
        created, _, last = raw.partition(".")
        if not created.isdigit() or len(created) > 18 or len(last) != 23:
            raise ValueError(created)
        return int(created), last
    except (ValueError, binascii.Error):
        raise InvalidArgument("nextToken: not one that this server gave", hint="take that of the page before, unchanged") from None
