"""``joex stats``: the queues in numbers."""

from __future__ import annotations

from joex.cli.database import with_connection
from joex.cli.options import AsJson, DatabaseUrl
from joex.cli.output import print_json, print_table, say, span
from joex.store.stats import queue_stats

_COLUMNS = ("QUEUE", "GROUPS", "WAITING", "DEFERRED", "STUCK", "SCHEDULED", "RUNNING", "OLDEST")


def stats(*, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """Count the unfinished jobs of each queue.

    OLDEST is how long the oldest job that may run has waited.
    """
    queues = with_connection(database_url, queue_stats)
    if as_json:
        print_json(queues)
    elif queues:
        rows = [
            (q.queue, q.groups, q.waiting, q.deferred, q.stuck, q.scheduled, q.running, span(q.oldest_runnable_seconds))
            for q in queues
        ]
        print_table(_COLUMNS, rows, numbers=_COLUMNS[1:])
    else:
        say("no unfinished jobs")
