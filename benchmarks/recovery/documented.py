"""Peers whose jobs come back only after many minutes: their documented times, instead of a wait for them."""

from __future__ import annotations

from dataclasses import dataclass

_PROCRASTINATE = "https://procrastinate.readthedocs.io/en/stable/howto/production/retry_stalled_jobs.html"


@dataclass(frozen=True, slots=True)
class Documented:
    """``seconds`` from the end of a worker to the next run of its job; ``text``: the setting, its default, its page."""

    seconds: float
    text: str


DOCUMENTED = {
    "procrastinate": Documented(
        630,
        "by itself never. At most, with the periodic task of its guide: it comes every 10 minutes, and retries "
        f"jobs of workers silent for 30 s (`seconds_since_heartbeat`): [Retry stalled jobs]({_PROCRASTINATE})",
    ),
    "oban": Documented(
        360,
        "`rescue_after` of its lifeline, 5 minutes after its start, for all jobs, also those that still run; it looks "
        "every minute (`interval`): [Oban for Python](https://oban.pro/docs/py)",
    ),
    "graphile-worker": Documented(
        14_400,
        "4 hours after it was locked, which can't be set in the open version; it looks every 8 to 10 minutes "
        "(`minResetLockedInterval`, `maxResetLockedInterval`): "
        "[Crashed worker recovery](https://worker.graphile.org/docs/pro/recovery)",
    ),
    "pg-boss": Documented(
        900,
        "`expireInSeconds`, 15 minutes after its start, for all jobs, also those that still run; it looks every minute "
        "(`monitorIntervalSeconds`): [Queues](https://github.com/timgit/pg-boss/blob/master/docs/api/queues.md)",
    ),
    "river": Documented(
        3_600,
        "`RescueStuckJobsAfter`, 1 hour after its start, for all jobs, also those that still run; it looks every 30 s: "
        "[Config](https://pkg.go.dev/github.com/riverqueue/river#Config)",
    ),
}
