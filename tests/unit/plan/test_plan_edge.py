"""The plan of a slot with egress: its golden text, what it admits, and what reading back tells apart."""

from __future__ import annotations

import copy
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.plan import edge
from space.core.plan.edge import Plan

GOLDEN = Path(__file__).parents[2] / "golden" / "plan"
RANGE = IPv4Network("198.18.0.0/15")
NAMES, OPEN = Plan(RANGE), Plan(RANGE, literal=True)


TO_BE_RESET = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": edge.REFUSED_MARK}}


def _match_meta(key: str, right: str | int) -> dict[str, Any]:
    return {"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}}


def _rules(plan: Plan, chain: str) -> list[list[dict[str, Any]]]:
    return [item["rule"]["expr"] for item in edge.expected(plan) if "rule" in item and item["rule"]["chain"] == chain]


@pytest.mark.parametrize(("plan", "name"), [(NAMES, "edge.nft"), (OPEN, "edge-literal.nft")])
def test_text_is_the_golden_one(plan: Plan, name: str) -> None:
    assert edge.ruleset(plan) == (GOLDEN / name).read_text()


@pytest.mark.parametrize("plan", [NAMES, OPEN])
def test_every_chain_at_a_hook_drops_and_every_other_ends_in_a_refusal(plan: Plan) -> None:
    for item in edge.expected(plan):
        if "chain" not in item:
            continue
        chain = item["chain"]
        assert chain.get("policy", "drop") == "drop"
        last = _rules(plan, chain["name"])[-1]
        assert last[-1] == {"drop": None} or last[-2:] == [TO_BE_RESET, {"accept": None}], chain["name"]
        assert len([part for part in last if "counter" in part]) == 1


@pytest.mark.parametrize("plan", [NAMES, OPEN])
def test_what_is_marked_for_a_reset_meets_nothing_before_it(plan: Plan) -> None:
    first, second, *others = _rules(plan, "prerouting")
    entered, marked = _match_meta("iifname", "tap0"), _match_meta("mark", edge.REFUSED_MARK)
    assert first == [entered, marked, _match_meta("l4proto", 6), {"reject": {"type": "tcp reset"}}]
    assert second == [entered, marked, {"drop": None}]
    assert not any(marked in rule for rule in others)
    assert len({edge.REFUSED_MARK, edge.MARK}) == 2, "no routing rule knows it"


@pytest.mark.parametrize("plan", [NAMES, OPEN])
def test_what_enters_is_admitted_where_it_is_said_and_nowhere_else(plan: Plan) -> None:
    admitted = [
        (item["rule"]["chain"], item["rule"]["expr"][-2]["counter"])
        for item in edge.expected(plan)
        if "rule" in item
        and item["rule"]["family"] == "netdev"
        and item["rule"]["expr"][-1] == {"accept": None}
        and TO_BE_RESET not in item["rule"]["expr"]
    ]
    assert sorted(admitted) == [
        ("guest_arp", "admitted_arp"),
        ("guest_tcp", "admitted_dns"),
        *([("guest_tcp", "admitted_literal")] if plan.literal else []),
        ("guest_tcp", "admitted_tcp"),
        ("guest_udp", "admitted_dns"),
    ]


def test_every_counter_is_used_and_one_by_literal_plans_alone() -> None:
    used = {part["counter"] for item in edge.expected(NAMES) if "rule" in item for part in item["rule"]["expr"] if "counter" in part}
    assert used == {*edge.REFUSED, *edge.ADMITTED, *edge.HOST} - {"admitted_literal"}


def test_plans_differ_in_their_destinations_only() -> None:
    names, more = edge.expected(NAMES), edge.expected(OPEN)
    assert [item for item in names if item not in more] == []
    assert [item["rule"]["chain"] for item in more if item not in names] == ["guest_tcp"]
    flushed, *added = edge.change(OPEN).splitlines()
    assert flushed == "flush chain netdev space guest_tcp"
    prefix = "add rule netdev space guest_tcp "
    text = edge.ruleset(OPEN)
    assert [f"\t\t{line.removeprefix(prefix)}\n" in text for line in added] == [True] * len(_rules(OPEN, "guest_tcp"))


def _listing(plan: Plan) -> dict[str, Any]:
    items = copy.deepcopy(edge.expected(plan))
    for handle, item in enumerate(items):
        for body in item.values():
            body["handle"] = handle
    return {"nftables": [{"metainfo": {"version": "1.0.6"}}, *items]}


def test_order_of_chains_and_rules_in_a_listing_makes_no_difference() -> None:
    listing = _listing(NAMES)
    items = listing["nftables"]
    rules = [item for item in items if "rule" in item]
    listing["nftables"] = [item for item in items if item not in rules] + rules
    assert edge.loaded(listing) == edge.expected(NAMES)


@given(st.data(), st.sampled_from([NAMES, OPEN]))
def test_any_rule_lost_moved_or_doubled_is_found(data: st.DataObject, plan: Plan) -> None:
    listing = _listing(plan)
    items = listing["nftables"]
    rules = [index for index, item in enumerate(items) if "rule" in item]
    one = data.draw(st.sampled_from(rules))
    match data.draw(st.sampled_from(["lost", "moved", "doubled", "verdict"])):
        case "lost":
            del items[one]
        case "moved":
            same = [index for index in rules if items[index]["rule"]["chain"] == items[one]["rule"]["chain"] and index != one]
            other = data.draw(st.sampled_from(same)) if same else one
            if items[one]["rule"]["expr"] == items[other]["rule"]["expr"]:
                return
            items[one], items[other] = items[other], items[one]
        case "doubled":
            items.insert(one, copy.deepcopy(items[one]))
        case _:
            items[one]["rule"]["expr"][-1] = {"continue": None}
    assert edge.loaded(listing) != edge.expected(plan)


@given(st.integers(0, 2**32 - 1), st.integers(0, 32))
def test_range_is_taken_only_where_no_host_address_is(address: int, prefix: int) -> None:
    network = IPv4Network((address, prefix), strict=False)
    never = [IPv4Network(text) for text in ("0.0.0.0/8", "10.0.0.0/30", "127.0.0.0/8", "224.0.0.0/3")]
    right = 8 <= prefix <= 24 and not any(network.overlaps(other) for other in never)
    try:
        assert edge.parse_range(str(network)) == network
    except ValueError:
        assert not right
    else:
        assert right


@given(st.text(max_size=30))
def test_range_has_one_spelling(text: str) -> None:
    try:
        network = edge.parse_range(text)
    except ValueError:
        return
    assert str(network) == text
