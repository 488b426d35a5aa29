"""The page of metrics, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector


def render(registry: Collector) -> tuple[bytes, str]:
    """The page, and its content type."""
    return generate_latest(_NoBeginnings(registry)), CONTENT_TYPE_PLAIN_0_0_4


class _NoBeginnings(Collector):
    """Metrics without the times at which counters and histograms began.

    Prometheus reads these times from OpenMetrics alone; in its own format each is one more series. prometheus_client
    can leave them out for the whole process only, in which an app may have metrics of its own.
    """

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
