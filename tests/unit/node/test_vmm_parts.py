"""The driver's parts against hostile peers: monitor, console, pace, accelerator, and the end of a process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.config.firecracker import Firecracker
from space.config.instance import Instance
from space.model.errors import Conflict, DeadlineExceeded, NoCapacity, NotFound, ProtocolError, SandboxDied, Unavailable
from space.model.ids import InstanceName
from space.model.rootd import SandboxOp
from space.node import limits
from space.node.pidfd import Pidfd
from space.node.vmm.accelerator import Accelerators, Verdict, load, none_there, without_probe
from space.node.vmm.console import Console, last_lines
from space.node.vmm.drivers import Drivers
from space.node.vmm.pace import Pace
from space.node.vmm.qemu import QemuMachine
from space.node.vmm.qmp import Qmp
from space.node.vmm.seam import MachinePlan
from space.rpc.rootd_client import Usage

GREETING = b'{"QMP": {"version": {}, "capabilities": []}}\r\n'


class Monitor:
    """QEMU's side of a QMP socket, as a test wants it."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        theirs.setblocking(False)
        self.link = theirs

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.ours, data)

    async def hear(self) -> dict[str, object]:
        heard = b""
        while not heard.endswith(b"\n"):
            heard += await asyncio.get_running_loop().sock_recv(self.ours, 4096)
        message: dict[str, object] = json.loads(heard)
        return message

    async def answer(self, **fields: object) -> dict[str, object]:
        asked = await self.hear()
        await self.say(json.dumps({"id": asked["id"], **fields}).encode() + b"\r\n")
        return asked


async def opened(monitor: Monitor) -> Qmp:
    await monitor.say(GREETING)
    opening = asyncio.create_task(Qmp.open(monitor.link))
    assert (await monitor.answer(**{"return": {}}))["execute"] == "qmp_capabilities"
    return await opening


async def test_a_command_is_answered_between_events_and_late_answers() -> None:
    monitor = Monitor()
    qmp = await opened(monitor)
    asking = asyncio.create_task(qmp.execute("stop"))
    asked = await monitor.hear()
    await monitor.say(b'{"event": "STOP"}\n{"event": "SHUTDOWN", "data": {"reason": "guest-reset"}}\n{"return": 1, "id": 77}\n')
    await monitor.say(json.dumps({"return": {"x": 1}, "id": asked["id"]}).encode() + b"\n")
    assert await asking == {"x": 1}
    assert [event["event"] for event in qmp.events] == ["SHUTDOWN"]
    await qmp.aclose()
    monitor.ours.close()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"x" * (4 * limits.QMP_LINE), ProtocolError),
        (b"not json\n", ProtocolError),
        (b"[" * 60_000 + b"\n", ProtocolError),
        (b"\xff\xfe\n", ProtocolError),
        (b"17\n", ProtocolError),
        (b"", SandboxDied),
    ],
    ids=["endless", "no JSON", "nested", "no text", "a number", "hung up"],
)
async def test_a_monitor_that_is_not_one_ends_the_connection(line: bytes, error: type[Exception]) -> None:
    monitor = Monitor()
    qmp = await opened(monitor)
    asking = asyncio.create_task(qmp.execute("stop"))
    await monitor.hear()
    saying = asyncio.create_task(monitor.say(line))
    if not line:
        monitor.ours.close()
    with pytest.raises(error):
        await asking
    with pytest.raises(error):
        await qmp.execute("cont")
    await qmp.aclose()
    saying.cancel()
    monitor.ours.close()


async def test_a_refusal_and_a_silence_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QMP", 0.2)
    monitor = Monitor()
    qmp = await opened(monitor)
    asking = asyncio.create_task(qmp.execute("cont"))
    await monitor.answer(error={"class": "GenericError", "desc": "Failed to get \x1b[2J lock"})
    with pytest.raises(ProtocolError, match=r"Failed to get \?\[2J lock"):
        await asking
    with pytest.raises(DeadlineExceeded, match="did not answer stop"):
        await qmp.execute("stop")
    await qmp.aclose()
    monitor.ours.close()


async def test_a_flood_of_events_is_read_at_a_pace() -> None:
    monitor = Monitor()
    qmp = await opened(monitor)
    written = 0

    async def flood() -> None:
        nonlocal written
        while True:
            await monitor.say(b'{"event": "RTC_CHANGE", "data": {"offset": 1}}\n' * 100)
            written += 100

    flooding = asyncio.create_task(flood())
    started = asyncio.get_running_loop().time()
    await asyncio.wait({flooding}, timeout=0.5)
    elapsed = asyncio.get_running_loop().time() - started
    in_buffers = 3 * limits.QMP_LINE // 40 + 10_000
    assert written < limits.QMP_RATE * (1 + elapsed) + in_buffers
    flooding.cancel()
    await qmp.aclose()
    monitor.ours.close()


