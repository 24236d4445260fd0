"""The unit: what it may not do to sandboxes, and that it comes and goes without a trace."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from space.serve.notify import READY, notify
from space.setup import checkhost, systemd
from space.setup.__main__ import main
from space.setup.faults import SetupFailed

PROGRAM = Path("/usr/bin/true")


def sections(text: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert name not in section, f"{name} twice"
            section[name] = value
    return found


def test_stopping_the_unit_ends_serve_alone_and_a_crash_brings_it_back() -> None:
    service = sections(systemd.unit(PROGRAM))["Service"]
    assert service["KillMode"] == "process"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert service["ExecStart"] == f"{PROGRAM} --instance %i serve"
    assert int(service["TimeoutStopSec"]) > 60 + 10 + 10 + 5  # ending every sandbox, control, the node, rootd


def test_no_option_gives_serve_a_mount_namespace_or_takes_its_devices() -> None:
    service = sections(systemd.unit(PROGRAM))["Service"]
    taboo = (
        "Private", "Protect", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "Bind", "TemporaryFileSystem", "RootDirectory",
        "DynamicUser", "MountFlags", "Delegate", "Device", "RestrictNamespaces", "MemoryDenyWriteExecute", "SystemCallFilter", "User",
        "StateDirectory",
    )  # fmt: skip
    assert not [name for name in service if name.startswith(taboo)]


def test_the_bounding_set_has_what_the_doctor_says_is_needed() -> None:
    assert set(checkhost.CAPABILITIES) <= set(systemd.CAPABILITIES)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="the structural tests stand in where systemd is not installed")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    systemd.install(PROGRAM, root=tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / systemd.DIRECTORY / systemd.UNIT)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "space@" in line]
    assert not ours
    assert done.returncode == 0, done.stderr


def test_it_is_written_once_enabled_when_asked_and_removed(tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def call(*arguments: str) -> bytes:
        calls.append(arguments)
        return b""

    path = tmp_path / systemd.DIRECTORY / systemd.UNIT
    assert systemd.install(PROGRAM, root=tmp_path, call=call) == [f"wrote {path}"]
    assert path.stat().st_mode & 0o7777 == 0o644
    assert systemd.install(PROGRAM, root=tmp_path, call=call) == []
    assert calls == []
    if shutil.which("systemctl"):
        systemd.install(PROGRAM, enable="default", root=tmp_path)
        link = tmp_path / systemd.DIRECTORY / "multi-user.target.wants/space@default.service"
        assert link.is_symlink()
        systemd.install(PROGRAM, enable="other", root=tmp_path)
        assert systemd.forget("other", root=tmp_path, call=call) == ["disabled space@other.service"]
        assert systemd.forget("other", root=tmp_path, call=call) == []
        assert systemd.remove(root=tmp_path, call=call) == ["disabled space@default.service", f"removed {path}"]
    else:
        systemd.remove(root=tmp_path, call=call)
    assert not [file for file in tmp_path.rglob("*") if not file.is_dir()]
    assert systemd.remove(root=tmp_path, call=call) == []
    assert calls == []  # no systemd runs for that root


def test_with_systemd_running_it_is_told_and_units_are_stopped_before_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def call(*arguments: str) -> bytes:
        calls.append((*arguments, str((tmp_path / systemd.DIRECTORY / systemd.UNIT).exists())))
        return b""

    monkeypatch.setattr(systemd, "_runs", lambda root: True)
    systemd.install(PROGRAM, root=tmp_path, call=call)
    systemd.forget("one", root=tmp_path, call=call)
    systemd.remove(root=tmp_path, call=call)
    assert calls == [
        ("daemon-reload", "True"), ("stop", "space@one.service", "True"), ("stop", "space@*.service", "True"), ("daemon-reload", "False"),
    ]  # fmt: skip


def test_somebody_elses_unit_stays(tmp_path: Path) -> None:
    path = tmp_path / systemd.DIRECTORY / systemd.UNIT
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\n")
    with pytest.raises(SetupFailed, match="is not ours"):
        systemd.install(PROGRAM, root=tmp_path)
    assert systemd.remove(root=tmp_path) == []
    assert path.read_text() == "[Service]\n"


def test_without_systemctl_the_unit_is_written_and_enabling_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SetupFailed, match="there is no systemctl"):
        systemd.install(PROGRAM, enable="default", root=tmp_path)
    assert (tmp_path / systemd.DIRECTORY / systemd.UNIT).exists()
    with pytest.raises(ValueError, match="name"):
        systemd.install(PROGRAM, enable="../x", root=tmp_path)


def test_enabling_goes_with_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--enable"])
    assert end.value.code == 2
    assert "--enable goes with --systemd" in capsys.readouterr().err


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told_on_its_socket(tmp_path: Path, abstract: bool) -> None:
    address = f"@space-test-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        assert notify(READY, {"NOTIFY_SOCKET": address})
        assert manager.recv(100) == b"READY=1"
    assert not notify(READY, {"NOTIFY_SOCKET": address})
    assert not notify(READY, {})


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_the_unit_takes_the_place_of_a_regular_file_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / systemd.DIRECTORY / systemd.UNIT
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if kind == "fifo" else path.symlink_to(os.devnull)
    with pytest.raises(SetupFailed, match="is no regular file"):
        systemd.install(Path("/usr/local/bin/space"), root=tmp_path)
    assert path.is_fifo() or path.is_symlink()
