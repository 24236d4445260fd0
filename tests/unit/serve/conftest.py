"""Small services that stand in for rootd, node and control: real processes, real uids, one file's worth of behaviour."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from space.config.instance import Instance
from space.host import namespaces
from space.model.ids import instance_name
from space.serve import layout
from space.serve.service import Role

PYTHON = "/usr/bin/python3"

# It answers every connection with what it is, and ends when asked. Its arguments are what the real ones get.
SERVICE = r"""
import json, os, signal, socket, sys, time
name, listen_fd, ready_fd, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if how == "dies at once":
    print("no such luck", file=sys.stderr)
    sys.exit(3)
if name == "control":
    def end_all(*_):
        print("told to end every sandbox", file=sys.stderr, flush=True)
        sys.exit(0)
    signal.signal(signal.SIGUSR1, end_all)
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
facts = {
    "pid": os.getpid(), "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "environ": dict(os.environ),
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")), "cwd": os.getcwd(), "sid": os.getsid(0),
    "no_new_privs": status["NoNewPrivs"], "bounding": status["CapBnd"], "effective": status["CapEff"],
    "permitted": status["CapPrm"], "inheritable": status["CapInh"], "ambient": status["CapAmb"],
}
if os.path.realpath("/proc/self/fd/6").startswith("/memfd:space-tls"):
    facts["tls"] = open("/proc/self/fd/6").read()
listener = socket.socket(fileno=listen_fd)
os.write(ready_fd, b"isolation of " + name.encode())
os.close(ready_fd)
while True:
    connection, _ = listener.accept()
    connection.sendall(json.dumps(facts).encode())
    connection.close()
"""


def _command(behaviour: dict[str, str] | None = None) -> Callable[[Role, int, int], list[str]]:

    def build(role: Role, listen_fd: int, ready_fd: int) -> list[str]:
        return [PYTHON, "-I", "-c", SERVICE, role.name, str(listen_fd), str(ready_fd), (behaviour or {}).get(role.name, "")]

    return build


def _ask(address: Path | tuple[str, int]) -> dict[str, object]:
    if isinstance(address, tuple):
        connection = socket.create_connection(address, timeout=10)
    else:
        kind = socket.SOCK_STREAM if address.name == "node.sock" else socket.SOCK_SEQPACKET
        connection = socket.socket(socket.AF_UNIX, kind)
        connection.settimeout(10)
        connection.connect(str(address))
    with connection:
        data = b""
        while part := connection.recv(65536):
            data += part
            with suppress(ValueError):
                return dict(json.loads(data))
    raise AssertionError(f"no whole answer: {data!r}")


@pytest.fixture
def command() -> Callable[..., Callable[[Role, int, int], list[str]]]:
    """The stand-ins' command line; an argument says the behaviour by role."""
    return _command


@pytest.fixture
def ask() -> Callable[..., dict[str, object]]:
    """What the service behind an address says of itself."""
    return _ask


@pytest.fixture
def instance(tmp_path: Path, worker_id: str) -> Iterator[Instance]:
    """An instance below a directory of the test's own, with uids that no real instance uses (its index is past their last)."""
    number = 0 if worker_id == "master" else int(worker_id.removeprefix("gw")) + 1
    made = Instance(instance_name("unit"), 300 + number, tmp_path / "data", tmp_path / "run")
    layout.make_directories(made)
    yield made
    left = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _uid(entry) in made.uid_range]
    assert not left, f"processes of the instance's uids are left: {left}"


def _uid(entry: Path) -> int:
    """Whose the process is; -1 for a zombie, which the machine's init (not always a prompt one) has yet to reap."""
    if namespaces.start_time(int(entry.name)) is None:
        return -1
    try:
        return entry.stat().st_uid
    except FileNotFoundError:
        return -1
