"""Metrics of the operator itself: reconciles, periodic tasks, API requests, leadership."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import joex

_RECONCILE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class SelfMetrics(Collector):
    """The operator's metrics of itself. It is a collector for the one gauge that may be unknown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        reconciles = Counter(
            "joex_operator_reconciles",
            "Reconciles of pools, by result: ok or error (repeated).",
            ("result",),
            registry=registry,
        )
        self._results = {True: reconciles.labels("ok"), False: reconciles.labels("error")}
        self._seconds = Histogram(
            "joex_operator_reconcile_seconds",
            "Duration of reconciles.",
            buckets=_RECONCILE_SECONDS,
            registry=registry,
        )
        self._requests = Counter(
            "joex_operator_api_requests", "Requests to the Kubernetes API.", ("method", "code"), registry=registry
        )
        self._repeated = Counter(
            "joex_periodic_decisions",
            "Times at which a periodic task was due, by what this operator decided: submitted, overlapping (its "
            "previous job is not finished), late (missed by more than its starting deadline), refused, trouble (tried "
            "again).",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("submitted", "overlapping", "late", "refused", "trouble"):  # exported from the start
            self._repeated.labels(outcome)
        self._leader = Gauge("joex_operator_leader", "Whether this operator leads: 1 or 0.", registry=registry)
        Gauge("joex_operator_info", "Always 1; the label has the version.", ("version",), registry=registry).labels(
            joex.__version__
        ).set(1)
        self._last_success: float | None = None
        registry.register(self)

    def reconciled(self, seconds: float, *, ok: bool, now: datetime) -> None:
        """A reconcile has ended."""
        self._results[ok].inc()
        self._seconds.observe(seconds)
        if ok:
            self._last_success = now.timestamp()

    def leading(self, value: bool) -> None:  # noqa: FBT001 - the value of a gauge
        """Note whether this operator leads."""
        self._leader.set(value)

    def api_request(self, method: str, code: str) -> None:
        """A request to the Kubernetes API has ended."""
        self._requests.labels(method, code).inc()

    def repeated(self, outcome: str) -> None:
        """This operator decided about a run of a periodic task."""
        self._repeated.labels(outcome).inc()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The samples of a page."""
        yield GaugeMetricFamily(
            "joex_operator_last_success_timestamp_seconds",
            "Time of the latest successful reconcile.",
            value=self._last_success,
        )
