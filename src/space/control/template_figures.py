"""Templates as Prometheus sees them. How builds ended is told by events, which are counted by kind (`space_events`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class TemplateFigures(Collector):
    """sizes: MiB that the templates of each tenant hold. under_way: builds that are not over."""

    def __init__(self, sizes: Callable[[], Mapping[str, int]], under_way: Callable[[], int]) -> None:
        self._sizes = sizes
        self._under_way = under_way

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("space_template_bytes", "What the disks of a tenant's templates hold", labels=("tenant",))
        for tenant, mib in sorted(self._sizes().items()):
            held.add_metric((tenant,), mib << 20)
        yield held
        yield GaugeMetricFamily("space_template_builds", "Builds that wait or run", value=self._under_way())
