"""The page of other walls: counts are of techniques that got through, and nothing that a server saw is markup."""

from __future__ import annotations

from space_evaluate.wallpage import page

ROW = {"group": "tls", "reached": ["hidden"], "of": 4, "errors": 0, "evidence": "saw `x` | <b> of hidden.example.net"}
FOUND = {"addresses": {"sni": ROW, "old": ROW | {"reached": [], "evidence": ""}}, "proxy": {"sni": ROW | {"reached": []}}}


def test_counts_and_cells() -> None:
    text = page(FOUND)
    assert "| tls | 2 | 1 | 0 |" in text
    assert "| `sni` | 1 of 4 | none | saw .x. . .b. of hidden.example.net |" in text
    assert "| `old` | none | not tried |  |" in text
