"""The examples of docs/policy.md are what the page says of them, and no key or reason is missing there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

from space.core.policy import loader
from space.core.policy.loader import load
from space.core.policy.presets import load_preset
from space.core.policy.verdict import Layer, Reason, Stack
from space.policy.cases import cases, run

PAGE = (Path(__file__).parents[3] / "docs/policy.md").read_text()
POLICY, CASES, PRESET = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_hold_together() -> None:
    preset = load_preset(tomllib.loads(PRESET), "pip")
    assert preset.warnings == ()
    policy = load(tomllib.loads(POLICY), name="page", presets={"pip": preset.rules}).policy
    results = run(Stack([Layer(policy)]), cases(tomllib.loads(CASES)))
    assert [result.outcome for result in results if not result.ok] == []
    assert len(results) == 6


def test_every_key_and_reason_is_on_the_page() -> None:
    words = set(re.findall(r"`([a-z_]+)`", PAGE))
    assert words >= loader._TOP | loader._RULE
    assert words >= set(get_args(Reason))
