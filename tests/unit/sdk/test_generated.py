"""The synchronous SDK is what the tool makes of the asynchronous one, and has the same methods."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from space import sdk

TOOL = Path(__file__).parents[3] / "tools/unasync.py"


def test_the_committed_code_is_current() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PAIRS = [(getattr(sdk, name.removeprefix("Async")), getattr(sdk, name)) for name in sdk.__all__ if name.startswith("Async")]


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS)
def test_both_forms_have_the_same_methods_and_parameters(sync: type, asynchronous: type) -> None:
    def methods(cls: type) -> dict[str, list[str]]:
        found = {name: value for name, value in inspect.getmembers(cls) if callable(value) and not name.startswith("_")}
        return {name.replace("aclose", "close"): list(inspect.signature(value).parameters) for name, value in found.items()}

    assert methods(sync) == methods(asynchronous)
    assert not any(inspect.iscoroutinefunction(value) for _, value in inspect.getmembers(sync))
