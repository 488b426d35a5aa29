"""Gauges that are computed when Prometheus reads the page, so that what they measure pays next to nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Gauge(Generic[Source]):
    """A number of each source, or several, by further ``labels``. ``values`` gives None for an unknown number."""

    name: str
    help: str
    values: Callable[[Source], Iterable[tuple[tuple[str, ...], float | None]]]
    labels: tuple[str, ...] = ()

    def family(self, labels: Sequence[str], sources: Iterable[tuple[Sequence[str], Source]]) -> GaugeMetricFamily:
        """The samples of all sources, each given with the values of its ``labels``."""
        family = GaugeMetricFamily(self.name, self.help, labels=[*labels, *self.labels])
        for given, source in sources:
            for further, value in self.values(source):
                if value is not None:
                    family.add_metric([*given, *further], value)
        return family