async def test_a_console_keeps_its_end_and_a_flood_waits_for_itself() -> None:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    console = Console(theirs)
    taken = 0

    async def flood() -> None:
        nonlocal taken
        while True:
            await asyncio.get_running_loop().sock_sendall(ours, b"x" * 4095 + b"\n")
            taken += 4096

    flooding = asyncio.create_task(flood())
    await asyncio.wait({flooding}, timeout=0.5)
    flooding.cancel()
    assert limits.SERIAL_RATE // 2 < taken < 4 * limits.SERIAL_RATE
    assert len(console.tail()) <= limits.SERIAL_RING
    await console.aclose()
    ours.close()


def test_what_a_guest_prints_cannot_drive_a_terminal() -> None:
    raw = b"ok\r\n\x1b]0;owned\x07\x1b[2J\xff\xfe\r\n" + b"z" * 1000 + b"\r\n\r\n"
    lines = last_lines(raw)
    assert lines[0] == "ok"
    assert all(line.isprintable() and len(line) <= 160 for line in lines)
    assert "\x1b" not in "".join(lines)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1000)), max_size=50))
def test_a_pace_never_lets_more_through_than_its_rate_and_one_burst(steps: list[tuple[float, int]]) -> None:
    pace, now, spent = Pace(100), 0.0, 0
    for idle, units in steps:
        now += idle
        now += pace.spend(units, now)
        spent += units
        assert spent <= 100 + 100 * now + 1e-6


