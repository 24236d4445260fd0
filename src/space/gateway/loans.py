"""Which grant a request gets, what is taken out of it for that, and what is put in. No I/O.

    Grants.chosen(asked, verdict, head) -> Loan | None      judged: which grant, by which slot
    loan.lease = ...                                        the value, from the broker
    left(head.fields, outline), loan.filled(...)            without the guest's credentials, and with the lent one
    loan.wire()                                             for what comes back

A grant is for requests that an explicit rule allows, https alone. What a guest puts into the slot, or says as a credential besides, goes no
further: it is another one's key, by which data could leave in a request that looks like the tenant's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from typing import assert_never

from space.core.credentials import placeholders, sigv4, slots
from space.core.credentials.grant import Basic, Header, Outline, Placeholder, Query, Sigv4, Slot
from space.core.credentials.placeholders import Places
from space.core.credentials.sigv4 import Chunks
from space.core.credentials.tripwire import Needles, Tripwire
from space.core.policy.agreement import Flow
from space.core.policy.paths import Path
from space.core.policy.verdict import Allow, Asked
from space.core.wire.http1 import Field, RequestHead, request_end_to_end
from space.gateway import telling

# A reply in pieces, or packed, could not be searched.
_UNSEARCHED = frozenset({b"accept-encoding", b"range", b"if-range"})
_PLAIN: Field = (b"accept-encoding", b"identity")
_AUTHORIZATION = b"authorization"


class Lease:
    """A credential for some requests within some time, which whoever lends it counts. sought: what of it may not come back."""

    __slots__ = ("more", "slot", "sought", "value", "version")

    def __init__(self, slot: Slot, value: bytes, more: dict[str, bytes], version: int, sought: Needles) -> None:
        self.slot, self.value, self.more, self.version, self.sought = slot, value, more, version, sought


class Loan:
    """Of one request. outline: None where a rule names a grant that the sandbox does not have for it: the broker says why.

    wanted: whether anything is to be put in (a placeholder has to be there). lease: once it was lent. Of a request that is signed:
    collects: its body is needed whole first, for its digest; chunks: its body goes through these.
    """

    __slots__ = ("chunks", "collects", "digest", "grant", "lease", "outline", "wanted")

    def __init__(self, grant: str, outline: Outline | None, *, wanted: bool) -> None:
        self.grant, self.outline, self.wanted = grant, outline, wanted
        self.lease: Lease | None = None
        self.collects = False
        self.digest = b""
        self.chunks: Chunks | None = None

    @property
    def lacks(self) -> bool:
        """Whether a credential has yet to be lent for it."""
        return self.wanted and self.lease is None

    def filled(self, head: RequestHead, flow: Flow, path: Path) -> tuple[bytes, tuple[Field, ...]]:
        """The target as it is sent on, and what stands in the head besides what is `left` of the guest's. Unfit."""
        if self.lease is not None and isinstance(self.lease.slot, Sigv4):
            return self._signed(head, flow, path, self.lease, self.lease.slot)
        return self._target(path), self._put_in(head.fields)

    def unsignable(self, head: RequestHead, path: Path) -> str | None:
        """Why it cannot be signed, where it has to be."""
        if self.outline is None or not isinstance(self.outline.slot, Sigv4):
            return None
        try:
            kind, _ = sigv4.payload(head.fields, self.outline.slot.service, body=head.framing.kind != "none")
            sigv4.check(path.text, path.query)
        except sigv4.Unsignable as refused:
            return refused.reason
        self.collects = kind == "digest"
        return None

    def _signed(self, head: RequestHead, flow: Flow, path: Path, lease: Lease, slot: Sigv4) -> tuple[bytes, tuple[Field, ...]]:
        assert self.outline is not None
        fields = request_end_to_end(left(head.fields, self.outline), head.options)
        query = None if path.query is None else query_left(path.query, self.outline)
        key = sigv4.Key(lease.more.get("access_key_id", b""), lease.value, lease.more.get("session_token", b""))
        try:
            kind, digest = sigv4.payload(head.fields, slot.service, body=head.framing.kind != "none")
            digest = self.digest if kind == "digest" else digest
            if not digest:
                raise slots.Unfit("nobody made the digest of its body")
            signed = sigv4.sign(head.method, flow.authority, path.text, query, fields, digest, key, slot.service, slot.region, time.time())
        except sigv4.Unsignable as refused:
            raise slots.Unfit(str(refused)) from None
        self.chunks = sigv4.Chunks(signed) if kind == "chunks" else None
        return signed.target, signed.fields

    def _put_in(self, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        lease, outline = self.lease, self.outline
        if lease is None or outline is None:
            return ()
        match lease.slot:
            case Header(name=name, template=template):
                usual = "Bearer {}" if name == "authorization" and not template else template
                return ((name.encode(), slots.header(usual, lease.value)),)
            case Basic(username=username):
                user, password = lease.more.get("username", username.encode()), lease.value
                if not user:
                    user, _, password = lease.value.partition(b":")
                return ((_AUTHORIZATION, slots.basic(user, password)),)
            case Placeholder() as slot if slot.inside != "query":
                return (_swapped(fields, slot, outline.placeholder, lease.value),)
            case Placeholder() | Query():
                return ()
            case Sigv4():
                raise slots.Unfit("a request is signed as a whole")
            case _:
                assert_never(lease.slot)

    def _target(self, path: Path) -> bytes:
        lease, outline = self.lease, self.outline
        if outline is None:
            return path.target.encode("ascii")
        query = path.query
        left = None if query is None else query_left(query, outline)
        if lease is not None:
            if isinstance(lease.slot, Query):
                left = slots.parameter(left, lease.slot.name, lease.value)
            elif isinstance(lease.slot, Placeholder) and lease.slot.inside == "query":
                found = placeholders.swapped_query(query or "", lease.slot.name, outline.placeholder.encode(), lease.value)
                if found is None:
                    raise slots.Unfit("the placeholder is not in the query any more")
                mine = [part for part in found.split("&") if lease.slot.name.lower().replace("_", "-") in slots.keys(part)]
                left = "&".join([*([left] if left else []), mine[0]])
        return (path.text if left is None else f"{path.text}?{left}").encode("ascii")

    def wire(self) -> Tripwire | None:
        """For what the upstream says; None where nothing was put in."""
        return None if self.lease is None else Tripwire(self.lease.sought)

    @property
    def cookies(self) -> bool:
        """Whether the guest may have those that the upstream sets."""
        return self.outline is not None and "cookie" in self.outline.keep


class Grants:
    """The grants of one sandbox as the broker told them last."""

    def __init__(self, outlines: Iterable[Outline] = ()) -> None:
        self._by_name = {one.name: one for one in outlines}
        self._by_place: dict[tuple[str, int], tuple[Outline, ...]] = {}
        for one in self._by_name.values():
            place = one.host, one.port
            self._by_place[place] = (*self._by_place.get(place, ()), one)
        self.places = Places({one.name: one.placeholder for one in self._by_name.values() if one.placeholder})

    def holds(self, loan: Loan) -> bool:
        """Whether a grant that was chosen earlier is there still, and the same."""
        return loan.outline is None or self._by_name.get(loan.outline.name) == loan.outline

    def chosen(self, asked: Asked, verdict: Allow, fields: tuple[Field, ...]) -> Loan | None:
        """What its rule names; else the first of these that is for such a request, one whose placeholder is there before others."""
        if verdict.rule is None or asked.scheme != "https":  # no rule: it is allowed by `open`, or by a mode
            return None
        if verdict.grant is not None:
            one = self._by_name.get(verdict.grant)
            if one is None or not one.covers(asked.name, asked.port, asked.method, asked.path):
                return Loan(verdict.grant, None, wanted=True)
            return Loan(one.name, one, wanted=_wanted(one, fields, asked.path))
        here = self._by_place.get((asked.name, asked.port))
        if here is None:
            return None
        covering = [one for one in here if one.covers(asked.name, asked.port, asked.method, asked.path)]
        for one in covering:
            if _wanted(one, fields, asked.path):
                return Loan(one.name, one, wanted=True)
        return Loan(covering[0].name, covering[0], wanted=False) if covering else None

    def foreign(self, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        """Fields that may be credentials of the guest's own: those with a placeholder are none of its."""
        if not self.places:
            return fields
        marked = [one for one in self._by_name.values() if one.placeholder]
        return tuple([field for field in fields if not any(_its_own(field, _place(one.slot), one) for one in marked)])

    def misplaced(self, loan: Loan | None, fields: tuple[Field, ...], path: Path) -> str | None:
        """A grant whose placeholder stands in a request elsewhere than in its slot toward its host."""
        if not self.places:
            return None
        query, outline = path.query, None if loan is None else loan.outline
        if outline is not None and isinstance(outline.slot, Placeholder):
            name = _place(outline.slot)
            if outline.slot.inside == "query":
                query = None if query is None else slots.without_keys(query, lambda key: _is(key, name))
            else:
                fields = tuple([field for field in fields if not _its_own(field, name, outline)])
        target = path.text if query is None else f"{path.text}?{query}"
        found = self.places.found(fields, target.encode("ascii"))
        return found[0].name if found else None


NONE = Grants()


def left(fields: tuple[Field, ...], outline: Outline) -> tuple[Field, ...]:
    """A guest's fields without slot, credentials, and what would hide an echo."""
    return _left(fields, outline.slot, outline.keep)


@lru_cache(16)
def _left(fields: tuple[Field, ...], slot: Slot, keep: tuple[str, ...]) -> tuple[Field, ...]:
    name, kept = _place(slot), frozenset(keep)

    anew = sigv4.ANEW if isinstance(slot, Sigv4) else frozenset()

    def drops(usual: bytes) -> bool:
        text = usual.decode("ascii")
        return slots.bare(usual) == name or usual in _UNSEARCHED or usual in anew or (text not in kept and telling.is_credential(text))

    return (*slots.without(fields, drops), _PLAIN)


def query_left(query: str, outline: Outline) -> str | None:
    """A guest's query likewise."""
    slot, kept = outline.slot, frozenset(outline.keep)
    within = isinstance(slot, Query) or (isinstance(slot, Placeholder) and slot.inside == "query")
    name = _place(slot) if within else b""
    return slots.without_keys(query, lambda key: _is(key, name) or (key not in kept and telling.is_credential(key)))


def _is(key: str, name: bytes) -> bool:
    return slots.bare(key.encode("utf-8", "replace")) == name


def _place(slot: Slot) -> bytes:
    """The field, or the parameter, in its bare spelling."""
    match slot:
        case Basic() | Sigv4():
            return _AUTHORIZATION
        case Placeholder(inside="basic"):
            return _AUTHORIZATION
        case _:
            return slots.bare(slot.name.lower().encode())


def _wanted(outline: Outline, fields: tuple[Field, ...], path: Path) -> bool:
    """Whether something is to be put in: always, but for a placeholder that is not there."""
    slot, mark = outline.slot, outline.placeholder.encode()
    if not isinstance(slot, Placeholder):
        return True
    if not mark:
        return False
    if slot.inside == "query":
        return path.query is not None and placeholders.swapped_query(path.query, slot.name, mark, mark) is not None
    name = _place(slot)
    return any(_its_own(field, name, outline) for field in fields)


def _its_own(field: Field, name: bytes, outline: Outline) -> bool:
    """Whether a field is the slot with the placeholder in it."""
    mark = outline.placeholder.encode()
    return slots.bare(field[0]) == name and _swap(outline.slot, field[1], mark, mark) is not None


def _swapped(fields: tuple[Field, ...], slot: Placeholder, mark: str, secret: bytes) -> Field:
    name = _place(slot)
    for field in fields:
        if slots.bare(field[0]) == name and (made := _swap(slot, field[1], mark.encode(), secret)) is not None:
            return (_AUTHORIZATION if slot.inside == "basic" else slot.name.encode()), made
    raise slots.Unfit("the placeholder is not in its field any more")


def _swap(slot: Slot, value: bytes, mark: bytes, secret: bytes) -> bytes | None:
    inside = isinstance(slot, Placeholder) and slot.inside == "basic"
    return (placeholders.swapped_basic if inside else placeholders.swapped_header)(value, mark, secret)
