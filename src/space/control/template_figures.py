"""Templates as Prometheus sees them: what they hold, how builds ended, and how long they and their steps took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class TemplateFigures(Collector):
    """sizes: MiB that the templates of each tenant hold. under_way: builds that are not over."""

    def __init__(self, sizes: Callable[[], Mapping[str, int]], under_way: Callable[[], int]) -> None:
        self._sizes = sizes
        self._under_way = under_way
        own = CollectorRegistry()  # this collector is what is registered
        self._builds = Histogram(
            "space_template_build_seconds", "Builds, from their files' arrival", ("outcome",), buckets=_SECONDS, registry=own
        )
        self._steps = Histogram("space_template_step_seconds", "Steps of builds that no cache had", buckets=_SECONDS, registry=own)

    def built(self, outcome: str, seconds: float) -> None:
        """A build is over: `done` or `failed`."""
        self._builds.labels(outcome).observe(seconds)

    def step(self, seconds: float) -> None:
        """A step is done."""
        self._steps.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield from self._builds.collect()
        yield from self._steps.collect()
        held = GaugeMetricFamily("space_template_bytes", "What the disks of a tenant's templates hold", labels=("tenant",))
        for tenant, mib in sorted(self._sizes().items()):
            held.add_metric((tenant,), mib << 20)
        yield held
        yield GaugeMetricFamily("space_template_builds", "Builds that wait or run", value=self._under_way())
