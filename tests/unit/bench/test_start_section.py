"""The sections of creates: what is compared with what, and whose processor time and memory count."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from space.bench import cost, main, start


def test_how_many_times_sooner_is_the_cold_ones_median_over_the_others() -> None:
    samples: start.Samples = {"bare_ms": [3900.0, 4000.0, 4100.0]}
    for name, whole in (("cold", 4000.0), ("warm", 400.0), ("pool", 80.0)):
        for what in ("", "_cpu", "_own", "_create", "_in_server", "_hello"):
            samples[f"{name}{what}_ms"] = [whole * 0.9, whole, whole * 1.1]
    samples["pool_stage_claim_ms"] = [3.0, 2.0, 4.0]
    found = start._figures(samples)
    assert {name: found[name].value for name in ("warm_over_cold", "pooled_over_cold", "hello_over_cold", "cold_over_bare")} == {
        "warm_over_cold": 10.0,
        "pooled_over_cold": 50.0,
        "hello_over_cold": 10.0,
        "cold_over_bare": 1.0,
    }
    assert found["warm_over_cold"].baseline == {"warm_ms": 400.0, "cold_ms": 4000.0}
    assert (found["pooled_create_ms"].value, found["pool_stage_claim_ms"].value) == (80.0, 3.0)


def test_the_sections_have_the_names_that_are_asked_for() -> None:
    assert {"start", "exec", "files", "gateway", "lives", "density", "scale", "control", "reconnect", "broker"} <= main.sections().keys()


def test_processor_time_is_counted_finer_than_a_tick_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "services", lambda served: [os.getpid()])
    monkeypatch.setattr(cost, "vmms", lambda instance: [])

    class Served:
        instance = None

    began = time.process_time()
    with cost.spent(Served()) as found:  # type: ignore[arg-type]
        until = time.process_time() + 0.004
        while time.process_time() < until:
            pass
    assert 0.004 <= found.cpu <= time.process_time() - began
    assert found.wall >= 0.004


def test_memory_of_ones_own_is_what_no_other_process_maps_and_the_guests_is_told_apart_by_its_size() -> None:
    size = 37
    file = os.memfd_create("guest")  # as a guest's memory is: the kernel merges it with no neighbour
    os.ftruncate(file, size << 20)
    with mmap.mmap(file, size << 20, flags=mmap.MAP_PRIVATE) as memory:
        before, none = cost.unique_mib(os.getpid(), size)
        memory[: 5 << 20] = b"x" * (5 << 20)
        after, guests = cost.unique_mib(os.getpid(), size)
    os.close(file)
    assert none <= guests - 5 < none + 1
    assert after - before > 4.5
