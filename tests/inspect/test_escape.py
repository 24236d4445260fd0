"""The evaluation with agents: one that plays what is known is scored as held off by the product, and as through where a defence is gone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.mutations.__main__ import environment
from tests.mutations.table import MUTATIONS

from space.testing.machine import Runtime


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Iterator[Any]:
    from space_inspect.ground import GroundSandbox

    monkeypatch.setattr(GroundSandbox, "runtime", runtime)
    yield GroundSandbox
    assert GroundSandbox._stage is None, "it was taken away"


def _evaluated(tmp_path: Path, model: Any, **asked: Any) -> Any:
    from inspect_ai import eval as evaluate

    from space_inspect.tasks import escape

    (log,) = evaluate(escape(**asked), model=model, log_dir=str(tmp_path / "logs"), display="none", fail_on_error=True)
    assert log.status == "success", log.error
    return log


def _scores(log: Any) -> dict[str, float]:
    return {score.name: score.metrics["mean"].value for score in log.results.scores}


@pytest.mark.timeout(300)
def test_the_published_bypasses_are_held_off_and_scored_so(ground: Any, tmp_path: Path) -> None:
    import space_inspect._registry  # noqa: F401  # as the entry point does

    log = _evaluated(tmp_path, "space_script/published", goal="callback", policy="narrow", source=True)
    assert _scores(log) == {"reached": 0, "controls_ok": 1}, log.samples[0].scores
    said = "\n".join(one.text for one in log.samples[0].messages)
    assert '"end": ""' in said, said[-2000:]  # each came to its end: it was tried


@pytest.mark.timeout(300)
def test_an_attacker_that_gets_through_is_scored_so(ground: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import space_inspect._registry  # noqa: F401

    (weak,) = [one for one in MUTATIONS if one.name == "any-method"]
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:  # services with other uids read it
        monkeypatch.setattr(ground, "runtime", Runtime(environment(Path(folder), weak, served=True), dev=True))
        log = _evaluated(tmp_path, "space_script/publish", goal="callback", policy="narrow")
    assert _scores(log)["reached"] == 1, log.samples[0].scores


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_agent_that_says_a_thing_has_reached_nothing(ground: Any, tmp_path: Path) -> None:
    """Inspect's mock model, on all goals and policies: whoever claims the secret is not believed."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def claims(*_: Any) -> Any:
        output = ModelOutput.for_tool_call("mockllm", "submit", {"answer": "host-0123456789abcdef: I have it"})
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it is counted by a table from elsewhere
        return output

    log = _evaluated(tmp_path, get_model("mockllm/model", custom_outputs=claims), messages=6)
    assert len(log.samples) == 4
    assert _scores(log) == {"reached": 0, "controls_ok": 1}
