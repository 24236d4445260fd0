"""What a person gets, end to end: CLI and SDK, HTTP, control, node, rootd, VMM, guest."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import time
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import space
from space.config.instance import instances
from space.model.errors import NoCapacity, NotFound, SpaceError
from space.model.isolation import EMULATED, HARDWARE
from space.serve import records
from space.serve.private import Served
from space.testing import leaks, machine
from space.testing.machine import Runtime

MIB = 1 << 20


def cli(runtime: Runtime, *arguments: str, served: Served | None = None, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the CLI against a server, or without any."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    if served is not None:
        env |= {"SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}
    return subprocess.run(runtime.space(*arguments), input=data, capture_output=True, env=env, timeout=200, check=False)


def unserved() -> leaks.Things:
    """Instances on the host whose lock nobody holds."""
    found = set()
    for instance in instances():
        try:
            with instance.lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            continue
        found.add(instance.name)
    return frozenset(found)


# -- the command line ------------------------------------------------------------------------------------------------
def test_space_run_prints_42_and_ends_with_0(runtime: Runtime, served: Served) -> None:
    done = cli(runtime, "run", "--", "python3", "-c", "print(6*7)", served=served)
    assert (done.returncode, done.stdout) == (0, b"42\n"), done.stderr.decode()


def test_space_run_ends_with_the_commands_status_and_passes_stdin_on(runtime: Runtime, served: Served) -> None:
    done = cli(runtime, "run", "--", "sh", "-c", "cat; echo beside >&2; exit 7", served=served, data=b"x\n")
    assert (done.returncode, done.stdout) == (7, b"x\n")
    assert b"beside\n" in done.stderr


def test_space_run_without_a_server_brings_its_own_and_leaves_nothing(runtime: Runtime) -> None:
    before = unserved()
    done = cli(runtime, "run", "--", "uname", "-r")
    assert done.returncode == 0, done.stderr.decode()
    assert re.fullmatch(rb"\d+\.\d+\.\S+\n", done.stdout)
    assert done.stdout.decode().strip() != os.uname().release
    leaks.settle(unserved, before)  # not all instances: other workers' come and go meanwhile


# -- commands ----------------------------------------------------------------------------------------------------------
def test_stdout_and_stderr_are_apart_and_live(shared: space.Sandbox) -> None:
    seen: list[tuple[str, str]] = []
    script = "echo one; sleep 0.3; echo two >&2; sleep 0.3; echo three"
    result = shared.run(script, on_stdout=lambda text: seen.append(("out", text)), on_stderr=lambda text: seen.append(("err", text)))
    assert (result.stdout, result.stderr) == (b"one\nthree\n", b"two\n")
    assert seen == [("out", "one\n"), ("err", "two\n"), ("out", "three\n")]


def test_twenty_megabytes_of_output_are_exact(shared: space.Sandbox) -> None:
    code = "import sys\nfor n in range(20): sys.stdout.buffer.write(bytes((n * 7 + i) & 255 for i in range(256)) * 4096)"
    result = shared.run(["python3", "-c", code], timeout=120)
    wanted = b"".join(bytes((n * 7 + i) & 255 for i in range(256)) * 4096 for n in range(20))
    assert (result.exit_code, len(result.stdout)) == (0, 20 * MIB)
    assert result.stdout == wanted


def test_sixteen_mebibytes_of_input_arrive_whole_also_with_a_slow_reader(shared: space.Sandbox) -> None:
    data = random.Random(16).randbytes(16 * MIB)
    code = "import sys, time, zlib\ntime.sleep(1)\nd = sys.stdin.buffer.read()\nprint(len(d), zlib.crc32(d))"
    result = shared.run(["python3", "-c", code], stdin=data, timeout=120)
    assert result.stdout.decode().split() == [str(16 * MIB), str(zlib.crc32(data))]
    with pytest.raises(SpaceError) as refused:
        shared.run(["cat"], stdin=data + b"x")
    assert refused.value.code in ("too_large", "invalid_argument")


def test_a_timeout_kills_the_whole_group(shared: space.Sandbox) -> None:
    begun = time.monotonic()
    result = shared.run("sleep 4711 & sleep 4711", timeout=1.5)
    assert result.timed_out
    assert (result.exit_code, result.signal) == (None, 9)
    assert time.monotonic() - begun < 30
    assert shared.run("grep -lxz '471[1]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l").stdout == b"0\n"


def test_a_signal_is_told_apart_from_an_exit_code(shared: space.Sandbox) -> None:
    result = shared.run(["python3", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"])
    assert (result.exit_code, result.signal, result.timed_out) == (None, 15, False)
    assert shared.run("exit 143").exit_code == 143


def test_out_of_memory_is_told_and_the_daemon_survives(shared: space.Sandbox) -> None:
    hog = "b = []\nwhile True: b.append(bytearray(16 << 20))"
    result = shared.run(["python3", "-c", hog], timeout=120)
    assert (result.signal, result.oom_killed) == (9, True)
    shared.noop()
    assert shared.run(["echo", "still here"]).stdout == b"still here\n"


def test_environment_directory_and_user(shared: space.Sandbox) -> None:
    result = shared.run('echo "$FOO $HOME $USER $PWD"', env={"FOO": "bar"})
    assert result.stdout == b"bar /home/user user /home/user\n"
    assert shared.run('echo "$HOME $USER $PWD $(id -u)"', user="root", cwd="/usr/lib").stdout == b"/root root /usr/lib 0\n"
    for wrong in ({"cwd": "/not/there"}, {"user": "nobody-here"}):
        with pytest.raises(SpaceError) as refused:
            shared.run(["true"], **wrong)  # type: ignore[arg-type]
        assert refused.value.code == "invalid_argument"
    with pytest.raises(NotFound):
        shared.run(["no-such-program"])
    assert shared.run("sudo -n id -u").stdout == b"0\n"


# -- trees ---------------------------------------------------------------------------------------------------------------
def tree_digest(root: Path) -> str:
    """Names, modes, links and contents of a tree."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        found = path.lstat()
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(root)}\0{found.st_mode:o}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def test_ten_thousand_files_go_in_and_out_as_they_are(shared: space.Sandbox, tmp_path: Path) -> None:
    source, chance = tmp_path / "tree", random.Random(10_000)
    for folder in range(100):
        (source / f"d{folder:02}").mkdir(parents=True)
        for number in range(100):
            path = source / f"d{folder:02}" / f"f {number}\n"
            path.write_bytes(chance.randbytes(chance.randrange(400)))
            path.chmod(0o755 if number % 7 == 0 else 0o644)
    (source / "-odd ünïcode").symlink_to("d00/f 1\n")
    sent = shared.upload(source, "/home/user/many")
    assert sent.entries >= 10_101
    shared.download("/home/user/many", tmp_path / "back")
    shared.run(["rm", "-rf", "/home/user/many"], check=True)
    assert tree_digest(tmp_path / "back") == tree_digest(source)


