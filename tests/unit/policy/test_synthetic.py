"""Synthetic addresses: one for a name, never another's while somebody may hold it."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.kept import SIZE, Kept
from space.core.policy.synthetic import NoAddress, SyntheticAddresses

SMALL = IPv4Network("198.18.0.0/28")


def test_a_name_keeps_its_address_and_an_address_its_name() -> None:
    table = SyntheticAddresses()
    first, second = table.address("a.example", 0.0), table.address("b.example", 0.0)
    assert first != second
    assert table.address("a.example", 500.0) == first
    assert (table.name(first), table.name(second)) == ("a.example", "b.example")


def test_an_address_that_was_never_given_has_no_name() -> None:
    table = SyntheticAddresses(SMALL, most=4)
    given_out = table.address("a.example", 0.0)
    assert [address for address in SMALL if table.name(address) is not None] == [given_out]
    assert given_out not in (SMALL[0], SMALL[-1])


def test_a_full_table_refuses_while_every_name_is_held() -> None:
    table = SyntheticAddresses(SMALL, most=2, hold=10.0)
    table.address("a", 0.0)
    table.address("b", 5.0)
    with pytest.raises(NoAddress):
        table.address("c", 9.9)
    third = table.address("c", 10.0)
    assert table.name(third) == "c"
    assert len(table) == 2


def test_a_flow_holds_its_address_for_as_long_as_it_stands() -> None:
    table = SyntheticAddresses(SMALL, most=1, hold=10.0)
    address = table.address("a", 0.0)
    table.flow_began("a")
    table.flow_began("a")
    with pytest.raises(NoAddress):
        table.address("b", 1000.0)
    table.flow_ended("a", 1000.0)
    with pytest.raises(NoAddress):
        table.address("b", 2000.0)
    table.flow_ended("a", 2000.0)
    with pytest.raises(NoAddress):
        table.address("b", 2009.0)
    assert table.address("b", 2010.0) != address


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 20), st.booleans()), max_size=60))
def test_no_address_changes_its_name_within_the_hold_or_a_flow(steps: list[tuple[str, float, bool]]) -> None:
    table = SyntheticAddresses(SMALL, most=4, hold=30.0)
    now = 0.0
    believed: dict[object, tuple[str, float]] = {}
    flows: set[str] = set()
    for name, wait, flow in steps:
        now += wait
        try:
            address = table.address(name, now)
        except NoAddress:
            continue
        before = believed.get(address)
        if before is not None and before[0] != name:
            assert now - before[1] >= 30.0
            assert before[0] not in flows
        believed[address] = (name, now)
        if flow and name not in flows:
            table.flow_began(name)
            flows.add(name)
        for held in flows:
            assert any(table.name(known) == held for known in believed)  # type: ignore[arg-type]


def test_address_means_its_name_for_the_next_table_as_well_and_is_as_late_to_be_reused() -> None:
    memory = bytearray(SIZE)
    first = SyntheticAddresses(IPv4Network("198.18.0.0/24"), most=3, hold=10.0, kept=Kept(memory))
    given = {name: first.address(name, 5.0) for name in ("a.example.com", "b.example.com", "c.example.com")}
    second = SyntheticAddresses(IPv4Network("198.18.0.0/24"), most=3, hold=10.0, kept=Kept(memory))
    assert {name: second.name(address) for name, address in given.items()} == {name: name for name in given}
    assert second.address("b.example.com", 7.0) == given["b.example.com"]
    with pytest.raises(NoAddress):
        second.address("d.example.com", 14.0)
    fresh = second.address("d.example.com", 15.0)
    assert fresh not in given.values()
    third = SyntheticAddresses(IPv4Network("198.18.0.0/24"), most=3, hold=10.0, kept=Kept(memory))
    assert [third.name(given[name]) for name in sorted(given)] == [None, "b.example.com", "c.example.com"]
    elsewhere = SyntheticAddresses(IPv4Network("100.64.0.0/24"), most=3, kept=Kept(memory))
    assert len(elsewhere) == 0
    assert elsewhere.address("b.example.com", 16.0) in IPv4Network("100.64.0.0/24")


@given(st.integers(0, 2**30), st.integers(1, 40))
def test_addresses_begin_where_it_is_said_and_go_round(first: int, names: int) -> None:
    network = IPv4Network("198.18.0.0/27")
    table = SyntheticAddresses(network, most=30, first=first)
    given_out = [table.address(f"n{number}.example.com", 0.0) for number in range(min(names, 30))]
    assert len(set(given_out)) == len(given_out)
    assert all(network.network_address < address < network.broadcast_address for address in given_out)
    assert int(given_out[0]) - int(network.network_address) == (first - 1) % 30 + 1
