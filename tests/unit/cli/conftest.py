"""The command line's tests know nothing of the file of whoever runs them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client's own file would be; it is not there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SPACE_INSTANCE", raising=False)
    return tmp_path / "config/space/config.toml"
