"""The published bypasses succeed against a filter of addresses in the evaluation's town: its oracles see what gets through."""

from __future__ import annotations

import subprocess

from space_evaluate.ground import ground
from space_evaluate.walls import compare

BYPASSES = ("forged-reply", "host-field", "sni")  # the guest's own reply is believed; a shared address, by Host and by SNI


def test_forged_replies_and_shared_addresses_get_past_a_filter_of_addresses() -> None:
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    with ground() as place:
        found = compare(place, "addresses", BYPASSES)
    assert set(found) == set(BYPASSES)
    assert "of the resolver" in found["forged-reply"]["reached"], found
    assert place.told.callback_at in found["forged-reply"]["evidence"]
    assert "hidden" in found["host-field"]["reached"], found
    assert "hidden" in found["sni"]["reached"], found
    assert [row["errors"] for row in found.values()] == [0, 0, 0]
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout == before
