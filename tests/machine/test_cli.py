"""The command line on a real guest: what the mock server cannot promise for the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import space
from space.serve.private import Served
from space.testing.onterminal import OnTerminal

SPACE = [sys.executable, "-m", "space.cli.main"]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def env(served: Served) -> dict[str, str]:
    named = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(space.__file__).parents[1]), "LANG": "C.UTF-8"}
    return named | {"SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}


@pytest.fixture
def run(env: dict[str, str]) -> Run:
    def call(*words: str, stdin: bytes = b"", status: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run([*SPACE, *words], env=env, input=stdin, capture_output=True, timeout=120, check=False)
        assert done.returncode == status, f"{words}: {done.returncode} {done.stdout!r} {done.stderr!r}"
        return done

    return call


def answer(done: subprocess.CompletedProcess[bytes]) -> Any:
    return json.loads(done.stdout)


def test_a_process_is_started_followed_attached_to_and_ended(run: Run, env: dict[str, str], shared: space.Sandbox) -> None:
    loop = "trap 'echo bye; exit 3' TERM; while read line; do echo \"<$line>\"; echo err >&2; done"
    process = run("start", shared.id, "-i", "-e", "A=1", "--", "sh", "-c", loop).stdout.decode().strip()
    assert answer(run("ps", "--json", shared.id))["processes"][-1]["id"] == process
    with OnTerminal([*SPACE, "attach", shared.id, process], env) as attached:
        attached.type(b"from a terminal\n")
        attached.until(b"<from a terminal>")
        attached.type(b"\x03")
        assert attached.status() == 130
    following = subprocess.Popen([*SPACE, "logs", "-f", shared.id, process], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == b"<from a terminal>\n"
    run("kill", shared.id, process)
    out, err = following.communicate(timeout=60)
    assert (out, err, following.returncode) == (b"bye\n", b"err\n", 0)
    run("wait", shared.id, process, status=3)
    assert run("logs", shared.id, process, "--tail", "4", "--stream", "stdout").stdout == b"bye\n"
    run("kill", "--forget", shared.id, process)
    run("show", shared.id, process, status=125)


def test_a_terminal_in_the_background_is_attached_to_and_let_go_of(run: Run, env: dict[str, str], shared: space.Sandbox) -> None:
    process = (
        run("start", shared.id, "-t", "--", "sh", "-c", "stty -echo; while read line; do stty size; done; exit 5").stdout.decode().strip()
    )
    with OnTerminal([*SPACE, "attach", shared.id, process], env, rows=31, cols=99) as attached:
        attached.wait_raw()
        attached.type(b"\r")
        attached.until(b"31 99")
        attached.resize(20, 50)
        while b"20 50" not in attached.read():
            attached.type(b"\r")
        attached.type(b"\x10\x11")
        assert attached.status() == 0
        assert attached.modes_are_as_before()
    with OnTerminal([*SPACE, "attach", shared.id, process], env) as attached:
        attached.wait_raw()
        attached.type(b"\x04")
        assert attached.status() == 5
    run("kill", "--forget", shared.id, process)


def test_files_go_in_and_out_and_what_stays_is_counted(run: Run, shared: space.Sandbox, tmp_path: Path) -> None:
    tree = "/tmp/cli tree/d"
    run("files", "mkdir", shared.id, "-p", tree)
    written = answer(run("files", "write", "--json", shared.id, f"{tree}/x", "--mode", "640", stdin=b"\x00\xff" * 100_000))
    assert (written["size"], written["mode"]) == (200_000, 0o640)
    assert run("files", "cat", shared.id, f"{tree}/x", "--offset", "1", "--length", "3").stdout == b"\xff\x00\xff"
    run("files", "ln", shared.id, "x", f"{tree}/link")
    run("files", "mv", shared.id, f"{tree}/link", f"{tree}/l")
    run("files", "chown", shared.id, "root:root", f"{tree}/l")
    long = run("files", "ls", "-l", shared.id, tree).stdout.decode()
    assert "-rw-r----- " in long
    assert "l -> x" in long
    shared.run(["mkfifo", f"{tree}/pipe", "/tmp/cli tree/pipe"], check=True)
    done = run("cp", shared.id + ":/tmp/cli tree", str(tmp_path / "out"))
    assert done.stderr == b"space: 2 sockets, pipes or devices were left out\n"
    assert (tmp_path / "out/d/x").read_bytes() == b"\x00\xff" * 100_000
    os.mkfifo(tmp_path / "out/pipe")
    done = run("cp", "--json", str(tmp_path / "out"), f"{shared.id}:/tmp/cli tree/again")
    assert (answer(done)["left_out"], done.stderr) == (1, b"space: 1 socket, pipe or device was left out\n")
    run("files", "rm", "-r", shared.id, "/tmp/cli tree")
    run("files", "stat", shared.id, "/tmp/cli tree", status=125)


def test_ports_changes_events_and_figures_are_told(run: Run, env: dict[str, str], shared: space.Sandbox) -> None:
    shared.run("mkdir -p /tmp/served && echo from the guest > /tmp/served/index.html", check=True)
    process = run("start", shared.id, "-w", "/tmp/served", "--", "python3", "-u", "-m", "http.server", "8123").stdout.decode().strip()
    watching = subprocess.Popen([*SPACE, "watch", "--json", shared.id, "/tmp/served"], env=env, stdout=subprocess.PIPE)
    forwarding = subprocess.Popen(
        ["env", "--default-signal=INT", *SPACE, "forward", "--json", shared.id, "-:8123"], env=env, stdout=subprocess.PIPE
    )
    assert watching.stdout is not None
    assert forwarding.stdout is not None
    where = json.loads(forwarding.stdout.readline())
    for piece in shared.process(process).output():
        assert isinstance(piece, space.sdk.Output)
        if b"Serving HTTP" in piece.data:
            break
    with urllib.request.urlopen(f"http://{where['host']}:{where['port']}/", timeout=60) as response:
        assert response.read() == b"from the guest\n"
    forwarding.send_signal(signal.SIGINT)
    assert forwarding.wait(60) == 130
    run("files", "write", shared.id, "/tmp/served/new")
    # what is written has no name before it has its own, and then it is told by its number
    assert any(json.loads(line)["path"] == "new" for line in iter(watching.stdout.readline, b""))
    run("kill", "--forget", shared.id, process)  # whose directory it is: until it has left it, it is not gone
    run("files", "rm", "-r", shared.id, "/tmp/served")
    changes = [json.loads(line) for line in watching.stdout]
    assert (changes[-1]["kind"], changes[-1]["path"], watching.wait(60)) == ("deleted", "", 0)
    updated = answer(run("update", "--json", shared.id, "--metadata", "who=cli", "--ttl", "4000"))
    assert updated["spec"]["metadata"] == {"who": "cli"}
    kinds = [json.loads(line)["kind"] for line in run("events", "--json", "--sandbox", shared.id).stdout.splitlines()]
    assert kinds[0] == "created"
    assert kinds[-1] == "changed"
    assert answer(run("metrics", "--json", shared.id))["memory_total"] > 200 << 20
    assert (
        b"host memory" in run("metrics", "--history", shared.id).stdout
        or answer(run("metrics", "--history", "--json", shared.id))["samples"] == []
    )
    audited = [json.loads(line) for line in run("audit", "--json").stdout.splitlines()]
    assert {record["sandbox"] for record in audited} >= {shared.id}
    assert answer(run("quota", "set", "default", "--json", "--sandboxes", "50"))["quota"]["sandboxes"] == 50
    run("quota", "set", "default", "--sandboxes", "default")