async def test_the_end_of_a_process_that_is_not_watched_by_wait_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # noqa: ASYNC220 (nobody else is kept waiting)
    pidfd = Pidfd(os.pidfd_open(child.pid))
    waiters = [asyncio.create_task(pidfd.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not pidfd.exited
    child.kill()
    await asyncio.gather(*waiters)
    assert pidfd.exited
    pidfd.close()
    pidfd.close()
    child.wait()


class Kernel:
    """rootd, as far as it tells what the kernel killed."""

    def __init__(self, answer: Usage | Exception) -> None:
        self._answer = answer

    async def usage(self, sandbox: str, generation: int) -> Usage:
        assert (sandbox, generation) == ("sb-a", 1)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Usage(1, 1, oom_kills=1), "the kernel killed the VMM: it used all the memory that its cgroup allows"),
        (Usage(1, 1), "the VMM was killed or crashed"),
        (NotFound("it is gone already"), "the VMM was killed or crashed"),
    ],
)
async def test_a_vmm_that_ran_out_of_memory_is_told_apart(answer: Usage | Exception, reason: str, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # noqa: ASYNC220 (nobody else is kept waiting)
    rootd: Any = Kernel(answer)
    machine = QemuMachine(rootd, SandboxOp("sb-a", 1), Pidfd(os.pidfd_open(child.pid)), Instance(InstanceName("x"), 0, tmp_path, tmp_path))
    child.kill()
    assert await machine.wait() == reason
    child.wait()
    await machine.aclose()


@pytest.mark.parametrize(
    ("setting", "device", "cached", "expected"),
    [
        ("tcg", True, None, "tcg"),
        ("kvm", False, None, "kvm"),
        ("auto", False, None, "tcg"),
        ("auto", True, None, None),
        ("auto", True, Verdict("kvm", "", "boot", "k1", probed=True), "kvm"),
        ("auto", True, Verdict("tcg", "this host has no /dev/kvm", "boot", "k1"), None),
        ("auto", True, Verdict("kvm", "", "another", "k1", probed=True), None),
        ("auto", True, Verdict("kvm", "", "boot", "k0", probed=True), None),
    ],
)
def test_when_a_probe_is_needed(setting: str, device: bool, cached: Verdict | None, expected: str | None) -> None:
    verdict = without_probe(setting, device_is_there=device, boot_id="boot", kernel="k1", cached=cached)
    assert (verdict.accelerator if verdict else None) == expected


async def test_a_probe_runs_once_and_its_finding_is_kept(tmp_path: Path) -> None:
    probed: list[str] = []

    async def probe(kernel: str) -> str:
        probed.append(kernel)
        return "no hello within 5 s"

    accelerators = Accelerators("auto", tmp_path, device_is_there=True, boot_id="boot")
    accelerators.probe_with(probe)
    verdicts = await asyncio.gather(*(accelerators.decide("k1") for _ in range(5)))
    assert {verdict.accelerator for verdict in verdicts} == {"tcg"}
    assert "no hello within 5 s" in verdicts[0].why
    later = Accelerators("auto", tmp_path, device_is_there=True, boot_id="boot")
    later.probe_with(probe)
    assert (await later.decide("k1")) == verdicts[0] == load(tmp_path)
    assert probed == ["k1"]


def _firecracker(version: str) -> Callable[[], Firecracker]:
    return lambda: Firecracker("0123456789abcdef", version, Path("/nowhere"))


def _refused() -> Firecracker:
    raise Conflict("Firecracker 1.16.0 is not used: its vsock is dead after a restore", hint="add another")


@pytest.mark.parametrize(
    ("setting", "usable", "jailed", "expected"),
    [
        ("auto", True, _firecracker("1.12.1"), "firecracker"),
        ("auto", True, none_there, "kvm"),
        ("auto", True, _refused, "kvm"),
        ("auto", False, _firecracker("1.12.1"), "tcg"),
        ("kvm", True, _firecracker("1.12.1"), "kvm"),
        ("tcg", True, _firecracker("1.12.1"), "tcg"),
        ("firecracker", True, _firecracker("1.12.1"), "firecracker"),
        ("firecracker", True, none_there, None),
        ("firecracker", True, _refused, None),
    ],
)
async def test_firecracker_drives_kvm_where_there_is_one_that_may(
    setting: str, usable: bool, jailed: Callable[[], Firecracker], expected: str | None, tmp_path: Path
) -> None:
    async def probe(kernel: str) -> str | None:
        del kernel
        return None if usable else "no hello within 5 s"

    accelerators = Accelerators(setting, tmp_path, device_is_there=True, boot_id="boot", jailed=jailed)
    accelerators.probe_with(probe)
    if expected is None:
        with pytest.raises(Unavailable, match="the setting accelerator is firecracker, and"):
            await accelerators.decide("k1")
        return
    verdict = await accelerators.decide("k1")
    assert verdict.accelerator == expected
    assert ("Firecracker 1.12.1 is there" in verdict.why) == (expected == "firecracker")
    kept = load(tmp_path)
    assert kept is None or kept.accelerator in ("kvm", "tcg"), "what drives KVM is looked up each time"


async def test_one_that_is_added_boots_the_next_sandbox(tmp_path: Path) -> None:
    async def probe(kernel: str) -> None:
        del kernel

    there = [none_there]
    accelerators = Accelerators("auto", tmp_path, device_is_there=True, boot_id="boot", jailed=lambda: there[-1]())
    accelerators.probe_with(probe)
    assert (await accelerators.decide("k1")).accelerator == "kvm"
    there.append(_firecracker("1.13.0"))
    assert (await accelerators.decide("k1")).accelerator == "firecracker"


async def test_a_machine_is_made_by_the_driver_of_its_accelerator_and_found_by_the_one_that_made_it(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    class Driver:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, verb: str) -> Callable[..., Awaitable[None]]:
            async def call(*_: object) -> None:
                calls.append((self.name, verb))

            return call

        def knows(self, sandbox: str) -> bool:
            return sandbox == "jailed"

    drivers = Drivers(Driver("qemu"), Driver("firecracker"))  # type: ignore[arg-type]
    for accelerator, name in (("tcg", "qemu"), ("kvm", "qemu"), ("firecracker", "firecracker")):
        for verb in (drivers.boot, drivers.restore):
            await verb(MachinePlan("one", 1, 1, 256, accelerator))
        assert calls == [(name, "boot"), (name, "restore")]
        calls.clear()
    for sandbox, name in (("jailed", "firecracker"), ("other", "qemu")):
        await drivers.adopt(sandbox, 1)
        assert calls.pop() == (name, "adopt")


async def test_a_probe_that_learned_nothing_degrades_no_sandbox_and_is_repeated(tmp_path: Path) -> None:
    faults: list[Exception] = [NoCapacity("the host is full"), OSError(24, "too many open files")]

    async def probe(kernel: str) -> None:
        if faults:
            raise faults.pop(0)

    accelerators = Accelerators("auto", tmp_path, device_is_there=True, boot_id="boot")
    accelerators.probe_with(probe)
    with pytest.raises(NoCapacity, match="cannot try out this host's /dev/kvm: the host is full"):
        await accelerators.decide("k1")
    with pytest.raises(Unavailable, match="too many open files"):
        await accelerators.decide("k1")
    assert load(tmp_path) is None
    assert (await accelerators.decide("k1")).accelerator == "kvm"
