"""`space` on a terminal, as a process of its own: shells, followers, forwarded ports, completions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from space import Sandbox
from space.sdk.testing import MockServer, Process, Reply
from space.testing.onterminal import OnTerminal

SPACE = [sys.executable, "-m", "space.cli.main"]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[MockServer]:
    server = MockServer()
    with server.listen() as url:
        server.url = url
        yield server


@pytest.fixture
def sandbox(server: MockServer) -> Sandbox:
    return Sandbox.create(client=server.client())


def environment(server: MockServer, **more: str) -> dict[str, str]:
    return {**os.environ, "SPACE_API_URL": server.url, "SPACE_API_KEY": server.key, **more}


def processes_of(server: MockServer, sandbox: Sandbox) -> list[Any]:
    return list(server.sandboxes[sandbox.id].processes.values())


def test_a_shell_restores_the_terminal_and_ends_with_its_status(server: MockServer, sandbox: Sandbox) -> None:
    with OnTerminal([*SPACE, "shell", sandbox.id], environment(server)) as space:
        space.until(rb"\$ ")
        space.wait_raw()
        space.type(b"echo hello\r")
        space.until(rb"hello\r\n\$ ")
        space.type(b"exit 7\r")
        assert space.status() == 7
        assert space.modes_are_as_before()
    assert processes_of(server, sandbox) == []


def test_every_key_is_the_programs_and_so_is_the_size(server: MockServer, sandbox: Sandbox) -> None:
    keys: list[bytes] = []
    ptys: list[Process] = []

    @server.program("keys")
    def read(process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        ptys.append(process)
        yield "stdout", b"ready"
        for piece in process.incoming:
            keys.append(piece)
            if b"q" in piece:
                return Reply(exit_code=3)
            yield "stdout", b"<%s>" % piece.hex().encode()
        return Reply()

    with OnTerminal([*SPACE, "shell", sandbox.id, "-e", "A=1", "--", "keys", "-x"], environment(server), rows=33, cols=111) as space:
        space.until(b"ready")
        space.wait_raw()
        for key in (b"\x03", b"\x1a", b"\x04", b"\x1c", b"\x11", b"\x10\x11"):  # Ctrl-C, Ctrl-Z, Ctrl-D, Ctrl-\, Ctrl-Q, Ctrl-P Ctrl-Q
            space.type(key)
            space.until(b"<%s>" % key.hex().encode())
        space.resize(44, 122)
        [running] = processes_of(server, sandbox)
        space.until(lambda _: running.resized)
        assert [(size.rows, size.cols) for size in running.resized] == [(44, 122)]
        space.type(b"q")
        assert space.status() == 3
        assert space.modes_are_as_before()
    assert b"".join(keys) == b"\x03\x1a\x04\x1c\x11\x10\x11q"
    assert ptys[0].argv == ("keys", "-x")
    assert ptys[0].env == {"TERM": "xterm-256color", "A": "1"} | (
        {"COLORTERM": os.environ["COLORTERM"]} if "COLORTERM" in os.environ else {}
    )
    assert (ptys[0].pty.rows, ptys[0].pty.cols) == (33, 111) if ptys[0].pty else False


def test_a_screen_that_was_left_in_the_middle_is_put_back(server: MockServer, sandbox: Sandbox) -> None:
    @server.program("full")
    def full(process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        yield "stdout", b"\x1b[?1049h\x1b[?25"
        yield "stdout", b"l\x1b[?1000;1006hdrawn"
        for _ in process.incoming:
            pass
        return Reply()

    with OnTerminal([*SPACE, "shell", sandbox.id, "full"], environment(server)) as space:
        space.until(b"drawn")
        space.wait_raw()
        space.process.send_signal(signal.SIGTERM)
        assert space.status() == 143
        assert space.modes_are_as_before()
        after = space.seen.partition(b"drawn")[2]
    assert all(b"\x1b[?" + mode in after for mode in (b"1049l", b"25h", b"1000l", b"1006l"))


def test_piped_input_is_typed_into_a_shell(server: MockServer, sandbox: Sandbox) -> None:
    done = subprocess.run(
        [*SPACE, "shell", sandbox.id], env=environment(server), input=b"echo one\nexit 5\n", capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (5, b"")
    assert b"one\r\n" in done.stdout


def test_a_program_that_is_not_there_leaves_the_terminal_alone(server: MockServer, sandbox: Sandbox) -> None:
    with OnTerminal([*SPACE, "shell", sandbox.id, "--", "nope"], environment(server)) as space:
        assert space.status() == 127
        assert b"there is no program 'nope'" in space.seen
        assert space.modes_are_as_before()


SERVER = """
import signal
from space.sdk.testing import MockServer
server = MockServer()
with server.listen() as url:
    print(url, flush=True)
    signal.pause()
