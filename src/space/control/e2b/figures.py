"""Figures and logs of sandboxes in E2B's form: samples of the node's history, and what happened to a sandbox as lines."""

from __future__ import annotations

import time
from typing import Any

from space.control.call import Call, number
from space.control.e2b import views
from space.control.e2b.ids import to_e2b
from space.control.records import Record
from space.control.services import Services
from space.model.errors import NotFound, SpaceError
from space.model.events import Event
from space.model.sandbox import Phase
from space.rpc.node_api import History, Metrics, MetricsHistory, Sample, Target

_AT_ONCE = 100
_MOST_LOGS = 1000
_FAILURES = frozenset({"credential_alarm"})


async def of(call: Call, services: Services, record: Record) -> list[dict[str, Any]]:
    """Samples between `start` and `end` (UNIX seconds), oldest first; of one that runs, the present one is the last."""
    start = number(call.argument("start"), "start", default=0, least=0, most=2**40)
    end = number(call.argument("end"), "end", default=2**40, least=0, most=2**40)
    samples = await _samples(services, record, start)
    return [_metric(record, one, before) for before, one in zip([None, *samples], samples, strict=False) if one.at_us / 1e6 <= end]


async def last(call: Call, services: Services) -> dict[str, Any]:
    """The last sample of each of `sandbox_ids` that has one."""
    found = {}
    for text in (call.argument("sandbox_ids") or "").split(",")[:_AT_ONCE]:
        try:
            record = views.mine(services, call.tenant, text)
        except NotFound:
            continue
        samples = await _samples(services, record, int(time.time()) - 300)
        if samples:
            found[to_e2b(record.id)] = _metric(record, samples[-1], samples[-2] if len(samples) > 1 else None)
    return found


async def _samples(services: Services, record: Record, since: int) -> list[Sample]:
    if record.phase not in (Phase.RUNNING, Phase.PAUSED):
        return []
    try:
        kept = await services.link.call("history", History(record.id, since * 1_000_000), MetricsHistory)
        samples = list(kept.samples)
        if record.phase is Phase.RUNNING:
            now = await services.link.call("metrics", Target(record.id), Metrics)
            fields = {name: getattr(now, name) for name in Sample.__struct_fields__ if name != "at_us"}
            samples.append(Sample(at_us=time.time_ns() // 1000, **fields))
    except SpaceError:
        if views.mine(services, record.tenant, to_e2b(record.id)).phase is Phase.RUNNING:
            raise
        return []  # it went to rest meanwhile
    return samples


def _metric(record: Record, sample: Sample, before: Sample | None) -> dict[str, Any]:
    """Of the processor: what was used since the sample before, or since it was made."""
    used = sample.cpu_user_ms + sample.cpu_system_ms
    took = (sample.at_us - record.created_us) / 1000
    if before is not None and before.cpu_user_ms + before.cpu_system_ms <= used:
        used -= before.cpu_user_ms + before.cpu_system_ms
        took = (sample.at_us - before.at_us) / 1000
    moment = sample.at_us / 1e6
    return {
        "timestamp": views.time(sample.at_us),
        "timestampUnix": int(moment),
        "cpuCount": record.spec.cpus,
        "cpuUsedPct": round(max(0.0, 100.0 * used / max(took, 1) / record.spec.cpus), 2),
        "memTotal": sample.memory_total,
        "memUsed": sample.memory_total - sample.memory_available,
        "memCache": 0,
        "diskTotal": sample.disk_total,
        "diskUsed": sample.disk_used,
    }


async def logs(call: Call, services: Services, record: Record, *, first: str) -> list[dict[str, Any]]:
    """What happened to it. first: the parameter with the earliest (or latest) moment, in UNIX milliseconds."""
    limit = number(call.argument("limit"), "limit", default=_MOST_LOGS, least=1, most=_MOST_LOGS)
    moment = number(call.argument(first), first, default=-1, least=0, most=2**44)
    back = call.argument("direction") == "backward"
    level, search = call.argument("level"), call.argument("search") or ""
    events = await services.events.of_sandbox(record.tenant, record.id, _MOST_LOGS)
    entries = [_entry(one) for one in events if moment < 0 or (one.at * 1000 <= moment if back else one.at * 1000 >= moment)]
    entries = [one for one in entries if search in one["message"] and (level is None or _RANK[one["level"]] >= _RANK.get(level, 0))]
    if back:
        entries.reverse()
    return entries[:limit]


_RANK = {"debug": 0, "info": 1, "warn": 2, "error": 3}


def _entry(event: Event) -> dict[str, Any]:
    failed = event.phase == "failed" or event.kind in _FAILURES
    said = event.kind if event.kind != "phase" else f"{event.from_phase or 'new'} -> {event.phase}"
    return {
        "timestamp": views.time(int(event.at * 1e6)),
        "message": f"sandbox {said}" + (f": {event.reason}" if event.reason else ""),
        "level": "error" if failed else "info",
        "fields": {"kind": event.kind, "revision": str(event.revision)},
    }
