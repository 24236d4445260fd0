"""A chain tells every record that was removed, changed, put in another order or cut off; a crash's torn line is not called a hand's."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.audit.chain import Finding, Mac, Verified, Writer, resume, verify

KEY = Mac(b"k" * 32)
OTHER = Mac(b"o" * 32)


def written(count: int, writer: str = "gateway") -> tuple[list[bytes], bytes]:
    chain = Writer(writer)
    lines = [chain.line({"name": f"h{at}.example.com", "status": 200, "sandbox": "sb-1"}) for at in range(count)]
    return lines, chain.head(KEY)


def problems(found: Verified) -> list[tuple[str, int]]:
    return [(finding.problem, finding.line) for finding in found.findings]


def test_a_chain_is_lines_of_json_and_is_vouched_for() -> None:
    lines, head = written(3)
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 3]
    found = verify(lines, head, "gateway", KEY)
    assert (found.records, found.unvouched, found.findings, found.intact) == (3, 0, (), True)


def test_an_empty_chain_is_whole() -> None:
    assert verify([], Writer("gateway").head(KEY), "gateway", KEY) == Verified(0, 0, bytes(32), ())


def test_records_after_the_head_are_chained_but_not_vouched_for() -> None:
    lines, _ = written(2)
    chain = resume(lines, "gateway")
    head = chain.head(KEY)
    lines.append(chain.line({"late": True}))
    found = verify(lines, head, "gateway", KEY)
    assert (found.records, found.unvouched, found.intact) == (2, 1, True)


@given(st.integers(1, 8), st.data())
def test_every_change_is_found_where_it_is(count: int, data: st.DataObject) -> None:
    lines, head = written(count)
    at = data.draw(st.integers(0, count - 1))
    line = bytearray(lines[at])
    position = data.draw(st.integers(0, len(line) - 2))
    value = data.draw(st.integers(0, 255).filter(lambda value: value not in (line[position], 10)))
    line[position] = value
    changed = [*lines[:at], bytes(line), *lines[at + 1 :]]
    found = verify(changed, head, "gateway", KEY)
    if line.lower() == lines[at]:  # the hash's digits in upper case say the same
        return
    assert not found.intact
    assert found.findings[0].line == at + 1


@given(st.integers(2, 8), st.data())
def test_every_removal_and_every_other_order_is_found(count: int, data: st.DataObject) -> None:
    lines, head = written(count)
    at = data.draw(st.integers(0, count - 1))
    assert not verify([*lines[:at], *lines[at + 1 :]], head, "gateway", KEY).intact
    other = data.draw(st.integers(0, count - 1).filter(lambda other: other != at))
    swapped = list(lines)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    assert not verify(swapped, head, "gateway", KEY).intact
    assert not verify([*lines[: at + 1], lines[at], *lines[at + 1 :]], head, "gateway", KEY).intact


def test_a_chain_that_is_cut_off_is_found_by_its_head() -> None:
    lines, head = written(5)
    assert problems(verify(lines[:3], head, "gateway", KEY)) == [("cut_off", 0)]
    assert problems(verify([], head, "gateway", KEY)) == [("cut_off", 0)]


def test_a_chain_that_was_written_anew_is_found_by_its_head() -> None:
    _, head = written(3)
    forged = Writer("gateway")
    lines = [forged.line({"name": "innocent.example"}) for _ in range(5)]
    found = verify(lines, head, "gateway", KEY)
    assert problems(found) == [("changed", 3)]
    assert found.records == 0


def test_a_torn_last_line_is_a_crash_and_not_a_hand() -> None:
    lines, head = written(3)
    for cut in range(1, len(lines[2])):
        chain = resume(lines[:2], "gateway")
        found = verify([*lines[:2], lines[2][:cut]], chain.head(KEY), "gateway", KEY)
        assert problems(found) == [("torn", 3)]
        assert found.intact
    torn = verify([*lines[:2], lines[2][:-1]], head, "gateway", KEY)
    assert problems(torn) == [("torn", 3), ("cut_off", 0)]
    assert not torn.intact


def test_a_writer_goes_on_after_a_torn_line() -> None:
    lines, _ = written(3)
    chain = resume([*lines, b'{"n":4,"na'], "gateway")
    assert chain.count == 3
    lines.append(chain.line({"name": "d"}))
    assert verify(lines, chain.head(KEY), "gateway", KEY).records == 4
    with pytest.raises(ValueError, match="does not belong"):
        resume([lines[0], lines[2]], "gateway")


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (None, "head_missing"),
        (b"", "head_forged"),
        (b"{}", "head_forged"),
        (b'{"writer":"gateway","n":1,"h":"zz","mac":""}', "head_forged"),
        (Writer("gateway").head(OTHER), "head_forged"),
        (Writer("dialer").head(KEY), "head_of_another"),
        (Writer("gateway").head(KEY).replace(b'"n":0', b'"n":1'), "head_forged"),
        (Writer("gateway").head(KEY).replace(b'"n":0', b'"n":-1'), "head_forged"),
        (Writer("dialer").head(KEY).replace(b"dialer", b"gateway"), "head_forged"),
    ],
)
def test_a_head_that_is_not_this_brokers_vouches_for_nothing(head: bytes | None, problem: str) -> None:
    lines, _ = written(1)
    found = verify(lines, head, "gateway", KEY)
    assert found.findings[0].problem == problem
    assert found.findings[0].line == 0
    assert (found.records, found.unvouched, found.intact) == (0, 1, False)


def test_the_chains_own_fields_cannot_be_given() -> None:
    for field in ("n", "h"):
        with pytest.raises(ValueError):
            Writer("gateway").line({field: 1})
    with pytest.raises(ValueError):
        Writer("gateway").line({"x": "y" * 70_000})
    with pytest.raises(ValueError):
        Mac(b"short")
    assert "k" * 8 not in repr(KEY)


@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda key: key not in ("n", "h")), st.text(max_size=30) | st.integers(-5, 5) | st.none(), max_size=4
    )
)
def test_any_record_is_read_back_as_it_was_written(fields: dict[str, object]) -> None:
    chain = Writer("gateway")
    line = chain.line(fields)
    assert line.count(b"\n") == 1
    read = json.loads(line)
    assert {key: value for key, value in read.items() if key not in ("n", "h")} == fields
    assert verify([line], chain.head(KEY), "gateway", KEY).intact


@given(st.lists(st.binary(max_size=120), max_size=4))
def test_any_bytes_are_a_finding_and_never_an_exception(lines: list[bytes]) -> None:
    _, head = written(1)
    found = verify(lines, head, "gateway", KEY)
    assert not found.intact
    assert all(isinstance(finding, Finding) for finding in found.findings)
