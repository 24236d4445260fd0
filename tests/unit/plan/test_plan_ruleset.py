"""The ruleset: its golden text, and what reading back makes of answers. That text and expectation agree is tested on the kernel."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from space.core.plan import ruleset

GOLDEN = Path(__file__).parents[2] / "golden" / "plan"


def _listing() -> dict[str, Any]:
    items = copy.deepcopy(ruleset.expected())
    for handle, item in enumerate(items):
        for kind, body in item.items():
            body["handle"] = handle
            if kind == "counter":
                body |= {"packets": handle, "bytes": 60 * handle}
    return {"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}}, *items]}


def test_text_is_the_golden_one() -> None:
    assert ruleset.ruleset() == (GOLDEN / "ruleset.nft").read_text()


def test_nothing_is_accepted() -> None:
    assert "accept" not in ruleset.ruleset()
    chains = [item["chain"] for item in ruleset.expected() if "chain" in item]
    assert {chain["hook"] for chain in chains} == {"ingress", "output"}
    assert {chain["policy"] for chain in chains} == {"drop"}
    rules = [item["rule"]["expr"] for item in ruleset.expected() if "rule" in item]
    assert all(rule[-1] == {"drop": None} for rule in rules)


@pytest.mark.parametrize("device", [{}, {"dev": "tap0"}, {"dev": ["tap0"]}])
def test_handles_counts_and_versions_make_no_difference(device: dict[str, Any]) -> None:
    listing = _listing()
    for item in listing["nftables"]:
        if item.get("chain", {}).get("hook") == "ingress":
            item["chain"] |= device
    assert ruleset.canonical(listing) == ruleset.expected()


@pytest.mark.parametrize("change", ["policy", "order", "missing", "more", "verdict"])
def test_any_other_ruleset_is_told_apart(change: str) -> None:
    listing = _listing()
    items = listing["nftables"]
    rules = [item for item in items if "rule" in item]
    match change:
        case "policy":
            next(item for item in items if "chain" in item)["chain"]["policy"] = "accept"
        case "order":
            first, second = items.index(rules[0]), items.index(rules[1])
            items[first], items[second] = items[second], items[first]
        case "missing":
            items.remove(rules[-1])
        case "more":
            items.append({"table": {"family": "ip", "name": "nat", "handle": 99}})
        case _:
            rules[2]["rule"]["expr"][-1] = {"accept": None}
    assert ruleset.canonical(listing) != ruleset.expected()


@pytest.mark.parametrize(
    "wrong", [None, [], {}, {"nftables": {}}, {"nftables": [1]}, {"nftables": [{"a": 1, "b": 2}]}, {"nftables": [{"rule": 1}]}]
)
def test_answer_that_is_no_listing_is_an_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match="not a"):
        ruleset.canonical(wrong)


def test_counters_are_read_by_name() -> None:
    found = ruleset.counters(_listing())
    assert set(found) == {*ruleset.COUNTERS, "host_output"}
    assert found["foreign_mac"] == 1
