"""Lives of real guests over the API: suspended and woken with a process that runs, woken by a call, taken back, forked."""

from __future__ import annotations

import time

import pytest

import space
from space.model.errors import Conflict
from space.model.sandbox import IdlePolicy, Phase
from space.sdk._sync.client import Client

COUNTS = "i=0; while sleep 0.2; do i=$((i+1)); echo $i; done"


def _until(sandbox: space.Sandbox, phase: Phase, seconds: float = 60) -> space.SandboxInfo:
    end = time.monotonic() + seconds
    while (info := sandbox.info()).phase is not phase:
        assert time.monotonic() < end, info
        time.sleep(0.1)
    return info


def _numbers(output: bytes) -> list[int]:
    return [int(line) for line in output.split()]


def test_a_suspended_sandbox_wakes_with_its_process_and_no_output_is_missing(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256) as sandbox:
        process = sandbox.start(["/bin/sh", "-c", COUNTS])
        sandbox.run("echo kept > /dev/shm/kept && echo disk > disk", check=True)
        sandbox.suspend()
        info = sandbox.info()
        assert (info.phase, info.expires_at, info.snapshot_bytes > 0) == (Phase.SUSPENDED, None, True)
        with pytest.raises(Conflict, match="suspended"):
            sandbox.run(["true"])
        before = process.info().stdout_bytes
        sandbox.wake()
        info = sandbox.info()
        assert (info.phase, info.generation, info.start) == (Phase.RUNNING, 2, "restore")
        assert sandbox.run("cat /dev/shm/kept disk", check=True).stdout == b"kept\ndisk\n"
        end = time.monotonic() + 30
        while process.info().stdout_bytes <= before:
            assert time.monotonic() < end
            time.sleep(0.2)
        process.kill()
        process.wait()
        told = _numbers(process.result().stdout)
        assert told == list(range(1, len(told) + 1))


def test_a_call_wakes_what_its_idle_rule_suspended(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256, idle=IdlePolicy(2, "suspend")) as sandbox:
        sandbox.run("echo kept > /dev/shm/kept", check=True)
        assert _until(sandbox, Phase.SUSPENDED).reason == "idle for 2 s"
        assert sandbox.run("cat /dev/shm/kept", check=True).stdout == b"kept\n"


def test_children_of_a_fork_differ_from_each_other_and_from_their_parent_which_goes_on(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256) as sandbox:
        sandbox.run("echo parent > /dev/shm/who; echo unsynced > disk", check=True)
        made = sandbox.checkpoint()
        sandbox.run("echo later > /dev/shm/who", check=True)
        first, second = sandbox.fork(2, ttl_seconds=120)
        with first, second:
            first.run("echo first > /dev/shm/who", check=True)
            assert second.run("cat /dev/shm/who disk", check=True).stdout == b"later\nunsynced\n"
            assert first.run("cat /dev/shm/who", check=True).stdout == b"first\n"
            names = {one.run("cat /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | od -An -tx1", check=True).text
                     for one in (sandbox, first, second)}  # fmt: skip
            assert len(names) == 3
        sandbox.rollback(made)
        assert sandbox.run("cat /dev/shm/who", check=True).stdout == b"parent\n"
        assert sandbox.info().generation == 2


def test_a_sandbox_becomes_a_template_whose_sandboxes_have_its_disk_and_none_of_its_environment(client: Client) -> None:
    with space.Sandbox.create(client=client, memory_mib=256, env={"TOKEN": "hush"}) as sandbox:
        sandbox.files.write("made", b"here")
        made = sandbox.keep_as_template("kept:v1", idempotency_key="once")
        assert sandbox.keep_as_template("kept:v1", idempotency_key="once") == made
        assert sandbox.run("cat made; echo $TOKEN", check=True).stdout == b"herehush\n", "it goes on"
        with space.Sandbox.create("kept:v1", client=client, memory_mib=256) as other:
            assert other.files.read("made") == b"here"
            assert other.run('echo "[$TOKEN]"; hostname', check=True).text.splitlines() == ["[]", other.id]
    client.delete_template("kept:v1")
