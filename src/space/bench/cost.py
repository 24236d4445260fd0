"""What an instance's processes cost: CPU seconds to the nanosecond, seconds in the server by its own account, memory of a VMM's own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from space.config.instance import Instance
from space.host import namespaces
from space.serve.private import Served


@dataclass(slots=True)
class Spent:
    """What a block took: seconds on the clock, and of processors by all of the instance's processes that lived at its end."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def spent(served: Served) -> Iterator[Spent]:
    """Measure a block. A process that the instance starts in it counts whole, one that has ended in it not at all."""
    found = Spent()
    before = _cpu(served)
    began = time.perf_counter()
    yield found
    found.wall = time.perf_counter() - began
    found.cpu = sum(seconds - before.get(pid, 0.0) for pid, seconds in _cpu(served).items())


def services(served: Served) -> list[int]:
    """Serve and the services that it started."""
    records = json.loads(served.instance.services.read_text())
    return [served.pid, *(int(record["pid"]) for record in records)]


def vmms(instance: Instance) -> list[int]:
    """The VMMs that live."""
    uids = range(instance.vm_uid(0), instance.uid_range.stop)
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and namespaces.start_time(int(entry.name)) is not None:
            with suppress(FileNotFoundError):
                if entry.stat().st_uid in uids:
                    found.append(int(entry.name))
    return found


def cpu(pid: int) -> float:
    """Seconds of a process, of all threads that it ever had (the kernel's own clock: clock_getcpuclockid(3)). OSError once it is gone."""
    return time.clock_gettime((~pid << 3) | 2)


def private_mib(pid: int) -> float:
    """MiB that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) / 1024


def _cpu(served: Served) -> dict[int, float]:
    found: dict[int, float] = {}
    for pid in (*services(served), *vmms(served.instance)):
        with suppress(OSError):
            found[pid] = cpu(pid)
    return found


def unique_mib(pid: int, guest_mib: int) -> tuple[float, float]:
    """MiB that only this process has: of all, and of the mapping that is its guest's memory. Wants another one that has the same files."""
    whole = guests = size = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Size":
            size = int(rest.split()[0])
        elif name in ("Private_Clean", "Private_Dirty"):
            kib = int(rest.split()[0])
            whole += kib
            guests += kib if size == guest_mib << 10 else 0
    return whole / 1024, guests / 1024


@contextmanager
def in_server(served: Served, method: str, route: str) -> Iterator[list[float]]:
    """Milliseconds from the head of a request to the end of its answer, as the server counts them: of the block's requests, their mean."""
    found: list[float] = []
    count, seconds = _requests(served, method, route)
    yield found
    after, total = _requests(served, method, route)
    if after > count:
        found.append((total - seconds) / (after - count) * 1000)


def _requests(served: Served, method: str, route: str) -> tuple[float, float]:
    answer = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {served.api_key}"}, trust_env=False, timeout=60)
    labels = re.escape(f'{{method="{method}",route="{route}"}}')
    lines = re.findall(rf"^space_http_request_seconds_(count|sum){labels} (\S+)$", answer.raise_for_status().text, re.MULTILINE)
    sums = {name: float(value) for name, value in lines}
    return sums.get("count", 0.0), sums.get("sum", 0.0)