def test_a_full_guest_disk_is_a_typed_error_and_the_sandbox_goes_on(client: space.Client, tmp_path: Path) -> None:
    with space.Sandbox.create(client=client) as sandbox:
        room = sandbox.run("df --output=avail -B1 /home | tail -1").text
        sandbox.run(["fallocate", "-l", str(int(room) - 8 * MIB), "/home/user/filler"], user="root", check=True)
        (tmp_path / "big").write_bytes(random.Random(1).randbytes(64 * MIB))
        with pytest.raises(NoCapacity, match="disk is full"):
            sandbox.upload(tmp_path / "big", "/home/user/big")
        with pytest.raises(NoCapacity, match="disk is full"):
            sandbox.files.write("big", tmp_path.joinpath("big").read_bytes())
        assert not sandbox.files.exists("big")
        sandbox.run(["rm", "/home/user/filler"], user="root", check=True)
        assert sandbox.run(["echo", "on"]).stdout == b"on\n"


# -- the host ------------------------------------------------------------------------------------------------------------
def test_the_isolation_is_said_everywhere(client: space.Client, shared: space.Sandbox) -> None:
    label = client.health()["isolation"]
    assert shared.info().isolation == label
    assert label in (EMULATED, HARDWARE)


def test_the_host_listens_for_nobody_but_its_own_services(served: Served, shared: space.Sandbox) -> None:
    """Sockets that listen and belong to the instance: API, the services, and the VMM's own four, which only the node can reach."""
    shared.noop()
    run = served.instance.run
    listening = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and int(fields[3], 16) & 0x10000:  # __SO_ACCEPTCON
            listening.add(fields[7])
    ours = {path for path in listening if path.startswith(f"{run}/")}
    # ports: control's, for the ingress alone; relay: the ingress's, for control alone
    services = ("rootd", "node", "audit", "broker", "dialer", "minter", "gateway", "ports", "relay")
    assert ours - {str(run / f"{name}.sock") for name in services} <= {
        str(run / "vm" / shared.id / name) for name in ("qmp.sock", "control.sock", "bulk.sock", "serial.sock")
    }
    pids = processes(served)
    assert {served.pid, *machine.vmm_pids(served.instance)} < pids  # root's too
    assert len(pids) >= 5, "serve, rootd, node, control, a VMM"
    ingress = json.loads(served.instance.endpoint.read_text())["ingress"]
    ports = {int(url.rsplit(":", 1)[1]) for url in (served.url, ingress)}
    assert {said for pid in pids for said in reachable(pid)} == {f"tcp {port}" for port in ports}


