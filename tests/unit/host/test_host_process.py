"""The one door for processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from space.host import process
from space.host.process import ProcessFailed

PYTHON = sys.executable


def test_output_of_both_kinds_comes_back() -> None:
    done = process.run(["sh", "-c", "echo out; echo err >&2"])
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    assert set(process.run(["env"]).stdout.decode().split()) == {f"{key}={value}" for key, value in process.ENVIRONMENT.items()}
    assert process.run(["/usr/bin/env"], env={"A": "1"}).stdout == b"A=1\n"


def test_standard_input_is_empty_unless_given() -> None:
    assert process.run(["cat"]).stdout == b""
    assert process.run(["cat"], data=b"x" * 60_000).stdout == b"x" * 60_000
    with pytest.raises(ValueError, match="at most 60 KiB"):
        process.run(["cat"], data=bytes(70_000))


def test_process_that_does_not_read_its_input_is_fine() -> None:
    assert process.run(["true"], data=b"x" * 60_000).stdout == b""


def test_failure_carries_argv_status_and_tail() -> None:
    with pytest.raises(ProcessFailed) as caught:
        process.run(["sh", "-c", "echo why >&2; exit 3"])
    assert caught.value.argv == ["sh", "-c", "echo why >&2; exit 3"]
    assert (caught.value.status, caught.value.tail) == (3, b"why\n")
    assert str(caught.value) == "sh -c echo why >&2; exit 3: ended with status 3: why"


def test_signal_is_named() -> None:
    with pytest.raises(ProcessFailed, match="was ended by SIGKILL"):
        process.run(["sh", "-c", "kill -9 $$"])


def test_missing_program_is_said() -> None:
    with pytest.raises(ProcessFailed, match="/no/such: cannot start: No such file or directory"):
        process.run(["/no/such"])


@pytest.mark.parametrize(
    ("script", "words"),
    [("exec sleep 60", "took too long and was killed"), ("exec yes", "wrote more than 1000000 bytes and was killed")],
)
def test_process_that_oversteps_is_killed_and_reaped(tmp_path: Path, script: str, words: str) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(ProcessFailed, match=words):
        process.run(["sh", "-c", f"echo $$ > {pid_file}; {script}"], timeout=1.0, limit=1_000_000)
    assert time.monotonic() - began < 20
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_descriptors_are_not_inherited() -> None:
    reader, writer = os.pipe()
    try:
        listing = process.run([PYTHON, "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"]).stdout
        assert str(writer) not in listing.decode().replace("'", "").strip("[]\n").split(", ") or writer < 4
    finally:
        os.close(reader)
        os.close(writer)


def test_forked_work_answers_and_its_state_is_its_own(tmp_path: Path) -> None:
    here = Path.cwd()

    def work() -> bytes:
        os.chdir(tmp_path)
        return str(Path.cwd()).encode()

    assert process.forked(work) == str(tmp_path).encode()
    assert Path.cwd() == here


def test_forked_failure_is_told_in_words() -> None:
    def work() -> bytes:
        raise RuntimeError("no such luck")

    with pytest.raises(ProcessFailed, match="RuntimeError: no such luck"):
        process.forked(work)
    with pytest.raises(ProcessFailed, match="failed"):
        process.forked(lambda: os._exit(3))
