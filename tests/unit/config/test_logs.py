"""Logs: one object a line with what is known, no keys, and a file that bounds itself."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.config import logs
from space.host import logfile
from space.rootd import log as rootd_log

KEY = "space_abcdefghijkl_" + "0123456789abcdef" * 4


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "service.log"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    yield path, descriptor
    os.close(descriptor)


def logger(handler: logging.Handler) -> logging.Logger:
    made = logging.getLogger("space.test")
    made.propagate, made.handlers = False, [handler]
    made.setLevel(logging.INFO)
    return made


def test_a_line_is_one_object_with_the_request_and_the_sandbox(file: tuple[Path, int]) -> None:
    path, descriptor = file
    log = logger(logs.Handler("control", "json", descriptor))
    log.info("nothing is known")
    request, sandbox = logs.request_id.set("rq-1"), logs.sandbox.set("sb-1")
    log.warning("two\nlines \x1b[31m of %s", "é")
    log.warning("of another", extra={"sandbox": "sb-2"})
    logs.request_id.reset(request)
    logs.sandbox.reset(sandbox)
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {"level": "info", "service": "control", "logger": "space.test", "message": "nothing is known"}
    assert (second["request_id"], second["sandbox"], second["level"]) == ("rq-1", "sb-1", "warning")
    assert second["message"] == "two\nlines \x1b[31m of é"
    assert third["sandbox"] == "sb-2"


def test_an_exception_comes_with_its_traceback_and_its_end_is_kept(file: tuple[Path, int]) -> None:
    path, descriptor = file
    log = logger(logs.Handler("node", "json", descriptor))
    try:
        raise ValueError("x" * 100_000 + " the end")
    except ValueError:
        log.exception("unexpected %s", "y" * 100_000)
    line = json.loads(path.read_text())
    assert line["exception"].endswith("the end")
    assert line["exception"].startswith("[...]")
    assert line["message"].endswith("[...]")
    assert len(path.read_bytes()) < 40_000


@pytest.mark.parametrize("form", logs.FORMATS)
def test_keys_are_struck_out(file: tuple[Path, int], form: str) -> None:
    path, descriptor = file
    log = logger(logs.Handler("control", form, descriptor))
    log.info("somebody put %s into a path", KEY)
    try:
        raise ValueError(KEY)
    except ValueError:
        log.exception("unexpected")
    assert KEY.rsplit("_", 1)[1] not in path.read_text()
    assert path.read_text().count("space_abcdefghijkl_***") == 2


def test_wrong_arguments_of_a_log_call_end_nothing(file: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log = logger(logs.Handler("control", "json", file[1]))
    log.info("%d", "no number")
    log.info("goes on")
    assert [json.loads(line)["message"] for line in file[0].read_text().splitlines()] == ["goes on"]


def test_text_names_the_request_in_services_that_have_requests(file: tuple[Path, int]) -> None:
    path, descriptor = file
    logger(logs.Handler("control", "text", descriptor)).info("a")
    logger(logs.Handler("node", "text", descriptor)).info("b")
    logger(logs.Handler("other", "text", descriptor)).info("c")
    control, node, other = path.read_text().splitlines()
    assert re.fullmatch(r"[-\d]+ [:\d,]+ INFO space\.test - a", control)
    assert re.fullmatch(r"[-\d]+ [:\d,]+ INFO space\.test - b", node)
    assert re.fullmatch(r"[-\d]+ [:\d,]+ INFO space\.test c", other)


def test_a_log_that_has_grown_keeps_its_newer_half_in_whole_lines(file: tuple[Path, int]) -> None:
    path, descriptor = file
    longest = 0
    for number in range(1000):
        logfile.write_line(descriptor, f"{number:04d} {'x' * (number % 50)}\n".encode(), 4096)
        longest = max(longest, path.stat().st_size)
    lines = path.read_text().splitlines()
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == list(range(numbers[0], 1000))
    assert 2048 - 60 <= path.stat().st_size <= longest <= 4096 + 60


@given(st.binary(min_size=65, max_size=4000))
def test_what_is_kept_is_the_end_of_what_was_there(data: bytes) -> None:
    descriptor = os.memfd_create("log", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)  # a memory file does not append by itself
        assert logfile.trim(descriptor, 64)
        kept = os.pread(descriptor, 8000, 0)
    finally:
        os.close(descriptor)
    assert data.endswith(kept)
    assert len(kept) <= 32
    assert data.rfind(b"\n", 0, len(data) - len(kept)) in (len(data) - len(kept) - 1, -1) or b"\n" not in data[-32:]


def test_pipes_and_files_of_others_are_left_alone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    assert not logfile.trim(writer, 0)
    os.close(reader)
    logfile.write_line(writer, b"nobody reads\n")  # a broken pipe is no reason to fail
    os.close(writer)
    path = tmp_path / "somebodys"
    path.write_bytes(b"x" * 100)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    assert not logfile.trim(descriptor, 10)
    os.close(descriptor)
    assert path.stat().st_size == 100


def test_rootd_writes_the_same_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    rootd_log.log("as text\n\x1b")
    assert re.fullmatch(r"\S+Z rootd\[\d+\] as text\\n\x1b\n", capfd.readouterr().err)
    monkeypatch.setattr(rootd_log, "_as_json", False)
    rootd_log.configure("json")
    rootd_log.log("start_vmm", sandbox="sb-1")
    line = json.loads(capfd.readouterr().err)
    line.pop("time")
    assert line == {"level": "info", "service": "rootd", "logger": "space.rootd", "message": "start_vmm", "sandbox": "sb-1"}
