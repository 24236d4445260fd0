"""A service's data directory has one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from space.config.hold import hold
from space.model.errors import Conflict


def test_a_second_process_on_one_data_directory_is_told_who_is_the_first(tmp_path: Path) -> None:
    held = hold(tmp_path, "node")
    with pytest.raises(Conflict, match=f"another node works in {tmp_path}: pid {os.getpid()}"):
        hold(tmp_path, "node")
    os.close(held)
    os.close(hold(tmp_path, "node"))


@pytest.mark.parametrize("role", ["node", "control"])
def test_both_servers_take_the_hold(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    import importlib
    import socket
    import sys

    from space.config.instance import claim
    from space.config.settings import Settings, save_effective

    instance = claim("one", data_root=tmp_path / "data", run_root=tmp_path / "run")
    instance.run.mkdir(parents=True)
    save_effective(instance, Settings(port=0))
    place = instance.node_data if role == "node" else instance.control_data
    place.mkdir()
    held = hold(place, role)
    with socket.socketpair()[0] as listener:
        program = [role, "--instance", "one", "--listen-fd", str(listener.detach())]
        monkeypatch.setattr(sys, "argv", [*program, "--data-root", str(tmp_path / "data"), "--run-root", str(tmp_path / "run")])
        mask = os.umask(0o077)
        try:
            assert importlib.import_module(f"space.{role}.server").main() == 1
        finally:
            os.umask(mask)
    os.close(held)
    assert f"another {role} works in {place}" in caplog.text
