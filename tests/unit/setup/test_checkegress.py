"""What doctor concludes of egress, and that it looks for real."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from space.config.settings import Settings
from space.setup import checkegress
from space.setup.checkegress import Edge, Outside, judge_edge, judge_outside
from space.setup.checkup import FAILURE, OK, WARNING, Check

GOOD = Outside("a", ("192.0.2.53 port 53",), (), "", Path("/k"), "")


@pytest.mark.parametrize(
    ("check", "level", "words"),
    [
        (judge_edge(Edge("")), OK, "TPROXY"),
        (judge_edge(Edge(None)), OK, "only root"),
        (judge_edge(Edge("no such rule")), FAILURE, "no such rule"),
        (judge_outside(GOOD), OK, "192.0.2.53 port 53"),
        (judge_outside(replace(GOOD, key=None, keyring=None)), OK, "resolvers"),
        (judge_outside(replace(GOOD, resolvers=())), WARNING, "set egress_resolvers"),
        (judge_outside(replace(GOOD, exposed=("169.254.0.0/16",))), WARNING, "169.254.0.0/16"),
        (judge_outside(replace(GOOD, authorities="/ca.pem holds no certificate")), FAILURE, "egress_ca_file"),
        (judge_outside(replace(GOOD, key="is mode 0644 of uid 0")), FAILURE, "keyring /k is mode 0644"),
    ],
)
def test_what_is_concluded(check: Check, level: str, words: str) -> None:
    assert check.level == level
    assert words in f"{check.detail} {check.remedy}"
    assert bool(check.remedy) == (level != OK)


def test_settings_are_looked_at_against_the_machine(tmp_path: Path) -> None:
    settings = replace(
        Settings(), egress_resolvers=("192.0.2.1:5353",), egress_reachable=("10.0.0.0/8", "169.254.0.0/16", "169.254.169.254/32")
    )
    found = checkegress.see_outside("a", settings, None)
    assert (found.resolvers, found.exposed, found.key) == (("192.0.2.1 port 5353",), ("169.254.0.0/16",), None)
    for text, words in ((None, "cannot be read"), ("nothing", "holds no certificate")):
        path = tmp_path / "ca.pem"
        if text is not None:
            path.write_text(text)
        assert words in checkegress.see_outside("a", replace(settings, egress_ca_file=str(path)), None).authorities


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_the_kernels_rules_are_tried_and_a_wrong_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkegress.see_edge() == Edge("")
    for part in ("type filter hook ingress", "tproxy ip to", "reject with tcp reset", "fib daddr type", "meta skuid"):
        assert part in checkegress.PROBE
    monkeypatch.setattr(checkegress, "PROBE", "table ip probe {\n chain x { nonsense }\n}\n")
    assert "nonsense" in str(checkegress.see_edge().error)
