"""The guest's daemon on its own ground: many processes, root that runs away or tears its system down, and what it takes when idle."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import space
from space.model.errors import SpaceError
from space.serve.private import Served
from space.testing.machine import Server

# Leaves its cgroup, by itself and with a companion in a process group of its own; argv[1] names both.
_RUN_AWAY = """
import os, sys, time
with open('/sys/fs/cgroup/cgroup.procs', 'w') as group: group.write('0')
if os.fork() == 0: os.setpgid(0, 0)
else: print(open('/proc/self/cgroup').read(), flush=True)
time.sleep(250)
"""
_STATES = "cat /proc/[0-9]*/stat 2>/dev/null"


def run_away(sandbox: space.Sandbox, name: str, **options: object) -> space.Result:
    return sandbox.run(["python3", "-c", _RUN_AWAY, name], user="root", **options)  # type: ignore[arg-type]


def named(sandbox: space.Sandbox, name: str) -> int:
    """How many processes of the guest have that argument."""
    return int(sandbox.run(f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '{name[:-1]}[{name[-1]}]' || true").stdout)


def until(claim: Callable[[], bool], seconds: float) -> None:
    """Wait until it is so, or fail."""
    end = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def roomy(client: space.Client) -> Iterator[space.Sandbox]:
    """A sandbox with room for many processes, for the tests of this module that leave it as they found it."""
    with space.Sandbox.create(client=client, memory_mib=1024) as found:
        yield found


def quick(sandbox: space.Sandbox, count: int) -> None:
    """That many commands, eight at a time; then neither a zombie nor a cgroup of theirs is left."""

    def one(number: int) -> None:
        assert sandbox.run(["echo", str(number)]).stdout == f"{number}\n".encode()

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(one, range(count)):
            pass
    states = sandbox.run(_STATES).stdout.decode()
    assert re.findall(r"^\d+ \((.*)\) Z", states, re.MULTILINE) == []
    leaves = sandbox.run("ls -d /sys/fs/cgroup/work/*/").stdout.split()
    assert len(leaves) == 1, "that of the command that asks"


def test_a_hundred_commands_leave_no_zombie_and_no_cgroup(roomy: space.Sandbox) -> None:
    quick(roomy, 100)


@pytest.mark.full
def test_a_thousand_commands_leave_no_zombie_and_no_cgroup(roomy: space.Sandbox) -> None:
    quick(roomy, 1000)


def test_a_command_gets_its_three_descriptors_and_the_usual_limit(roomy: space.Sandbox) -> None:
    told = roomy.run(["python3", "-c", "import os, resource as r; print(os.listdir('/proc/self/fd'), r.getrlimit(r.RLIMIT_NOFILE))"])
    assert told.stdout == b"['0', '1', '2', '3'] (1024, 524288)\n", "3 is the directory that is listed"


def test_three_hundred_commands_at_once_are_all_ended_by_their_timeout(served: Served, roomy: space.Sandbox) -> None:
    """A client has at most a hundred connections, so there are four. The daemon answers meanwhile, and soon after they were killed."""
    count, clients = 300, 4
    slowest = 0.0
    with ExitStack() as stack:
        callers = [stack.enter_context(space.Client(api_url=served.url, api_key=served.api_key)) for _ in range(clients)]
        places = [space.Sandbox.connect(roomy.id, client=one) for one in callers]
        pool = stack.enter_context(ThreadPoolExecutor(count))
        running = [pool.submit(places[number % clients].run, ["sleep", "600"], timeout=12) for number in range(count)]
        most = 0
        while not all(one.done() for one in running):
            begun = time.monotonic()
            most = max(most, roomy.metrics().processes)
            slowest = max(slowest, time.monotonic() - begun)
            time.sleep(0.2)
        results = [one.result() for one in running]
    print(f"{most} processes; the slowest answer came after {slowest:.2f} s")
    assert most >= count
    assert slowest < 15
    assert {(one.timed_out, one.exit_code, one.signal) for one in results} == {(True, None, 9)}


def test_a_timeout_ends_root_that_left_its_cgroup(roomy: space.Sandbox) -> None:
    begun = time.monotonic()
    result = run_away(roomy, "run-away-1", timeout=3)
    assert result.stdout == b"0::/\n\n", "it did leave"
    assert (result.timed_out, result.exit_code, result.signal) == (True, None, 9)
    assert time.monotonic() - begun < 15
    assert named(roomy, "run-away-1") == 0


def test_a_caller_that_goes_away_ends_root_that_left_its_cgroup(roomy: space.Sandbox) -> None:
    class Enough(Exception):
        pass

    def leave(_: str) -> None:
        raise Enough

    with pytest.raises(Enough):
        run_away(roomy, "run-away-2", on_stdout=leave)
    until(lambda: named(roomy, "run-away-2") == 0, 20)


def test_the_end_of_a_session_ends_everything_that_ran(server: Callable[[], Server]) -> None:
    """The node dies; the next one's session finds nothing of the former's, not even what left cgroup, process group and session."""
    one = server()
    served = one.served
    assert served is not None
    daemon = "setsid python3 -c '" + _RUN_AWAY.replace("'", '"') + "' run-away-3 >/tmp/away & until [ -s /tmp/away ]; do sleep 0.1; done"
    with space.Client(api_url=served.url, api_key=served.api_key) as client, space.Sandbox.create(client=client) as sandbox:
        sandbox.run(daemon, user="root", check=True)
        assert named(sandbox, "run-away-3") == 2, "what left its cgroup outlives its command"
        one.kill("node")

        def works() -> bool:
            try:
                sandbox.noop()
            except SpaceError:
                return False
            return True

        until(works, 60)
        assert named(sandbox, "run-away-3") == 0


def test_an_idle_daemon_takes_less_than_three_mebibytes(roomy: space.Sandbox) -> None:
    def taken() -> int:
        status = dict(line.split(":", 1) for line in roomy.run(["cat", "/proc/1/status"], user="root").stdout.decode().splitlines())
        return sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))

    roomy.run(["python3", "-c", "print('x' * (8 << 20))"], check=True)  # what it needed for this it gives back
    kib = taken()
    print(f"RssAnon and RssShmem of PID 1: {kib} KiB")
    assert kib < 3 << 10


def test_a_mount_over_the_daemons_files_stops_only_what_needs_them(sandbox: space.Sandbox, tmp_path: Path) -> None:
    """A FIFO over a file that the daemon reads would make it wait for ever; then the system itself is removed."""
    over = "mkfifo /fifo && for file in meminfo stat loadavg; do mount --bind /fifo /proc/$file; done; mount -t tmpfs none /dev/pts"
    sandbox.run(over, user="root", check=True)
    sandbox.metrics()
    sandbox.noop()
    sandbox.run("umount /proc/meminfo /proc/stat /proc/loadavg; echo kept > /home/user/kept", user="root", check=True)
    sandbox.run("rm -rf /usr /bin /lib* /sbin 2>/dev/null", user="root")
    sandbox.noop()
    assert sandbox.metrics().memory_total > 0
    sandbox.download("/home/user/kept", tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == b"kept\n"
    with pytest.raises(SpaceError) as refused:
        sandbox.run(["true"])
    assert refused.value.code == "not_found"
