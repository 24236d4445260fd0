"""What a worker says to dialer and keeper of the records: exactly what `encode` gives, or refused."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
from tests.fuzz.engine.guided import Target

from space.audit import chain, records
from space.core.policy import names
from space.core.wire import dialing, workertalk


def fuzz_dialing(data: bytes) -> None:
    try:
        request = dialing.decode(data)
    except dialing.DialingRefused:
        return
    assert dialing.decode(dialing.encode(request)) == request
    if isinstance(request, dialing.Took):
        return
    assert 1 <= request.port <= 65_535
    assert request.literal or names.canon(request.name) == request.name


_DIALING = (
    dialing.encode(dialing.Request(1, 2, "a.example.com", 443)),
    dialing.encode(dialing.Request(9, 2**53, "8.8.8.8", 53, literal=True)),
)
_DIALING_WORDS = (
    b'"id":',
    b'"literal":true',
    b'"name":"',
    b"127.0.0.1",
    b"0177.0.0.1",
    b"::1",
    b"\\u002e",
    b"1e3",
    b"-0",
    b"[[[[",
    b'"sandbox":"x",',
)


def fuzz_records(data: bytes) -> None:
    """What a worker or the dialer says to the keeper of the records, and what of it stands in a chain."""
    try:
        said, number = records.decode_all(data)
    except records.RecordRefused:
        return
    for record in said:
        note = records.Note(record, number)
        assert records.decode(records.encode(note)) == note
        with suppress(ValueError):  # longer than a line can be
            line = chain.Writer("gateway").line(msgspec.json.encode(record))
            assert line.count(b"\n") == 1
            assert json.loads(line)["n"] == 1
            assert chain.ending(line)[0] == 1


def fuzz_workertalk(data: bytes) -> None:
    """What worker and node say to each other."""
    for read in (workertalk.from_worker, workertalk.from_node):
        try:
            said = read(data)
        except workertalk.TalkRefused:
            continue
        assert read(workertalk.encode(said)) == said
        assert not isinstance(said, workertalk.Ask) or (1 <= said.port <= 65_535 and 0 < len(said.host) <= 253)


_TALK = (
    workertalk.encode(workertalk.Ask(ask=7, host="a.example.com", port=443, scheme="https", method="GET", path="/", rule="r")),
    workertalk.encode(workertalk.AskOver(7)),
    workertalk.encode(workertalk.Counted(connections=1, requests=2, sent=3, received=4)),
    workertalk.encode(workertalk.Alarm(kind="credential_echoed", grant="g", host="a.example.com", count=2)),
    workertalk.encode(workertalk.Answer(7, allow=True)),
)
_SEEDS: tuple[records.Kept, ...] = (
    records.NameDecided(sandbox="sb-x", name="a.example.com", qtype=1, reason="name_not_allowed"),
    records.Requested(sandbox="sb-x", id="r1", name="a.example.com", port=443, method="GET", path="/", query=("a", "b"), status=200),
    records.Connected(sandbox="sb-x", id="c1", name="a.example.com", port=443, seconds=1.5),
    records.CredentialRead(sandbox="sb-x", id="c1", grant="g", name="a.example.com", port=443),
    records.Dialled(sandbox="sb-x", name="a.example.com", port=443, address="192.0.2.1"),
    records.Repeated(sandbox="sb-x", of="name", reason="x", count=3),
)
_RECORDS = tuple(records.encode(records.Note(one, number)) for number, one in enumerate(_SEEDS))

_WORDS = (b"\xc0", b"\xcb\x7f\xf8", b"\xd9\xff", b"\xdd\xff\xff\xff\xff", b"sandbox", b"reason")
DIALING = Target("dialing", (dialing, names), fuzz_dialing, _DIALING, _DIALING_WORDS)
RECORDS = Target("records", (records, chain), fuzz_records, _RECORDS, _WORDS)
TALK = Target("workertalk", (workertalk,), fuzz_workertalk, _TALK, _WORDS)
