"""Standard streams that are full or closed: one sentence, a status of ours, and nothing that nobody knows of is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from space.sdk.testing import MockServer, Reply

SPACE = [sys.executable, "-m", "space.cli.main"]
SENTENCES = {
    ">/dev/full": "space: cannot write to standard output: No space left on device\n",
    ">&-": "space: cannot write to standard output: Bad file descriptor\n",
}


@pytest.fixture
def server() -> Iterator[MockServer]:
    server = MockServer()
    with server.listen() as url:
        server.url = url
        yield server


def sh(server: MockServer, redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`space ARGUMENTS` with its streams as a shell makes them."""
    environ = {**os.environ, "SPACE_API_URL": server.url, "SPACE_API_KEY": server.key}
    command = ["sh", "-c", f'"$@" {redirected}', "sh", *SPACE, *arguments]
    return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)


def made(server: MockServer) -> str:
    """A sandbox with a file."""
    found = sh(server, "", "create", "-q").stdout.strip()
    server.sandboxes[found].files["/srv/a"] = b"a"
    return found


@pytest.mark.parametrize("redirected", SENTENCES)
@pytest.mark.parametrize(
    "command",
    [
        "list", "list --json", "list -q -a", "show SB", "exec SB -- echo x",
        "exec SB --json -- echo x", "files cat SB /srv/a", "cp SB:/srv -",
        "version", "version --json", "help exit-codes", "--help", "create --help", "completion bash", "config show",
    ],
)  # fmt: skip
def test_output_that_cannot_be_written_is_one_sentence_and_125(server: MockServer, command: str, redirected: str) -> None:
    sandbox = made(server)
    done = sh(server, redirected, *command.replace("SB", sandbox).split())
    assert done.returncode == 125
    if "--json" in command.partition(" -- ")[0]:
        assert json.loads(done.stderr)["error"]["message"] == SENTENCES[redirected].removeprefix("space: ").rstrip()
    else:
        assert done.stderr == SENTENCES[redirected]


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
def test_what_cannot_be_said_on_stderr_does_not_change_the_status(server: MockServer, redirected: str) -> None:
    sandbox = made(server)
    for arguments, status in (
        (["exec", sandbox, "--", "sh", "-c", "exit 7"], 7),
        (["exec", sandbox, "--", "sh", "-c", "echo no >&2"], 0),
        (["show", "sb-aaaaaaaaaaaaaaaaaaaa"], 125),
        (["show", "--nonsense"], 2),
        (["list"], 0),
    ):
        assert sh(server, redirected, *arguments).returncode == status
    assert sh(server, ">/dev/full " + redirected, "list").returncode == 125


@pytest.mark.parametrize("redirected", SENTENCES)
@pytest.mark.parametrize("form", ["-q", "--json"])
def test_a_sandbox_whose_id_nobody_got_is_deleted(server: MockServer, redirected: str, form: str) -> None:
    assert sh(server, redirected, "create", form).returncode == 125
    assert server.sandboxes == {}


def test_a_process_whose_id_nobody_got_is_ended(server: MockServer) -> None:
    ended = threading.Event()

    def forever() -> Iterator[tuple[str, bytes]]:
        while not ended.wait(0.01):
            yield "stdout", b"y"

    server.program("forever")(lambda _: Reply(pieces=forever()))
    sandbox = made(server)
    try:
        assert sh(server, ">/dev/full", "start", sandbox, "--", "forever").returncode == 125
        assert sh(server, "", "ps", sandbox, "-q").stdout == ""
    finally:
        ended.set()


def test_help_of_nothing_that_there_is_says_so_on_stderr(server: MockServer) -> None:
    done = sh(server, "", "help", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert "topics are exit-codes, server" in done.stderr
