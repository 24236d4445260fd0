"""A service process has its uid, its two descriptors, and nothing else of ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from space.config.instance import Instance
from space.config.settings import Settings
from space.host.syscalls import CAP_SETGID, CAP_SETUID
from space.serve import kernel, layout, records
from space.serve.service import Command, Process, Role, ended, log_tail, start, stop

Commands = Callable[..., Command]
Ask = Callable[[Path], dict[str, object]]


def _ready(process: Process) -> bytes:
    assert process.ready is not None
    return os.read(process.ready, 100)


def _locked_memory(pid: int) -> str:
    """The hard limit."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max locked memory")).split()[4]


def _may_raise_limits() -> bool:
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> 24 & 1)


def _reap(process: Process) -> int:
    _, status = os.waitpid(process.pid, 0)
    process.close()
    return os.waitstatus_to_exitcode(status)


def test_service_has_its_uid_no_groups_no_capability_and_no_way_to_more(instance: Instance, command: Commands, ask: Ask) -> None:
    role = Role("node", instance.node_uid, 5)
    secret = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(secret, True)
    with layout.listen(instance, "node", Settings()) as listener:
        process = start(role, command(), listener, instance.log / "node.log")
        assert _ready(process) == b"isolation of node"
        facts = ask(instance.node_socket)
        assert stop(process) == "stopped"
    os.close(secret)
    assert _reap(process) == -signal.SIGTERM
    uid = instance.node_uid
    assert facts["uids"] == [uid] * 3
    assert facts["gids"] == [uid] * 3
    assert facts["groups"] == []
    assert facts["no_new_privs"] == "1"
    assert int(str(facts["bounding"]), 16) == 0
    assert int(str(facts["effective"]), 16) == 0
    assert {int(str(facts[which]), 16) for which in ("permitted", "inheritable", "ambient")} == {0}
    assert facts["environ"] == {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    assert facts["fds"] == [0, 1, 2, 3, 4, 5]  # 5 is the listing of the directory itself
    assert facts["cwd"] == "/"
    assert facts["sid"] == process.pid != os.getsid(0)


def test_the_zygote_has_two_capabilities_and_a_network_namespace_with_nothing_in_it(
    instance: Instance, command: Commands, ask: Ask
) -> None:
    role = Role("gateway", instance.gateway_uid, 5, capabilities=(CAP_SETUID, CAP_SETGID), alone=True)
    with layout.listen(instance, "gateway", Settings()) as listener:
        process = start(role, command(), listener, instance.log / "gateway.log")
        assert _ready(process) == b"isolation of gateway"
        facts = ask(instance.gateway_socket)
        namespace = Path(f"/proc/{process.pid}/ns/net").readlink()
        lines = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()
        interfaces = [line.split(":")[0].strip() for line in lines[2:]]
        assert stop(process) == "stopped"
    _reap(process)
    assert facts["uids"] == facts["gids"] == [instance.gateway_uid] * 3
    assert facts["groups"] == []
    assert facts["no_new_privs"] == "1"
    both = 1 << CAP_SETUID | 1 << CAP_SETGID
    assert {int(str(facts[which]), 16) for which in ("bounding", "effective", "permitted", "inheritable", "ambient")} == {both}
    assert namespace != Path("/proc/self/ns/net").readlink()
    assert interfaces == ["lo"]


def test_only_a_service_that_holds_keys_may_lock_its_memory(instance: Instance, command: Commands, ask: Ask) -> None:
    limits = {}
    for role in (Role("broker", instance.broker_uid, 5, locks_memory=True), Role("audit", instance.audit_uid, 5)):
        with layout.listen(instance, role.name, Settings()) as listener:
            process = start(role, command(), listener, instance.log / f"{role.name}.log")
            _ready(process)
            limits[role.name] = _locked_memory(process.pid)
            stop(process)
        _reap(process)
    # A container may withhold CAP_SYS_RESOURCE: then a limit that was given stays.
    assert limits["broker"] == ("unlimited" if _may_raise_limits() else limits["audit"])
    assert limits["audit"] == _locked_memory(os.getpid())


def test_a_service_that_ignores_the_request_is_killed_and_it_is_said(instance: Instance, command: Commands) -> None:
    with layout.listen(instance, "node", Settings()) as listener:
        process = start(Role("node", instance.node_uid, 0.2), command({"node": "deaf"}), listener, instance.log / "node.log")
        _ready(process)
        assert stop(process) == "killed: it did not stop within 0.2 s"
    assert _reap(process) == -signal.SIGKILL


def test_the_log_keeps_what_a_dying_service_wrote(instance: Instance, command: Commands) -> None:
    log = instance.log / "node.log"
    with layout.listen(instance, "node", Settings()) as listener:
        process = start(Role("node", instance.node_uid, 5), command({"node": "dies at once"}), listener, log)
        assert _ready(process) == b""
        assert ended(process, 10)
    assert _reap(process) == 3
    assert log_tail(log) == "no such luck"


def test_a_large_log_loses_its_older_half_at_start(instance: Instance, command: Commands) -> None:
    log = instance.log / "node.log"
    log.write_bytes(b"an old line\n" * (1 << 20))
    with layout.listen(instance, "node", Settings()) as listener:
        process = start(Role("node", instance.node_uid, 5), command({"node": "dies at once"}), listener, log)
        assert ended(process, 10)
    _reap(process)
    lines = log.read_text().splitlines()
    assert lines[-1] == "no such luck"
    assert set(lines[:-1]) == {"an old line"}
    assert (4 << 20) - 12 <= log.stat().st_size <= (4 << 20) + 13


def test_a_record_is_attached_only_to_the_very_process_it_names(instance: Instance, command: Commands) -> None:
    role = Role("node", instance.node_uid, 5)
    with layout.listen(instance, "node", Settings()) as listener:
        process = start(role, command(), listener, instance.log / "node.log")
        _ready(process)
        good = records.Record("node", process.pid, process.started, kernel.boot_id(), "b")
        records.save(instance.services, [good])
        assert records.load(instance.services) == [good]
        found = records.attach(good, role)
        assert found is not None
        assert found.pid == process.pid
        found.close()
        for bad in (
            records.Record("node", process.pid, process.started + 1, good.boot, "b"),
            records.Record("node", process.pid, process.started, "another boot", "b"),
            records.Record("node", 2**22 - 1, process.started, good.boot, "b"),
        ):
            assert records.attach(bad, role) is None
        # As the one who removes an instance does it: dead, though it is nobody's child here but ours.
        assert records.kill_all(instance.services) == ["node"]
    assert records.attach(good, role) is None  # a zombie is no service
    assert _reap(process) == -signal.SIGKILL


def test_a_services_file_of_nonsense_is_no_record(instance: Instance) -> None:
    for text in ("", "[{}]", '[{"role": "node"}]', "{", "7"):
        instance.services.write_text(text)
        assert records.load(instance.services) == []
