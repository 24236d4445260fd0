"""`space` as a process of its own: standard input, signals, closed pipes, no server, and how soon it is there."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import space
from space.sdk.testing import MockServer, Process, Reply

SPACE = [sys.executable, "-m", "space.cli.main"]


@pytest.fixture
def server() -> Iterator[MockServer]:
    server = MockServer()
    with server.listen() as url:
        server.url = url
        yield server


def environment(server: MockServer) -> dict[str, str]:
    return {**os.environ, "SPACE_API_URL": server.url, "SPACE_API_KEY": server.key}


def run(server: MockServer, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    source: dict[str, Any] = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        [*SPACE, *arguments], env=environment(server), capture_output=True, check=False, timeout=60, **source
    )
    return done


def test_what_is_piped_in_goes_in(server: MockServer, tmp_path: Path) -> None:
    assert run(server, "run", "--", "cat", stdin=b"x\n\xff").stdout == b"x\n\xff"
    (tmp_path / "file").write_bytes(b"from a file")
    with (tmp_path / "file").open("rb") as file:
        done = subprocess.run([*SPACE, "run", "--", "cat"], env=environment(server), stdin=file, capture_output=True, check=True)
    assert done.stdout == b"from a file"


def test_stdin_is_left_alone_when_it_is_no_pipe_or_was_not_wanted(server: MockServer) -> None:
    seen: list[Process] = []

    @server.program("look")
    def look(process: Process) -> Reply:
        seen.append(process)
        return Reply()

    assert run(server, "run", "--", "look").returncode == 0
    assert run(server, "run", "--no-stdin", "--", "look", stdin=b"x").returncode == 0
    assert [process.stdin for process in seen] == [b"", b""]


def test_a_tar_stream_goes_in_and_out_through_pipes(server: MockServer, tmp_path: Path) -> None:
    made = run(server, "create", "-q").stdout.decode().strip()
    (tmp_path / "a").write_text("a")
    tar = subprocess.run(["tar", "-C", tmp_path, "-c", "a"], capture_output=True, check=True).stdout
    assert run(server, "cp", "-", f"{made}:/srv", stdin=tar).returncode == 0
    assert server.sandboxes[made].files == {"/srv/a": b"a"}
    out = run(server, "cp", f"{made}:/srv", "-").stdout
    assert b"./a" in subprocess.run(["tar", "-t"], input=out, capture_output=True, check=True).stdout.split()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
def test_a_signal_ends_the_command_and_deletes_the_sandbox(server: MockServer, number: int, status: int) -> None:
    going = threading.Event()
    ended = threading.Event()

    def forever() -> Iterator[tuple[str, bytes]]:
        going.set()
        while not ended.wait(0.01):
            yield "stdout", b"y"

    server.program("forever")(lambda _: Reply(pieces=forever()))
    # a job in the background of a shell without job control inherits an ignored SIGINT, and passes it on
    command = ["env", "--default-signal=INT,TERM,HUP,QUIT", *SPACE, "run", "--", "forever"]
    process = subprocess.Popen(command, env=environment(server), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"y"
    assert going.is_set()
    process.send_signal(number)
    process.communicate(timeout=30)  # its reader stays: one that leaves ends it in another way
    assert process.returncode == status
    assert server.sandboxes == {}
    ended.set()


def test_a_reader_that_leaves_ends_the_command_quietly(server: MockServer) -> None:
    server.program("yes")(lambda _: Reply(pieces=iter(lambda: ("stdout", b"y\n" * 4096), None)))
    pipe = subprocess.Popen(
        [*SPACE, "run", "--", "yes"], env=environment(server), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    assert pipe.stdout.read(2) == b"y\n"
    pipe.stdout.close()
    assert pipe.wait(30) == 141
    assert pipe.stderr.read() == b""
    assert server.sandboxes == {}
    pipe.stderr.close()


def bare_environment() -> dict[str, str]:
    """Neither a server nor a key, and this package."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(space.__file__).parents[1])}


def test_without_a_server_and_without_root_it_says_what_to_do(tmp_path: Path) -> None:
    code = "import os, sys; os.geteuid = lambda: 1000; import space.sdk.endpoint as e; from pathlib import Path\n"
    code += f"e.resolve.__kwdefaults__.update(run_root=Path({str(tmp_path)!r}), data_root=Path({str(tmp_path)!r}))\n"
    code += "from space.cli.main import main; sys.exit(main(['run', '--', 'true']))"
    bare = bare_environment()
    done = subprocess.run([sys.executable, "-c", code], env=bare, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "no server is known" in done.stderr
    assert "be root" in done.stderr


@pytest.mark.parametrize("only", [["--server"], ["--keep"]])
def test_a_private_server_is_not_started_where_that_is_forbidden(tmp_path: Path, only: list[str]) -> None:
    code = "import sys, space.sdk.endpoint as e; from pathlib import Path\n"
    code += f"e.resolve.__kwdefaults__.update(run_root=Path({str(tmp_path)!r}), data_root=Path({str(tmp_path)!r}))\n"
    code += "sys.modules['space.serve.private'] = None\n"
    code += f"from space.cli.main import main; sys.exit(main(['run', *{only!r}, '--', 'true']))"
    bare = bare_environment()
    done = subprocess.run([sys.executable, "-c", code], env=bare, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, "no server is known" in done.stderr) == (125, True)


def test_a_private_server_is_started_for_one_run_and_stopped_after_it(server: MockServer, tmp_path: Path) -> None:
    """The seam only: a private instance that is the mock server. The real one is a machine test."""
    code = f"""
import os, sys, types
from contextlib import contextmanager
from pathlib import Path
import space.sdk.endpoint as e
e.resolve.__kwdefaults__.update(run_root=Path({str(tmp_path)!r}), data_root=Path({str(tmp_path)!r}))
os.geteuid = lambda: 0
private = types.ModuleType("space.serve.private")
@contextmanager
def private_instance():
    print("up", file=sys.stderr)
    yield types.SimpleNamespace(url={server.url!r}, api_key={server.key!r})
    print("down", file=sys.stderr)
private.private_instance = private_instance
sys.modules["space.serve.private"] = private
from space.cli.main import main
sys.exit(main(["run", "--", "sh", "-c", "exit 7"]))
"""
    bare = bare_environment()
    done = subprocess.run([sys.executable, "-c", code], env=bare, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "up\ndown\n")
    assert server.sandboxes == {}


def test_version_is_there_at_once() -> None:
    """Processor time, which other jobs on the machine disturb less: 0.25 s at most."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*SPACE, "version"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.25


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = "import sys; from space.cli.main import main; main(['version']); "
    code += "print([m for m in ('httpx', 'rich', 'space.serve', 'space.setup', 'space.sdk', 'asyncio', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0.1.0\n[]\n"


def test_logs_that_are_interrupted_say_where_to_go_on_to_a_pipe_too(server: MockServer) -> None:
    ended = threading.Event()

    def forever() -> Iterator[tuple[str, bytes]]:
        yield "stdout", b"y"
        ended.wait(30)

    server.program("forever")(lambda _: Reply(pieces=forever()))
    sandbox = run(server, "create", "-q").stdout.decode().strip()
    started = run(server, "start", sandbox, "--", "forever").stdout.decode().strip()
    command = ["env", "--default-signal=INT", *SPACE, "logs", "-f", sandbox, started]
    process = subprocess.Popen(command, env=environment(server), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"y"
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=30)[1]
    ended.set()
    assert process.returncode == 130
    assert err.startswith(b"space: go on with --since-offset stdout=")
