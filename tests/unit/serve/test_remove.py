"""Private instances that nobody is left to remove are found and removed; those that somebody has are not touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from space.config.instance import abandoned, claim, load
from space.serve import layout
from space.serve.remove import remove_abandoned
from space.setup import doctor


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "data", tmp_path / "run"


def lost(name: str, roots: tuple[Path, Path]) -> None:
    """A private instance whose serve dies right after its claim."""
    pid = os.fork()
    if pid == 0:
        try:
            claim(name, ephemeral=True, data_root=roots[0], run_root=roots[1])
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_only_what_nobody_has_is_removed(roots: tuple[Path, Path]) -> None:
    data, run = roots
    claim("kept", data_root=data, run_root=run)
    claim("mine", ephemeral=True, data_root=data, run_root=run)
    lost("lost", roots)
    lost("held", roots)
    held = load("held", data_root=data, run_root=run)
    assert held is not None
    held.run.mkdir(parents=True)
    lock = layout.lock(held)  # somebody serves it again
    assert remove_abandoned(data, run) == ["lost"]
    assert sorted(entry.name for entry in (data / "instances").iterdir()) == [".blocks", "held", "kept", "mine"]
    os.close(lock)
    assert remove_abandoned(data, run) == ["held"]
    assert abandoned(data_root=data, run_root=run) == []
    assert len(list((data / "instances" / ".blocks").iterdir())) == 2


def test_doctor_names_them(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lost("lost", roots)
    found = abandoned(data_root=roots[0], run_root=roots[1])
    monkeypatch.setattr(doctor, "instances", lambda: iter(found))
    check = doctor.leftovers()
    assert not check.ok
    assert "instance lost, whose serve was killed" in check.detail
    assert remove_abandoned(*roots) == ["lost"]
