"""The report of a run, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

from space_evaluate.outcome import Run


def write(run: Run, directory: Path) -> None:
    """report.json there."""
    directory.mkdir(parents=True, exist_ok=True)
    told = run.as_json() | {"outcomes": [one.as_json() for one in run.outcomes]}
    (directory / "report.json").write_text(json.dumps(told, indent=1) + "\n")
