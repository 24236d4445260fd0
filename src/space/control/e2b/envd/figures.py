"""`/metrics`: how the guest fares."""

from __future__ import annotations

import time
from typing import Any

from space.control.e2b.envd.room import Room
from space.rpc.node_api import History, Metrics, MetricsHistory, Sample, Target

_MIB = 1 << 20
# So far back the processors' use is taken over.
_WINDOW_US = 60_000_000


async def figures(room: Room) -> dict[str, Any]:
    """As their daemon tells them. The guest does not tell its cache apart from what is free: it is in neither."""
    record = room.services.sandboxes.living(room.sandbox)
    cpus = 1 if record is None else record.spec.cpus
    now = await room.services.link.call("metrics", Target(room.sandbox), Metrics)
    since = History(room.sandbox, int(time.time() * 1_000_000) - _WINDOW_US)
    samples = (await room.services.link.call("history", since, MetricsHistory)).samples
    used = max(0, now.memory_total - now.memory_available)
    return {
        "ts": int(time.time()),
        "cpu_count": cpus,
        "cpu_used_pct": busy(samples, cpus),
        "mem_total": now.memory_total,
        "mem_used": used,
        "mem_cache": 0,
        "mem_total_mib": now.memory_total // _MIB,
        "mem_used_mib": used // _MIB,
        "disk_used": now.disk_used,
        "disk_total": now.disk_total,
    }


def busy(samples: list[Sample], cpus: int) -> float:
    """How busy the processors were between the last two samples: 0 to 100, all together."""
    if len(samples) < 2:
        return 0.0
    before, last = samples[-2:]
    spent = (last.cpu_user_ms + last.cpu_system_ms) - (before.cpu_user_ms + before.cpu_system_ms)
    passed = (last.at_us - before.at_us) / 1000 * cpus
    return round(min(100.0, max(0.0, 100 * spent / passed)), 2) if passed > 0 else 0.0
