"""The programs of `examples/` do what they say, and the page of the SDK shows what is in them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from space.sdk.testing import MockServer, Process, Reply

ROOT = Path(__file__).parents[3]
# What each program writes, with a server of any kind: `tests/machine/test_examples.py` asks the same of real guests.
WRITTEN: dict[str, list[str]] = json.loads((ROOT / "examples/written.json").read_text())


@pytest.fixture
def server() -> Iterator[MockServer]:
    server = MockServer()

    @server.program("python3")
    def python(process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        if process.argv[1] == "-c":
            server.service(8000)(web)
        while True:  # until somebody kills it
            time.sleep(0.02)
            yield "stdout", b""

    @server.program("sleep")
    def sleep(process: Process) -> Reply:
        return Reply()

    with server.listen() as url:
        server.url = url
        yield server


def web(connection: socket.socket) -> None:
    if connection.recv(65536):
        connection.sendall(b"HTTP/1.0 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")


def test_there_is_a_check_for_each_example() -> None:
    assert set(WRITTEN) == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", WRITTEN)
def test_an_example_writes_what_it_should(server: MockServer, name: str) -> None:
    env = {**os.environ, "SPACE_API_URL": server.url, "SPACE_API_KEY": server.key, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, ROOT / "examples" / name], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.splitlines(), done.returncode) == (WRITTEN[name], 0), done.stderr
    assert server.sandboxes == {}


def test_the_page_shows_what_is_in_the_examples() -> None:
    page = (ROOT / "docs/sdk.md").read_text()
    shown = re.findall(r"\[examples/(\w+\.py)\]\([^)]*\):\n\n((?:    .*\n|\n)+)", page)
    assert {name for name, _ in shown} == set(WRITTEN)
    for name, block in shown:
        whole = textwrap.dedent((ROOT / "examples" / name).read_text())
        for line in textwrap.dedent(block).strip().splitlines():
            assert line.strip() in whole, f"{name} does not hold {line.strip()!r}"


def test_the_pages_other_programs_are_python() -> None:
    page = (ROOT / "docs/sdk.md").read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"\n\n((?:    .*\n(?:\n(?=    ))?)+)", page)]
    assert len(blocks) > 5
    for block in blocks:
        compile(block, "docs/sdk.md", "exec", flags=0x2000)  # top-level await is allowed