def processes(served: Served) -> set[int]:
    """Every process of the instance: by its uids, and serve with what it started as root."""
    started = {record.pid for record in records.load(served.instance.services)}
    found = {served.pid, *started}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in served.instance.uid_range:
                found.add(int(entry.name))
    return found


def reachable(pid: int) -> set[str]:
    """What a network could say to a process: TCP that listens, and UDP, ping, raw and packet sockets in any state. Protocol and port.

    Looked up in the process's own network namespace. A table whose sockets have no state has no port either.
    """
    mine = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                mine.add(found[1])
    said = set()
    for name in ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "icmp", "icmp6", "packet"):
        table = Path(f"/proc/{pid}/net/{name}")
        lines = table.read_text().splitlines() if table.exists() else []
        if not lines:
            continue
        for fields in map(str.split, lines[1:]):
            inode = fields[8] if name == "packet" else fields[9]
            if inode in mine and not (name.startswith("tcp") and fields[3] != "0A"):
                said.add(name if name == "packet" else f"{name} {int(fields[1].rsplit(':', 1)[1], 16)}")
    return said


def test_every_kind_of_socket_that_a_network_reaches_is_seen() -> None:
    """Of the look itself: a socket of each kind, opened here, is found, and a TCP connection is none."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        before = reachable(os.getpid())
        assert f"tcp {port}" in before
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert reachable(os.getpid()) == before
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, 253))  # a number for experiments
        stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        assert reachable(os.getpid()) - before == {f"udp {datagrams.getsockname()[1]}", "raw 253", "packet"}


def test_the_vmm_is_jailed(served: Served, shared: space.Sandbox) -> None:
    """A brief look from outside; rootd's own tests are the thorough ones."""
    pids = machine.vmm_pids(served.instance)
    assert pids
    for pid in pids:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
        uids = set(status["Uid"].split())
        assert len(uids) == 1
        assert int(uids.pop()) in range(served.instance.vm_uid(0), served.instance.uid_range.stop)
        assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        for name in ("mnt", "net", "pid", "ipc"):
            assert Path(f"/proc/{pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink(), name
        assert not Path(f"/proc/{pid}/root/etc/passwd").exists()
    shared.noop()
