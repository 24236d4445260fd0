"""Each process of a server is killed in turn while a sandbox runs; afterwards the sandbox is there, works, and is told truly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import space
from space.config.services import NAMES
from space.model.errors import SpaceError
from space.serve.private import Served
from space.testing import leaks, machine
from space.testing.machine import Server

ADOPTED_WITHIN = 30.0


def until_answered(served: Served, sandbox_id: str) -> float:
    """Seconds until a command in the sandbox is answered rightly; an error before that is fine, a wrong answer is not."""
    begun = time.monotonic()
    while True:
        try:
            with (
                space.Client(api_url=served.url, api_key=served.api_key) as client,
                space.Sandbox.connect(sandbox_id, client=client) as sandbox,
            ):
                result = sandbox.run("cat /dev/shm/mark; echo $((6*7))")
                assert result.stdout == b"mine\n42\n"
                return time.monotonic() - begun
        except SpaceError as fault:
            if time.monotonic() - begun > ADOPTED_WITHIN:
                raise AssertionError(f"{sandbox_id} does not work {ADOPTED_WITHIN:g} s after the kill") from fault
            time.sleep(0.1)


def listed(served: Served) -> dict[str, str]:
    with space.Client(api_url=served.url, api_key=served.api_key) as client:
        return {info.id: info.phase.value for info in client.sandboxes() if info.phase.value != "gone"}


def test_a_running_sandbox_outlives_every_process_of_the_server(server: Callable[[], Server]) -> None:
    one = server()
    served = one.served
    assert served is not None
    made = space.Sandbox.create(api_url=served.url, api_key=served.api_key)
    made.run("echo mine > /dev/shm/mark", check=True)  # in memory: it proves that the very same guest runs on
    made.close()
    guests = machine.vmm_pids(one.instance)

    for role in reversed(NAMES):
        before = one.pid(role)
        killed = time.monotonic()
        one.kill(role)
        until_answered(served, made.id)
        while one.pid(role) == before:  # a command in the guest does not wait for the next rootd
            assert time.monotonic() - killed < ADOPTED_WITHIN
            time.sleep(0.02)
        assert listed(served) == {made.id: "running"}

    services = [one.pid(role) for role in NAMES]
    one.kill("serve")
    until_answered(served, made.id)  # nobody supervises, and it works
    again = one.start()
    assert again.url == served.url
    assert [one.pid(role) for role in NAMES] == services
    until_answered(again, made.id)

    # All at once, and a server that was stopped in order: the guest runs on through both.
    for role in NAMES:
        machine.kill(one.pid(role))
    one.kill("serve")
    until_answered(one.start(), made.id)
    one.stop()
    assert machine.vmm_pids(one.instance) == guests
    again = one.start()
    until_answered(again, made.id)
    assert listed(again) == {made.id: "running"}
    assert machine.vmm_pids(one.instance) == guests

    with space.Sandbox.connect(made.id, api_url=again.url, api_key=again.api_key) as sandbox:
        sandbox.delete()
        assert listed(again) == {}
    leaks.settle(lambda: leaks.of_sandboxes(one.instance))


def test_a_guest_that_floods_its_output_is_adopted(server: Callable[[], Server]) -> None:
    """The node dies with the pipe full: what the guest has yet to write, and what it is in the middle of, is nobody's any more."""
    one = server()
    served = one.served
    assert served is not None
    made = space.Sandbox.create(api_url=served.url, api_key=served.api_key)
    made.run("echo mine > /dev/shm/mark", check=True)
    guests = machine.vmm_pids(one.instance)

    def flood(flows: threading.Event) -> None:
        with (
            space.Client(api_url=served.url, api_key=served.api_key) as client,
            space.Sandbox.connect(made.id, client=client) as sandbox,
            pytest.raises(SpaceError),
        ):
            sandbox.run("yes", on_stdout=lambda _: flows.set())

    for _ in range(3):
        flows = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            flooding = pool.submit(flood, flows)
            assert flows.wait(30)
            one.kill("node")
            until_answered(served, made.id)
            flooding.result(60)
    assert machine.vmm_pids(one.instance) == guests
    made.delete()
    made.close()


def test_a_sandbox_whose_vmm_is_killed_is_told_as_failed_and_can_be_deleted(server: Callable[[], Server]) -> None:
    one = server()
    served = one.served
    assert served is not None
    with space.Sandbox.create(api_url=served.url, api_key=served.api_key) as sandbox:
        for pid in machine.vmm_pids(one.instance):
            machine.kill(pid)
        with pytest.raises(SpaceError):
            sandbox.run(["true"])
        deadline = time.monotonic() + 10
        while (info := sandbox.info()).phase != space.sdk.Phase.FAILED:
            assert time.monotonic() < deadline, f"still {info.phase}"
            time.sleep(0.05)
        assert info.reason
    leaks.settle(lambda: leaks.of_sandboxes(one.instance))


def test_a_private_instance_whose_serve_is_killed_is_removed_all_the_same(runtime: machine.Runtime) -> None:
    with machine.private(runtime) as served:
        machine.kill(served.pid)
        with space.Client(api_url=served.url, api_key=served.api_key) as client:
            assert client.health()["status"] == "ok"  # the services go on
    leaks.settle(lambda: leaks.of_instance(served.instance))


def test_the_death_of_the_owner_removes_a_private_instance(runtime: machine.Runtime, tmp_path: object) -> None:
    """As `space run` is killed: its serve notices by the socket between them."""
    import subprocess

    code = (
        "import sys, time\nfrom pathlib import Path\nfrom space.testing.machine import private, Runtime\n"
        f"with private(Runtime(Path({str(runtime.python)!r}), {runtime.dev})) as served:\n"
        "    import space\n"
        "    space.Sandbox.create(api_url=served.url, api_key=served.api_key)\n"
        "    print(served.instance.name, flush=True)\n    time.sleep(600)\n"
    )
    from space.config.instance import load

    with subprocess.Popen([str(runtime.python), "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        instance = load(name)
        assert instance is not None
        assert machine.vmm_pids(instance)
        owner.kill()
    leaks.settle(lambda: leaks.of_instance(instance), within=30)