"""


@pytest.fixture
def doomed() -> Iterator[tuple[subprocess.Popen[str], MockServer]]:
    """A server that is a process of its own, and what is known of it."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    known = MockServer()
    known.url = process.stdout.readline().strip()
    yield process, known
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_server_that_is_killed_ends_a_shell_with_a_sentence(doomed: tuple[subprocess.Popen[str], MockServer]) -> None:
    process, known = doomed
    sandbox = Sandbox.create(api_url=known.url, api_key=known.key)
    with OnTerminal([*SPACE, "shell", sandbox.id], environment(known)) as space:
        space.until(rb"\$ ")
        space.wait_raw()
        process.kill()
        assert space.status() == 125
        assert space.modes_are_as_before()
        told = space.seen.partition(b"$ ")[2].decode()
    assert "Traceback" not in told
    assert told.count("space:") == 1
    assert f"the connection to {known.url}" in told
    sandbox.close()


def test_attach_joins_a_terminal_and_lets_go_of_it(server: MockServer, sandbox: Sandbox) -> None:
    @server.program("tick")
    def tick(process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        yield "stdout", b"before"
        for piece in process.incoming:
            if piece == b"q":
                return Reply(exit_code=4)
            yield "stdout", b"<%s>" % piece.hex().encode()
        return Reply()

    from space import PtySize

    process = sandbox.start(["tick"], pty=PtySize(24, 80))
    [running] = processes_of(server, sandbox)
    with OnTerminal([*SPACE, "attach", sandbox.id, process.id], environment(server), rows=30, cols=100) as space:
        space.wait_raw()
        space.type(b"\x10a")
        space.until(b"<61>|<1061>")  # the first of the two keys alone is passed on with what follows it
        assert b"before" not in space.seen
        space.type(b"\x10")
        space.type(b"\x11")
        assert space.status() == 0
        assert space.modes_are_as_before()
        assert b"runs on" in space.seen
    assert [(size.rows, size.cols) for size in running.resized] == [(30, 99), (30, 100)]
    assert process.info().state == "running"
    keys = ["--detach-keys", "", "--tail", "4"]
    with OnTerminal([*SPACE, "attach", *keys, sandbox.id, process.id], environment(server)) as space:
        space.wait_raw()
        space.type(b"\x10\x11")
        space.until(b"<1011>")
        space.type(b"q")
        assert space.status() == 4
    done = subprocess.run([*SPACE, "attach", sandbox.id, process.id], env=environment(server), capture_output=True, check=False)
    assert (done.returncode, b"has ended" in done.stderr) == (125, True)


def test_attach_without_a_terminal_hands_standard_input_on(server: MockServer, sandbox: Sandbox) -> None:
    process = sandbox.start(["cat"], stdin=True)
    done = subprocess.run(
        [*SPACE, "attach", sandbox.id, process.id], env=environment(server), input=b"in\xff", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"in\xff", b"")


def test_ctrl_c_of_a_follower_is_130_and_says_where_to_go_on(server: MockServer, sandbox: Sandbox) -> None:
    ended = threading.Event()

    @server.program("slow")
    def slow(_: Process) -> Generator[tuple[str, bytes], None, Reply]:
        yield "stdout", b"12345"
        ended.wait(60)
        return Reply()

    process = sandbox.start(["slow"])
    with OnTerminal([*SPACE, "logs", "-f", sandbox.id, process.id], environment(server)) as space:
        space.until(b"12345")
        space.type(b"\x03")
        assert space.status() == 130
        # 0: interrupted between showing and counting; it comes once more then, and nothing is left out
        assert re.search(rb"--since-offset stdout=[05] --since-offset stderr=0", space.seen)
        assert b"Traceback" not in space.seen
    assert process.info().state == "running"
    ended.set()


def test_logs_go_on_over_a_connection_that_breaks(server: MockServer, sandbox: Sandbox) -> None:
    server.program("big")(lambda _: Reply(stdout=bytes(range(256)) * 400))
    process = sandbox.start(["big"])
    process.wait()
    server.cut_next(50_000, path="/output")
    done = subprocess.run([*SPACE, "logs", "-f", sandbox.id, process.id], env=environment(server), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(range(256)) * 400, b"")


def test_what_follows_ends_quietly_when_its_reader_leaves(server: MockServer, sandbox: Sandbox) -> None:
    command = [*SPACE, "events", "-f", "--after", "0", "--json"]
    following = subprocess.Popen(command, env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stderr is not None
    assert json.loads(following.stdout.readline())["kind"] == "created"
    following.stdout.close()
    sandbox.pause()
    sandbox.resume()
    assert following.wait(30) == 141
    assert following.stderr.read() == b""
    following.stderr.close()


def test_watch_tells_changes_until_what_is_watched_is_gone(server: MockServer, sandbox: Sandbox) -> None:
    sandbox.files.mkdir("/w", parents=True)
    watching = subprocess.Popen(
        ["env", "--default-signal=INT", *SPACE, "watch", "--json", sandbox.id, "/w"],
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert watching.stdout is not None
    while not any(path.endswith("/files/watch") for _, path in server.requests):
        assert watching.poll() is None
    sandbox.files.write("/w/\x1b[2J", b"x")
    assert json.loads(watching.stdout.readline())["path"] == "\x1b[2J"
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (130, b"")


def test_forward_prints_what_listens_and_serves_until_ctrl_c(server: MockServer, sandbox: Sandbox) -> None:
    @server.service(8000)
    def answer(connected: socket.socket) -> None:
        connected.recv(65536)
        connected.sendall(b"HTTP/1.0 200 OK\r\n\r\nfrom the sandbox")
        connected.close()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["env", "--default-signal=INT", *SPACE, "forward", sandbox.id, "-:8000", f"{port}:8000", ":9", "--json"]
    forwarding = subprocess.Popen(command, env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert forwarding.stdout is not None
    told = [json.loads(forwarding.stdout.readline()) for _ in range(3)]
    assert [each["remote"] for each in told] == [8000, 8000, 9]
    assert told[1]["port"] == port
    for each in told[:2]:
        with urllib.request.urlopen(f"http://{each['host']}:{each['port']}/", timeout=30) as response:
            assert response.read() == b"from the sandbox"
    with socket.create_connection((told[2]["host"], told[2]["port"])) as refused, pytest.raises(ConnectionResetError):
        refused.recv(1)
    forwarding.send_signal(signal.SIGINT)
    _, err = forwarding.communicate(timeout=30)
    assert forwarding.returncode == 130
    assert "Traceback" not in err
    assert err.count("space: ") == 1  # the connection that found nothing


def test_forward_ends_when_a_connection_finds_that_the_sandbox_is_gone(server: MockServer, sandbox: Sandbox) -> None:
    command = [*SPACE, "forward", sandbox.id, "-:8000", "--json"]
    forwarding = subprocess.Popen(command, env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert forwarding.stdout is not None
    told = json.loads(forwarding.stdout.readline())
    server.sandboxes.pop(sandbox.id)
    try:
        socket.create_connection((told["host"], told["port"])).close()
        _, err = forwarding.communicate(timeout=30)
    finally:
        forwarding.kill()
    assert forwarding.returncode == 125
    assert f"there is no sandbox {sandbox.id}" in err


@pytest.mark.parametrize("wrong", ["80:", "a:b", "1:2:3", "70000", ":0", "-", ""])
def test_ports_that_are_none_are_wrong_before_anything_listens(server: MockServer, sandbox: Sandbox, wrong: str) -> None:
    done = subprocess.run([*SPACE, "forward", sandbox.id, "8000", "--", wrong], env=environment(server), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"are no ports" in done.stderr


# -- completion --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory with `space` in it, for a shell's PATH."""
    script = tmp_path / "bin/space"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m space.cli.main "$@"\n')
    script.chmod(0o755)
    return script.parent


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_taken_by_its_shell(server: MockServer, shell: str) -> None:
    done = subprocess.run([*SPACE, "completion", shell], env=environment(server), capture_output=True, check=True)
    assert b"_SPACE_COMPLETE" in done.stdout
    assert b"space" in done.stdout
    if (found := shutil.which(shell)) is not None:
        assert subprocess.run([found, "-n"], input=done.stdout, capture_output=True, check=False).returncode == 0


def complete(server: MockServer, program: Path, line: str) -> list[str]:
    """What bash offers at the end of a line."""
    words = line.split(" ")
    script = 'source <(space completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    script += '_space_completion space; printf "%s\\n" "${COMPREPLY[@]}"'
    env = environment(server, PATH=f"{program}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", script, "bash", *words], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_ids(server: MockServer, sandbox: Sandbox, program: Path) -> None:
    process = sandbox.start(["cat"], stdin=True)
    assert complete(server, program, "space sh") == ["show", "shell"]
    assert complete(server, program, "space files ch") == ["chmod", "chown"]
    assert complete(server, program, "space logs --fol") == ["--follow"]
    assert complete(server, program, "space exec sb-") == [sandbox.id]
    assert complete(server, program, f"space logs {sandbox.id} pr-") == [process.id]


def test_completion_without_a_server_offers_nothing_and_says_nothing(server: MockServer, program: Path) -> None:
    server.url = "http://127.0.0.1:9"
    assert complete(server, program, "space exec sb-") == []
