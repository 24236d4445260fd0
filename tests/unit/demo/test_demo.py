"""The demonstration's parts: files through pip with their hashes, a report that is not trusted, and when it may say that all is well."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from demo import demo, fetch, report  # noqa: E402  # the demonstration is a program of the checkout, not of the package
from demo.demo import Failed, Server, demonstrate  # noqa: E402
from demo.fetch import FetchFailed, Lock, Pinned  # noqa: E402
from demo.steps import Steps  # noqa: E402

from space.model.errors import SpaceError  # noqa: E402
from space.sdk.testing import MockServer, Process, Reply  # noqa: E402

GOOD = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="0" skipped="1"
 tests="3" time="1.5"><testcase classname="t" name="a" time="0.1"/><testcase classname="t" name="b"/><testcase classname="t" name="c">
 <skipped type="pytest.skip" message="no">why</skipped></testcase></testsuite></testsuites>"""
BAD = GOOD.replace('name="b"/>', 'name="b"><failure message="assert">no</failure></testcase>')


def _sdist() -> bytes:
    """A source distribution as file: ours, so that no test needs an index."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        for name in ("small-1.0/pyproject.toml", "small-1.0/tests/test_small.py"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"#"))
    return output.getvalue()


SDIST, WHEEL = _sdist(), b"PK-not-opened-by-anybody"


def _pinned(file: str, data: bytes) -> Pinned:
    return Pinned(file.split("-")[0], "1.0", file, hashlib.sha256(data).hexdigest())


LOCK = Lock("small", "1.0", (_pinned("small-1.0.tar.gz", SDIST), _pinned("tool-1.0-py3-none-any.whl", WHEEL)))


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of files that pip is told to look into, readable for everybody, and no index."""
    place = Path(tempfile.mkdtemp(prefix="space-links-"))
    place.chmod(0o755)
    for pinned, data in zip(LOCK.files, (SDIST, WHEEL), strict=True):
        (place / pinned.file).write_bytes(data)
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    yield place
    shutil.rmtree(place)


# -- fetching ----------------------------------------------------------------------------------------------------------


def test_files_come_through_pips_own_configuration_and_are_kept(links: Path, tmp_path: Path) -> None:
    assert fetch.fetch(LOCK, tmp_path / "cache") == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "cache").iterdir()} == {
        "small-1.0.tar.gz": SDIST,
        "tool-1.0-py3-none-any.whl": WHEEL,
    }
    shutil.rmtree(links)
    links.mkdir()
    assert fetch.fetch(LOCK, tmp_path / "cache") == 0


def test_another_file_of_that_name_is_refused_and_not_kept(links: Path, tmp_path: Path) -> None:
    (links / LOCK.sdist.file).write_bytes(SDIST + b"!")
    with pytest.raises(FetchFailed, match="is pinned: the index gives another file"):
        fetch.fetch(LOCK, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_file_in_the_cache_is_fetched_anew(links: Path, tmp_path: Path) -> None:
    fetch.fetch(LOCK, tmp_path / "cache")
    damaged = tmp_path / "cache" / LOCK.sdist.file
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    assert fetch.fetch(LOCK, tmp_path / "cache") == 1
    assert damaged.read_bytes() == SDIST


def test_a_file_that_is_not_to_be_had_is_told_with_the_remedy(links: Path, tmp_path: Path) -> None:
    (links / LOCK.sdist.file).unlink()
    with pytest.raises(FetchFailed, match=r"pip finds no small-1\.0\.tar\.gz.*PIP_INDEX_URL"):
        fetch.fetch(LOCK, tmp_path / "cache")


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SDIST)
    (tmp_path / "in").symlink_to(tmp_path / "secret")
    with pytest.raises(FetchFailed, match="cannot take"):
        fetch._take(tmp_path / "in", tmp_path, LOCK.sdist)


def test_nothing_of_a_source_distribution_runs_and_pip_has_no_rights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sdist whose setup.py would leave a mark: pip's own `download` command would run it."""
    place = Path(tempfile.mkdtemp(prefix="space-trap-"))
    try:
        place.chmod(0o777)
        output = io.BytesIO()
        with tarfile.open(fileobj=output, mode="w:gz") as archive:
            code = f"open({str(place / 'mark')!r}, 'w')".encode()
            info = tarfile.TarInfo("small-1.0/setup.py")
            info.size = len(code)
            archive.addfile(info, io.BytesIO(code))
        (place / LOCK.sdist.file).write_bytes(output.getvalue())
        monkeypatch.setenv("PIP_FIND_LINKS", str(place))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        lock = Lock("small", "1.0", (_pinned(LOCK.sdist.file, output.getvalue()),))
        incoming = place / "in"
        incoming.mkdir()
        fetch._pip(incoming, [LOCK.sdist.file])
        assert (incoming / LOCK.sdist.file).stat().st_uid == (fetch.UID if os.geteuid() == 0 else os.geteuid())
        fetch.fetch(lock, tmp_path / "cache")
        assert not (place / "mark").exists()
    finally:
        shutil.rmtree(place)


def test_pip_gets_what_reaches_an_index_and_nothing_else(tmp_path: Path) -> None:
    outer = {
        "PIP_INDEX_URL": "https://index.example.com/simple",
        "https_proxy": "http://proxy.example.com",
        "SSL_CERT_FILE": "/ca",
        "AWS_SECRET": "x",
    }
    kept = fetch.environment(tmp_path, outer)
    assert {name: kept[name] for name in ("PIP_INDEX_URL", "https_proxy", "SSL_CERT_FILE")} == {
        n: outer[n] for n in outer if n != "AWS_SECRET"
    }
    assert "AWS_SECRET" not in kept


