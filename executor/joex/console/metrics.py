"""The lengths of the queues, for Prometheus: where no operator runs, the console exports them."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response

from joex.console.calls import TheConsole
from joex.console.snapshot import Snapshot
from joex.console.standings import Queue
from joex.core.access import Scope
from joex.http.caller import TheCaller, needs
from joex.observe import page
from joex.observe.queue_gauges import OF_QUEUES, STATES, bounded
from joex.store.stats import QueueStats

routes = APIRouter()


@routes.get("/metrics", dependencies=[needs(Scope.VIEW)])
async def metrics(console: TheConsole, caller: TheCaller) -> Response:
    """The unfinished jobs that the caller may see, by queue, as of the latest snapshot."""
    snapshot, _ = await console.snapshot(caller)
    content, content_type = await snapshot.once(_rendered)
    return Response(content, media_type=content_type)


def _rendered(snapshot: Snapshot) -> tuple[bytes, str]:
    return page.render(_Gauges(snapshot))


class _Gauges(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        found = [_stats(queue) for queue in snapshot.queues.values()]
        self._queues = [((one.queue,), one) for one in bounded([one for one in found if one.groups])]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return (gauge.family(("queue",), self._queues) for gauge in OF_QUEUES)


def _stats(queue: Queue) -> QueueStats:
    """A queue as in joex.queue_stats, which has no groups without unfinished jobs."""
    waiting, deferred, scheduled, running, stuck = (queue.sums[state] for state in STATES)
    return QueueStats(queue.name, waiting, deferred, scheduled, running, stuck, queue.oldest, queue.unfinished)
