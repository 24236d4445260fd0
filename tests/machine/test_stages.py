"""What `/metrics` tells of creates of real guests: the stages of a boot, of a clone, and of one that was made ahead."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx

import space
from space.serve.private import Served
from space.testing import machine
from space.testing.machine import Runtime

_COUNT = re.compile(r'space_create_stage_seconds_(count|sum)\{stage="(\w+)",start="(\w+)"\} (\S+)')


def _told(served: Served) -> dict[str, dict[str, tuple[float, float]]]:
    """By how sandboxes began and by stage: how many, and seconds in all."""
    answer = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {served.api_key}"}, trust_env=False)
    found: dict[tuple[str, str], dict[str, float]] = {}
    for kind, stage, start, value in _COUNT.findall(answer.raise_for_status().text):
        found.setdefault((start, stage), {})[kind] = float(value)
    told: dict[str, dict[str, tuple[float, float]]] = {}
    for (start, stage), values in found.items():
        told.setdefault(start, {})[stage] = (values["count"], values["sum"])
    return told


def _one(client: space.Client, start: str) -> None:
    """Sandboxes until one began like that; each runs a command."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        with space.Sandbox.create(client=client) as sandbox:
            sandbox.run(["true"], check=True)
            if sandbox.info().start == start:
                return
        time.sleep(1 if start == "warm" else 5)  # it is baked, or made ahead, when nothing boots
    raise AssertionError(f"no sandbox began {start}")


def test_the_stages_of_one_create_are_histograms_by_how_it_began(runtime: Runtime, tmp_path: Path) -> None:
    with (
        machine.private(runtime, tmp_path / "serve.log", warm_templates="1", clones_ahead="1") as served,
        space.Client(api_url=served.url, api_key=served.api_key) as client,
    ):
        _one(client, "cold")
        assert _told(served).keys() == {"cold"}
        _one(client, "warm")
        _one(client, "pool")
        told = _told(served)
    making = {"queue", "slot", "egress", "first_exec"}
    assert told["cold"].keys() == making | {"disk", "spawn", "boot", "configure"}
    assert told["warm"].keys() == making | {"clone", "spawn", "load", "resume", "hello", "imprint", "claim"}
    assert told["pool"].keys() == making | {"resume", "claim"}
    for start, stages in told.items():
        assert len({count for count, _ in stages.values()}) == 1, (start, stages)
        print(start, {stage: round(total / count * 1000, 2) for stage, (count, total) in stages.items()})
    assert told["cold"]["boot"][1] > 10 * told["pool"]["claim"][1] / told["pool"]["claim"][0]
