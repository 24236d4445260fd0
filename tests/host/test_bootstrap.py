"""`setup/bootstrap` where it must refuse: one sentence, before anything is changed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from space.testing.machine import isolated_python

BOOTSTRAP = Path(__file__).resolve().parents[2] / "setup/bootstrap"
WITHOUT = "exec setpriv --bounding-set=-{0} --inh-caps=-{0} setup/bootstrap --check"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exec setpriv --reuid=1000 --regid=1000 --clear-groups setup/bootstrap --check", "run it as root"),
        (WITHOUT.format("sys_admin"), "root lacks CAP_SYS_ADMIN"),
        (WITHOUT.format("net_admin"), "root lacks CAP_NET_ADMIN"),
        ("mount -t tmpfs none /proc; exec setup/bootstrap --check", "/proc is not mounted"),
        ("mount -t tmpfs none /sys; exec setup/bootstrap --check", "/sys is not mounted"),
        (
            "echo 'ID=debian\nVERSION_ID=13' >os; mount --bind os /etc/os-release; exec setup/bootstrap --check",
            "'debian 13' on x86_64",
        ),
        ("exec setup/bootstrap --wrong", "does not know --wrong"),
    ],
)
def test_a_machine_that_cannot_do_it_is_told_in_one_sentence(script: str, sentence: str) -> None:
    """In a mount namespace of its own, from a copy that every uid can read, wherever the checkout is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "setup").mkdir()
        shutil.copy(BOOTSTRAP, Path(name) / "setup")
        done = subprocess.run(
            [isolated_python(), "-I", "-m", "space.testing.mountns", "sh", "-ec", script],
            cwd=name,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("space: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
