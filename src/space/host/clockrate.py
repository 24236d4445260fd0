"""The rate of the processor's time stamp counter, which an emulated guest sees as its own, as far as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

_CPUINFO, _SCALING = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cpufreq")
_ASSUMED_KHZ = 2_000_000


def tsc(cpuinfo: Path = _CPUINFO, scaling: Path = _SCALING) -> tuple[int, bool]:
    """kHz, and whether that is sure.

    The kernel shows a processor's present speed, measured (aperfmperf) or asked of the driver that changes it (cpufreq). Where it has
    neither, as in most virtual machines, what it shows is the rate that it found for the counter itself.
    """
    khz, flags = _ASSUMED_KHZ, set[str]()
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "cpu MHz":
            khz = round(float(value) * 1000)
        elif name.strip() == "flags":
            flags = set(value.split())
        if not line.strip() and flags:
            break  # the first processor speaks for all
    return khz, "constant_tsc" in flags and "aperfmperf" not in flags and not scaling.exists()


def sure_khz() -> int:
    """kHz where that is sure, 0 elsewhere."""
    khz, sure = tsc()
    return khz if sure else 0
