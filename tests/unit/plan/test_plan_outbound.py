"""The filter of the dialer's uid: its golden text, its ranges against the table, and what reading back makes of answers."""

from __future__ import annotations

import copy
from ipaddress import ip_address, ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.plan import outbound
from space.core.plan.outbound import Outbound
from space.core.policy.addresses import Address, kind_of, refused_ranges

GOLDEN = Path(__file__).parents[2] / "golden" / "plan"
_FILTER = Outbound(
    54321,
    ((ip_address("127.0.0.53"), 53), (ip_address("fd00::53"), 53)),
    tuple(map(ip_network, ("10.1.0.0/16", "10.0.0.0/16", "10.1.2.3/32", "fd00:1::/64"))),
)
_ADDRESSES = st.ip_addresses(v=4) | st.ip_addresses(v=6)


def _listing() -> dict[str, Any]:
    """As the kernel gives it: every chain followed by its rules, ranges and prefixes mixed, handles, counts."""
    items = copy.deepcopy(outbound.expected(_FILTER))
    for handle, item in enumerate(items):
        for kind, body in item.items():
            body["handle"] = handle
            if kind == "counter":
                body |= {"packets": handle, "bytes": 60 * handle}
            if kind == "set":
                body["elem"] = [low if low == high else {"range": [low, high]} for low, high in body["elem"]]
    return {"nftables": [{"metainfo": {"version": "1.0.6"}}, *items]}


def test_text_is_the_golden_one() -> None:
    assert outbound.text(_FILTER) == (GOLDEN / "outbound.nft").read_text()


def test_listing_of_what_was_written_is_recognised() -> None:
    assert outbound.canonical(_listing()) == outbound.expected(_FILTER)


@pytest.mark.parametrize("element", ["10.0.0.0/15", "split"])
def test_ranges_and_prefixes_say_the_same(element: str) -> None:
    listing = _listing()
    listed = next(item["set"] for item in listing["nftables"] if item.get("set", {}).get("name") == "listed4")
    listed["elem"] = (
        [{"prefix": {"addr": "10.0.0.0", "len": 15}}]
        if element != "split"
        else [{"prefix": {"addr": "10.1.0.0", "len": 16}}, {"range": ["10.0.0.0", "10.0.255.255"]}]
    )
    assert outbound.canonical(listing) == outbound.expected(_FILTER)


@pytest.mark.parametrize("change", ["uid", "order", "missing", "element", "policy", "more", "verdict"])
def test_any_other_table_is_told_apart(change: str) -> None:
    listing = _listing()
    items = listing["nftables"]
    rules = [item for item in items if "rule" in item]
    match change:
        case "uid":
            rules[-1]["rule"]["expr"][0]["match"]["right"] = 54322
        case "order":
            first, second = items.index(rules[0]), items.index(rules[-2])
            items[first], items[second] = items[second], items[first]
        case "missing":
            items.remove(rules[-2])
        case "element":
            next(item for item in items if item.get("set", {}).get("name") == "refused4")["set"]["elem"].pop()
        case "policy":
            next(item for item in items if item.get("chain", {}).get("name") == "output")["chain"]["policy"] = "drop"
        case "more":
            items.append({"map": {"family": "inet", "table": _FILTER.table, "name": "more", "handle": 99}})
        case _:
            rules[-2]["rule"]["expr"][-1] = {"accept": None}
    assert outbound.canonical(listing) != outbound.expected(_FILTER)


@pytest.mark.parametrize(
    "wrong", [None, {}, {"nftables": [{"set": {"elem": [{"prefix": {"addr": "x", "len": 1}}]}}]}, {"nftables": [{"set": {"elem": [7]}}]}]
)
def test_answer_that_is_no_listing_is_an_error(wrong: Any) -> None:
    with pytest.raises(ValueError):
        outbound.canonical(wrong)


def _is_refused(address: Address) -> bool:
    return any(int(first) <= int(address) <= int(last) for first, last in refused_ranges(address.version))


@given(_ADDRESSES)
def test_ranges_hold_exactly_what_the_table_calls_special(address: Address) -> None:
    assert _is_refused(address) == (kind_of(address) is not None)


def test_edges_of_every_range_are_special_and_their_neighbours_are_not() -> None:
    for version in (4, 6):
        for first, last in refused_ranges(version):
            assert kind_of(first) is not None
            assert kind_of(last) is not None
            top = (1 << first.max_prefixlen) - 1
            assert int(first) == 0 or kind_of(first - 1) is None
            assert int(last) == top or kind_of(last + 1) is None


@given(st.lists(st.ip_addresses(v=4), max_size=5), st.lists(st.integers(8, 32), min_size=5, max_size=5))
def test_listed_sets_never_overlap_and_hold_what_was_listed(addresses: list[Any], lengths: list[int]) -> None:
    networks = tuple(ip_network(f"{address}/{length}", strict=False) for address, length in zip(addresses, lengths, strict=False))
    found = next(
        item["set"]["elem"] for item in outbound.expected(Outbound(1, (), networks)) if item.get("set", {}).get("name") == "listed4"
    )
    ends = [(int(ip_address(low)), int(ip_address(high))) for low, high in found]
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ends))
    assert sum(high - low + 1 for low, high in ends) == _size(networks)
    assert all(any(low <= int(one.network_address) and int(one.broadcast_address) <= high for low, high in ends) for one in networks)


def _size(networks: tuple[Any, ...]) -> int:
    edges = sorted({int(one.network_address) for one in networks} | {int(one.broadcast_address) + 1 for one in networks})
    return sum(
        high - low
        for low, high in pairwise(edges)
        if any(int(one.network_address) <= low <= int(one.broadcast_address) for one in networks)
    )
