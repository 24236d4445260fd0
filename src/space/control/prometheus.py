"""Figures for Prometheus. Routes, not paths, are labels, so that nobody outside can make new series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as Total
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from space.model.credentials import AlarmKind, CredentialAlarm

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STAGE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Figures:
    """The registry of one server."""

    def __init__(
        self,
        phases: Callable[[], Counter[tuple[str, str]]],
        node_is_up: Callable[[], bool],
        busy: Callable[[], int],
        failing: Callable[[], int],
    ) -> None:
        self._registry = CollectorRegistry()
        labels = ("tenant", "method", "route", "status")
        self._requests = Total("space_http_requests", "Requests answered", labels, registry=self._registry)
        self._seconds = Histogram(
            "space_http_request_seconds",
            "From the head to the end of the answer",
            ("method", "route"),
            buckets=_REQUEST_SECONDS,
            registry=self._registry,
        )
        self._stages = Histogram(
            "space_create_stage_seconds",
            "Stages of a create, as the node measured them, and what its first command waited for its begin",
            ("stage", "start"),
            buckets=_STAGE_SECONDS,
            registry=self._registry,
        )
        registry = self._registry
        self._events = Total("space_events", "Events told", ("kind",), registry=registry)
        self._quota_refusals = Total("space_quota_refusals", "Requests beyond a tenant's quota", ("tenant", "quota"), registry=registry)
        self._idle = Total("space_idle_actions", "What idle rules did", ("action",), registry=registry)
        self._woken = Total("space_wakes_by_call", "Sandboxes that a call woke", ("outcome",), registry=registry)
        self._webhooks = Total("space_webhook_deliveries", "Attempts to deliver an event", ("outcome",), registry=registry)
        self._alarms = Total("space_credential_alarms", "What went wrong with credentials", ("kind",), registry=registry)
        for kind in get_args(AlarmKind):
            self._alarms.labels(kind)
        self._registry.register(_Levels(phases, node_is_up, busy, failing))

    def request(self, tenant: str, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered. tenant: empty when it was not let in. status 0: the client left first."""
        self._requests.labels(tenant, method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def stages(self, start: str, stages_ms: Mapping[str, float]) -> None:
        """Stages of a create that are over. start: how it began, `cold`, `warm`, `pool` or `fork`."""
        for stage, milliseconds in stages_ms.items():
            self._stages.labels(stage, start).observe(milliseconds / 1000)

    def event(self, kind: str) -> None:
        """An event is on its way into the log."""
        self._events.labels(kind).inc()

    def quota_refusal(self, tenant: str, quota: str) -> None:
        """A tenant asked for more than its quota."""
        self._quota_refusals.labels(tenant, quota).inc()

    def idle(self, action: str) -> None:
        """An idle rule took effect."""
        self._idle.labels(action).inc()

    def woken(self, outcome: str) -> None:
        """A call woke a sandbox that rested by a rule, or could not."""
        self._woken.labels(outcome).inc()

    def webhook(self, outcome: str) -> None:
        """A delivery was taken, or failed."""
        self._webhooks.labels(outcome).inc()

    def alarm(self, alarm: CredentialAlarm) -> None:
        """Something went wrong with a credential."""
        self._alarms.labels(alarm.kind).inc(alarm.count)

    def add(self, collector: Collector) -> None:
        """Figures that are read when they are asked for."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)


class _Levels(Collector):
    """What is read when it is asked for."""

    def __init__(
        self,
        phases: Callable[[], Counter[tuple[str, str]]],
        node_is_up: Callable[[], bool],
        busy: Callable[[], int],
        failing: Callable[[], int],
    ) -> None:
        self._phases = phases
        self._node_is_up = node_is_up
        self._busy = busy
        self._failing = failing

    def collect(self) -> Iterator[Metric]:
        sandboxes = GaugeMetricFamily("space_sandboxes", "Live sandboxes", labels=("tenant", "phase"))
        for (tenant, phase), count in sorted(self._phases().items()):
            sandboxes.add_metric((tenant, phase), count)
        yield sandboxes
        yield GaugeMetricFamily("space_sandboxes_busy", "Live sandboxes in which something runs", value=float(self._busy()))
        yield GaugeMetricFamily("space_webhooks_failing", "Webhooks whose last delivery failed", value=float(self._failing()))
        yield GaugeMetricFamily("space_node_up", "Whether the node is connected", value=float(self._node_is_up()))
