"""What the kernel says of the processor's speed is its counter's rate only where nothing changes or measures the speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from space.host import clockrate

_TWO = "processor : 0\ncpu MHz\t\t: {mhz}\nflags\t\t: fpu tsc {flags}\n\nprocessor : 1\ncpu MHz\t\t: 800.000\nflags\t\t: fpu\n\n"


@pytest.mark.parametrize(
    ("flags", "scaling", "sure"),
    [("constant_tsc", False, True), ("constant_tsc", True, False), ("constant_tsc aperfmperf", False, False), ("", False, False)],
)
def test_the_rate_is_sure_where_speed_neither_changes_nor_is_measured(tmp_path: Path, flags: str, scaling: bool, sure: bool) -> None:
    cpuinfo, cpufreq = tmp_path / "cpuinfo", tmp_path / "cpufreq"
    cpuinfo.write_text(_TWO.format(mhz="2299.998", flags=flags))
    if scaling:
        cpufreq.mkdir()
    assert clockrate.tsc(cpuinfo, cpufreq) == (2_299_998, sure)


def test_a_kernel_that_says_nothing_is_not_believed(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert clockrate.tsc(cpuinfo, tmp_path / "none") == (2_000_000, False)
