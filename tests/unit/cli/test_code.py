"""`space run-code` against the mock server's interpreter: output, value, status, JSON, pictures."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from space import Sandbox
from space.cli.main import main
from space.sdk.code import PORT
from space.sdk.testing import MockServer
from space.sdk.testing.code import MockInterpreter


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    server = MockServer()
    server.service(PORT)(MockInterpreter())
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        yield server


@pytest.fixture
def sandbox(server: MockServer) -> str:
    return Sandbox.create(client=server.client()).id


def test_output_then_the_value_and_what_was_defined_stays(sandbox: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("import os\nx = 40\nprint(os.environ['WORD'])")
    assert main(["run-code", sandbox, "--file", str(tmp_path / "code.py"), "-e", "WORD=hi"]) == 0
    assert main(["run-code", sandbox, "x + 2"]) == 0
    assert capfd.readouterr().out == "hi\n42\n"


def test_code_that_fails_is_1_with_its_traceback(sandbox: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run-code", sandbox, "1/0"]) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert main(["--json", "run-code", sandbox, "1/0"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert (told["error"]["name"], told["ok"], told["results"]) == ("ZeroDivisionError", False, [])


def test_no_code_or_two_are_wrong_usage(sandbox: str, tmp_path: Path) -> None:
    assert main(["run-code", sandbox]) == 2
    assert main(["run-code", sandbox, "1", "--file", str(tmp_path)]) == 2


def test_pictures_are_written_and_time_that_is_over_is_124(
    server: MockServer, sandbox: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [
        {"type": "result", "png": base64.b64encode(b"\x89PNG").decode(), "svg": "<svg/>"},
        {"type": "timed_out"},
        {"type": "end_of_execution"},
    ]

    @server.service(PORT)
    def interpreter(connected: socket.socket) -> None:
        connected.recv(65536)
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        connected.recv(1)

    assert main(["run-code", sandbox, "plot()", "--save", str(tmp_path / "out")]) == 124
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {"1.png": b"\x89PNG", "1.svg": b"<svg/>"}
