"""The section `gateway`: what is compared with what, whose processor time counts, and a load that counts only answers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from space.bench.gateway import _cpu, _figures
from space.bench.gatewayload import CONNECTIONS, NAME, Mode, Target, load, upstream
from space.bench.rivals import family
from space.testing.egress import Signer


def test_figures_are_ratios_in_one_run_and_what_could_not_be_had_is_left_out() -> None:
    rates = {f"{name}.{mode}": [4.0, 6.0, 5.0] for name in ("gateway", "mitmproxy") for mode in CONNECTIONS}
    rates["gateway.keepalive"] = [40.0, 60.0, 50.0]
    found = _figures(rates)
    assert set(found) == {"keepalive_over_mitmproxy", "newconn_over_mitmproxy"}
    assert found["keepalive_over_mitmproxy"].value == 10.0
    assert found["keepalive_over_mitmproxy"].baseline == {"gateway": 50.0, "mitmproxy": 5.0}


def test_processor_time_is_that_of_a_process_and_of_those_it_started() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {burn + 'time.sleep(60)'!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program]) as started:
        try:
            deadline = time.monotonic() + 30
            while _cpu(family(started.pid)) < 0.3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert len(family(started.pid)) == 2
        finally:
            for pid in reversed(family(started.pid)):
                subprocess.run(["kill", "-9", str(pid)], check=True)


def test_clients_count_answers_of_each_kind(tmp_path: Path) -> None:
    signer = Signer()
    leaf = signer.make(NAME)
    (tmp_path / "pem").write_bytes(leaf.chain + leaf.key)
    modes: tuple[Mode, ...] = ("keepalive", "newconn", "bulk")
    with upstream(str(tmp_path / "pem")) as served:
        for mode in modes:
            with load(Target("127.0.0.1", served.port, NAME, signer.pem), mode) as clients:
                deadline = time.monotonic() + 30
                while clients.count()[0] < 10:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
                assert clients.count()[1] == 0
