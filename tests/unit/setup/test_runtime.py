"""Runtimes, locks and distributions of this very tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import space
from space.core.wire import frames
from space.setup import command, deps, lock, runtime, shelf, template
from space.setup.faults import SetupFailed

ROOT = Path(__file__).resolve().parents[3]
HOUR = 3600


def project(path: str) -> dict[str, object]:
    """The [project] table of a pyproject.toml."""
    table: dict[str, object] = tomllib.loads((ROOT / path).read_text())["project"]
    return table


def test_one_version_everywhere() -> None:
    server, sdk = project("pyproject.toml"), project("packaging/sdk/pyproject.toml")
    assert server["version"] == sdk["version"] == runtime.VERSION == space.__version__
    assert f"space-sdk=={sdk['version']}" in server["dependencies"]  # type: ignore[operator]


def test_set_up_and_wire_agree_on_the_protocol() -> None:
    assert template.PROTOCOL == frames.VERSION


def test_every_module_of_the_proof_is_in_the_tree() -> None:
    for proof in runtime.proofs():
        assert (ROOT / "src" / f"{proof.module.replace('.', '/')}.py").is_file(), proof.module


@pytest.mark.parametrize("name", ["server.txt", "dev.txt"])
def test_locks_name_versions_and_hashes_and_no_address(name: str) -> None:
    rows = [row for row in (ROOT / "requirements" / name).read_text().splitlines() if not row.startswith("#")]
    assert len(rows) > 10
    for row in rows:
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][a-z0-9.]* --hash=sha256:[0-9a-f]{64}", row), row


def test_every_declared_dependency_is_locked() -> None:
    locked = {
        row.partition("==")[0] for name in ("server.txt", "dev.txt") for row in (ROOT / "requirements" / name).read_text().splitlines()
    }
    declared = [*project("pyproject.toml")["dependencies"], *project("packaging/sdk/pyproject.toml")["dependencies"]]  # type: ignore[misc]
    names = {re.split(r"[>=<]", text)[0] for text in declared if not text.startswith("space-")} | set(lock.DEVELOPMENT)
    assert names <= locked


def test_set_up_imports_nothing_but_the_standard_library() -> None:
    """As on a fresh machine: the distribution's interpreter, without site-packages."""
    modules = sorted(f"space.setup.{path.stem}" for path in (ROOT / "src/space/setup").glob("*.py") if path.stem != "__init__")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import importlib; [importlib.import_module(name) for name in sys.argv[2:]]"
    subprocess.run([deps.PYTHON, "-I", "-S", "-c", code, ROOT / "src", *modules], check=True, timeout=60)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every uid can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_runtime_is_proven_by_importing_as_the_uid(open_directory: Path) -> None:
    tmp_path = open_directory
    with shelf.staged(tmp_path / "runtime") as stage:
        site = deps.environment(stage, below=None)
        (site / "whoami.py").write_text("import os\nassert os.getuid() == os.getgid() == 700000 and os.getgroups() == [], os.getuid()\n")
        (site / "hidden.py").write_text("")
        deps.compile_all(stage, tmp_path / "runtime")
        stage.chmod(0o555)
        runtime.prove(stage, [runtime.Proof("whoami", 700_000)])
        assert stage.stat().st_mode & 0o777 == 0o555  # a proof changes nothing: doctor proves finished runtimes
        (site / "hidden.py").chmod(0o600)
        for compiled in (site / "__pycache__").glob("hidden*"):
            compiled.unlink()
        with pytest.raises(SetupFailed, match=r"cannot import hidden as uid 700000(.|\n)*Permission"):
            runtime.prove(stage, [runtime.Proof("hidden", 700_000)])


def old(path: Path) -> Path:
    os.utime(path, (time.time() - 2 * HOUR, time.time() - 2 * HOUR))
    return path


def test_runtimes_that_nobody_uses_go_with_their_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deps, "OPT", tmp_path)
    for name in ("deps-old", "deps-kept", "deps-now", "dev-old", "dev-now"):
        (tmp_path / name).mkdir()
    for name, below in (("0.1.0-old", "deps-old"), ("0.1.0-running", "deps-kept"), ("0.1.0-now", "deps-now")):
        with shelf.staged(tmp_path / name) as stage:
            shelf.describe(stage, deps=below)
    (tmp_path / "current").symlink_to("0.1.0-now")
    (tmp_path / f"{shelf.STAGE}dead").mkdir()
    for entry in tmp_path.iterdir():
        if not entry.is_symlink():
            old(entry)
    with subprocess.Popen([sys.executable, "-c", "input()", f"{tmp_path}/0.1.0-running/bin/python"], stdin=subprocess.PIPE) as process:
        gone = runtime.sweep(tmp_path / "0.1.0-now", [tmp_path / "dev-now"])
        assert process.stdin is not None
        process.stdin.close()
    assert sorted(gone) == ["0.1.0-old", "deps-old", "dev-old"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "0.1.0-now",
        "0.1.0-running",
        "current",
        "deps-kept",
        "deps-now",
        "dev-now",
    ]


def test_nothing_goes_while_a_process_was_started_through_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deps, "OPT", tmp_path)
    for name in ("0.1.0-old", "0.1.0-now"):
        with shelf.staged(tmp_path / name) as stage:
            shelf.describe(stage, deps="deps-x")
        old(tmp_path / name)
    argv = [sys.executable, "-c", "print(flush=True); input()", f"{tmp_path}/current/bin/python"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # only now is its command line certain to be there
        assert runtime.sweep(tmp_path / "0.1.0-now", []) == []
        assert process.stdin is not None
        process.stdin.close()
    assert runtime.sweep(tmp_path / "0.1.0-now", []) == ["0.1.0-old"]


def test_a_young_runtime_of_another_checkout_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deps, "OPT", tmp_path)
    for name in ("0.1.0-other", "0.1.0-now"):
        with shelf.staged(tmp_path / name) as stage:
            shelf.describe(stage, deps="deps-x")
    assert runtime.sweep(tmp_path / "0.1.0-now", []) == []


def test_a_command_of_somebody_else_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "COMMAND", tmp_path / "space")
    (tmp_path / "space").write_text("#!/bin/sh\n")
    with pytest.raises(SetupFailed, match="is not ours"):
        runtime.install(tmp_path / "runtime")


def test_a_failed_command_is_told_with_its_status_and_the_end_of_its_output() -> None:
    with pytest.raises(SetupFailed, match=r"cannot list it: sh -c .* ended with status 3\n    line 16\n(.|\n)*\(try again\)") as caught:
        command.run(["sh", "-c", "seq -f 'line %g' 30 >&2; exit 3"], what="list it", hint="try again")
    assert "line 15" not in str(caught.value)
    with pytest.raises(SetupFailed, match="there is no 'no-such-program'"):
        command.run(["no-such-program"], what="x")


def built(directory: Path, into: Path) -> set[str]:
    """The files of the wheel that hatchling builds there."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into], cwd=directory, check=True, capture_output=True, timeout=120
    )
    [wheel] = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_two_distributions_share_the_tree_out(tmp_path: Path) -> None:
    sdk, server = built(ROOT / "packaging/sdk", tmp_path / "sdk"), built(ROOT, tmp_path / "server")
    tree = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/space").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sdk & server == set()
    assert sdk | server == tree
    assert {name.split("/")[1] for name in sdk} == {"__init__.py", "cli", "model", "py.typed", "sdk"}
