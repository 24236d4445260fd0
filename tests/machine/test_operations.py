"""What an operator does with a running server: stop it, save it, put it back, read its logs."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import space
from space.model.errors import Conflict, NotFound, Unauthenticated
from space.serve.backup import backup
from space.serve.private import random_name
from space.serve.restore import restore
from space.setup import systemd
from space.testing import leaks, machine
from space.testing.machine import Runtime, Server

Make = Callable[..., Server]


def test_a_server_set_so_ends_its_sandboxes_when_it_stops_and_says_so_in_json(server: Make) -> None:
    one = server(on_stop="delete", log_format="json")
    served, instance = one.served, one.instance
    assert served is not None
    with space.Client(api_url=served.url, api_key=served.api_key) as client:
        made = [space.Sandbox.create(client=client, memory_mib=256) for _ in range(2)]
        assert made[0].run("echo hi", check=True).stdout == b"hi\n"
    assert len(machine.vmm_pids(instance)) == 2
    one.stop()
    assert machine.vmm_pids(instance) == []
    assert not leaks.of_sandboxes(instance)
    lines = [json.loads(line) for name in ("control", "node", "rootd") for line in (instance.log / f"{name}.log").read_text().splitlines()]
    assert {line["service"] for line in lines} == {"control", "node", "rootd"}
    assert "ended the sandboxes; 0 are left" in [line["message"] for line in lines]
    assert {line["service"] for line in lines if line.get("sandbox") == made[0].id} >= {"control", "rootd"}
    assert [line for line in lines if line.get("request_id", "").startswith("req-") and line.get("sandbox") == made[0].id]
    again = one.start()
    with space.Client(api_url=again.url, api_key=again.api_key) as client:
        for each in made:
            ended = space.Sandbox.connect(each.id, client=client).info()
            assert (ended.phase.value, ended.reason) == ("gone", "the server was stopped (on_stop = delete)")


def test_a_server_with_the_units_rights_alone_runs_sandboxes_and_tells_its_manager(runtime: Runtime, tmp_path: Path) -> None:
    """What can be held to without a systemd: capabilities, no_new_privs, the notification."""
    before = leaks.of_host()
    bounding = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in systemd.CAPABILITIES)])
    name, rights, address = random_name(), ["setpriv", "--no-new-privs", f"--bounding-set={bounding}"], tmp_path / "notify"
    program = [str(runtime.python), "-I", "-m", "space.serve.main", "--instance", name, "--json", "--ephemeral", "--set", "port=0"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(60)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": str(address), "SPACE_MAX_SANDBOXES": "3"}
        serve = subprocess.Popen([*rights, *program, *(["--dev"] if runtime.dev else [])], stdout=subprocess.PIPE, env=environment)
        try:
            assert serve.stdout is not None
            ready = json.loads(serve.stdout.readline())
            assert manager.recv(100) == b"READY=1"
            key = Path(ready["key_file"]).read_text().strip()
            with space.Client(api_url=ready["url"], api_key=key) as client, space.Sandbox.create(client=client, memory_mib=256) as sandbox:
                assert sandbox.run("echo hi", check=True).stdout == b"hi\n"
        finally:
            serve.terminate()
            assert serve.wait(60) == 0
        assert manager.recv(100) == b"STOPPING=1"
    leaks.settle(leaks.of_host, before)


def test_a_served_instance_is_saved_and_put_back_with_its_keys(server: Make, runtime: Runtime, tmp_path: Path) -> None:
    one = server()
    served, instance = one.served, one.instance
    assert served is not None
    with space.Client(api_url=served.url, api_key=served.api_key) as client:
        before = client.create_key(tenant="a", name="before")
        kept = space.Sandbox.create(client=client, memory_mib=256)
        made = subprocess.run(
            runtime.space("--instance", instance.name, "--json", "backup", str(tmp_path / "b")), capture_output=True, check=True, timeout=60
        )
        assert json.loads(made.stdout)["instance"] == instance.name
        seen = subprocess.run(runtime.space("--instance", instance.name, "--json", "doctor"), capture_output=True, check=False, timeout=120)
        looked = {check["name"]: check for check in json.loads(seen.stdout)["checks"]}
        assert looked[f"instance {instance.name}"]["ok"], looked[f"instance {instance.name}"]
        assert "isolation: " in looked[f"instance {instance.name}"]["detail"]
        assert looked[f"settings of {instance.name}"]["level"] == "ok"
        since = client.create_key(tenant="a", name="since")
        later = space.Sandbox.create(client=client, memory_mib=256)
    with pytest.raises(Conflict, match="is served already"):
        restore(instance.name, tmp_path / "b")
    one.stop()
    backup(instance, tmp_path / "stopped")
    restore(instance.name, tmp_path / "b")
    again = one.start()
    with space.Client(api_url=again.url, api_key=served.api_key) as client:
        found = space.Sandbox.connect(kept.id, client=client)
        assert found.run("echo still", check=True).stdout == b"still\n"
        with pytest.raises(NotFound):
            space.Sandbox.connect(later.id, client=client)
    with space.Client(api_url=again.url, api_key=before.key) as client:
        client.templates()
    with space.Client(api_url=again.url, api_key=since.key) as client, pytest.raises(Unauthenticated):
        client.templates()
    leaks.settle(lambda: frozenset(map(str, machine.vmm_pids(instance)[1:])))  # what the backup does not know of is ended
