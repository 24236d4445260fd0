"""The calls of Firecracker's API as a golden, the jailer's command line, and which versions are driven."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from space.core.plan import firecracker, machine

GOLDEN = Path(__file__).parents[2] / "golden" / "plan" / "firecracker.txt"


def _operations() -> dict[str, list[firecracker.Call]]:
    return {
        "boot": firecracker.boot(2, 512),
        "restore": firecracker.load(),
        "restore onto a larger disk": [*firecracker.load(), firecracker.show_disk()],
        "pause": [firecracker.pause()],
        "resume": [firecracker.resume()],
        "snapshot of what booted": [firecracker.pause(), firecracker.create_snapshot(diff=False), firecracker.resume()],
        "snapshot of what was restored": [firecracker.pause(), firecracker.create_snapshot(diff=True), firecracker.resume()],
    }


def test_calls_of_every_operation_are_the_golden_ones() -> None:
    text = "".join(f"# {name}\n" + "".join(f"{call.line()}\n" for call in calls) for name, calls in _operations().items())
    assert text == GOLDEN.read_text()


def test_the_jailer_takes_the_uid_and_limits_files() -> None:
    argv = firecracker.jailer_argv("/fc/jailer", "/fc/firecracker", name="sb-a", uid=70000, base="/d/sb-a/jail", largest_file=1 << 30)
    text = " ".join(argv)
    assert text == (
        "/fc/jailer --id sb-a --exec-file /fc/firecracker --uid 70000 --gid 70000 --chroot-base-dir /d/sb-a/jail "
        "--resource-limit fsize=1073741824 --resource-limit no-file=256 -- --api-sock /api/api.sock"
    )
    assert "--no-seccomp" not in text


def test_a_disk_has_the_same_limits_under_either_vmm() -> None:
    drive = next(call for call in firecracker.boot(1, 128) if call.path == "/drives/root")
    limiter = drive.body["rate_limiter"]
    for name, rate in (("bandwidth", machine.DISK_BYTES_PER_SECOND), ("ops", machine.DISK_OPERATIONS_PER_SECOND)):
        bucket = limiter[name]
        assert bucket["size"] * 1000 // bucket["refill_time"] == rate
        assert bucket["size"] + bucket["one_time_burst"] <= machine.DISK_BURST * machine.DISK_BURST_SECONDS * rate


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.12.1", "proven"),
        ("1.12.0", "untested"),
        ("1.16.1", "untested"),
        ("2.0.0", "untested"),
        ("1.16.0", "refused"),
        ("1.11.9", "refused"),
    ],
)
def test_every_version_is_proven_untested_or_refused_with_a_reason(version: str, state: str) -> None:
    found = firecracker.support(version)
    assert (found.version, found.state) == (version, state)
    assert found.why


def test_the_version_is_what_the_program_says() -> None:
    said = "Firecracker v1.12.1\n\n2026-12-01T01:43:40 [anonymous-instance:main] Firecracker exiting successfully. exit_code=0\n"
    assert firecracker.version(said) == "1.12.1"
    for other in ("", "Jailer v1.12.1", "Firecracker v1.12", "Firecracker v1.12.1-dirty", "Firecracker v1.12.1234"):
        with pytest.raises(ValueError, match="not the version"):
            firecracker.version(other)


def test_a_machine_that_is_loaded_has_the_devices_that_were_saved() -> None:
    assert firecracker.devices(1, 256) == firecracker.boot(1, 256)[:-1]
    assert json.loads(firecracker.load()[0].line().split(" ", 2)[2])["resume_vm"] is False