def test_the_committed_lock_names_files_and_no_addresses() -> None:
    lock = fetch.load()
    assert lock.sdist.file == f"{lock.library}-{lock.version}.tar.gz"
    assert all(re.fullmatch(r"[0-9a-f]{64}", pinned.sha256) for pinned in lock.files)
    assert all(wheel.file.endswith(("-py3-none-any.whl", "-manylinux2014_x86_64.whl")) for wheel in lock.wheels)
    assert "://" not in (ROOT / "demo/lock.json").read_text()


# -- the report --------------------------------------------------------------------------------------------------------


def _report(tmp_path: Path, text: str) -> report.Report:
    (tmp_path / "junit.xml").write_text(text)
    return report.read(tmp_path / "junit.xml")


def test_a_report_is_counted_test_by_test(tmp_path: Path) -> None:
    found = _report(tmp_path, GOOD)
    assert (found.tests, found.passed, found.skipped, found.failed, found.seconds, found.is_good) == (3, 2, 1, (), 1.5, True)
    found = _report(tmp_path, BAD)
    assert (found.passed, found.failed, found.is_good) == (1, ("t.b",), False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>", "no XML"),
        ("", "no XML"),
        ("<html/>", "0 tests and holds 0"),
        (GOOD.replace('tests="3"', 'tests="5"'), "5 tests and holds 3"),
        (GOOD.replace('tests="3"', 'tests="x"'), "no numbers"),
        (GOOD.replace("<testsuites", '<!DOCTYPE t [<!ENTITY a "b">]><testsuites', 1), "document type"),
        ("<a>" + "x" * (17 << 20), "more than"),
    ],
)
def test_a_report_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(report.BadReport, match=words):
        _report(tmp_path, text)


def test_a_run_in_which_nothing_passed_is_not_good(tmp_path: Path) -> None:
    assert not _report(tmp_path, '<testsuites><testsuite tests="0" time="0"/></testsuites>').is_good


# -- all of it, against the mock server --------------------------------------------------------------------------------


class World:
    """A machine with a mock server on it, on which one thing may go wrong."""

    def __init__(self) -> None:
        self.server = MockServer()
        self.written = GOOD
        self.status = 0
        self.left: frozenset[str] = frozenset()
        self.commands: list[tuple[str, ...]] = []
        self.stopped = False
        self.server.program("uname")(lambda _: Reply(stdout=b"6.1-guest\n"))
        self.server.program("python3")(self._python)

    def _python(self, process: Process) -> Reply:
        self.commands.append(process.argv)
        if "pytest" in process.argv:
            process.files["/home/user/demo/report/junit.xml"] = self.written.encode()
            return Reply(stdout=b"tests/test_small.py ..s\n", exit_code=self.status)
        return Reply()

    @contextmanager
    def serve(self) -> Iterator[Server]:
        with self.server.client() as client:
            try:
                yield Server(client, "none (mock)", lambda: self.left)
            finally:
                self.stopped = True

    def run(self, tmp_path: Path) -> report.Report:
        (tmp_path / "cache").mkdir()
        for pinned, data in zip(LOCK.files, (SDIST, WHEEL), strict=True):
            (tmp_path / "cache" / pinned.file).write_bytes(data)
        serve: Callable[[], AbstractContextManager[Server]] = self.serve
        return demonstrate(Steps(), LOCK, tmp_path / "cache", serve)


def test_the_main_job_is_done_and_told_step_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    assert world.run(tmp_path).passed == 2
    assert world.server.sandboxes == {}
    assert world.stopped
    install, tests = world.commands
    assert {"--no-index", "--no-deps", "--no-build-isolation", "demo/wheels/tool-1.0-py3-none-any.whl", "./demo/small-1.0"} <= set(install)
    assert "--junitxml=../report/junit.xml" in tests
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line.startswith("  ✓")]
    assert len(steps) == 10
    assert all(re.search(r" \d+\.\d s$", line) for line in steps)
    assert "      | tests/test_small.py ..s" in lines


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"written": BAD, "status": 1}, "exit code 1; failed: t.b"),
        ({"written": BAD}, "failed: t.b"),
        ({"status": 1}, "exit code 1"),
        ({"written": "<html>"}, "no XML"),
        ({"left": frozenset({"process 7", "cgroup /x"})}, "left on this host:\n    cgroup /x\n    process 7"),
    ],
)
def test_it_fails_when_tests_fail_the_report_lies_or_anything_is_left(tmp_path: Path, change: dict[str, object], words: str) -> None:
    world = World()
    for name, value in change.items():
        setattr(world, name, value)
    with pytest.raises((Failed, SpaceError, report.BadReport), match=words):
        world.run(tmp_path)
    assert world.server.sandboxes == {}
    assert world.stopped


def test_a_failure_is_the_exit_status_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> report.Report:
        raise Failed("something is left")

    monkeypatch.setattr(demo, "demonstrate", fail)
    assert demo.main(["--cache", str(tmp_path)]) == 1
    assert "failed: something is left" in capsys.readouterr().err


def test_output_of_the_guest_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Steps().output("a\x1b[2Jb\r\x07\nc")
    assert capsys.readouterr().out == "      | a[2Jb\n      | c"
