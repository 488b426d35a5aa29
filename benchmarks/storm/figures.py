"""The figures of a storm: the arithmetic, as pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.report import Figure, quantile
from benchmarks.shares import jain
from benchmarks.storm.host import LEASE
from benchmarks.storm.observed import CLIENTS, MIB, SESSIONS, Sample
from benchmarks.storm.run import GROUPS, SLOTS, Seen, Size

STORM, OVER_TIME = "storm", "storm, over time"
"""The tables of the figures: of each storm as a whole, and of moments."""
MOST_CONNECTIONS = 9 + SLOTS
"""Of an executor without HTTP, as the documentation says."""
SESSIONS_POOLED = 50
"""That the pooler may have with the database."""

_AT_REST = 4  # connections of an executor, as the documentation says
_FLAT = 10.0  # per cent that something may grow in the time that counts
_LINEAR = 1.25  # times as much
_MOMENTS = 5


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How much y grows with x, by the line that fits best.

    >>> slope([(0, 1), (1, 3), (2, 5)]), slope([(0, 1), (1, 4), (2, 1)])
    (2.0, 0.0)
    """
    middle = sum(x for x, _ in points) / len(points)
    return sum((x - middle) * y for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


def growth(points: Sequence[tuple[float, float]]) -> float:
    """The per cent that y grows from the first x to the last, of its mean, by the line that fits best.

    >>> growth([(0, 90), (5, 100), (10, 110)])
    20.0
    """
    mean = sum(y for _, y in points) / len(points)
    return slope(points) * (points[-1][0] - points[0][0]) / mean * 100


def storm_figures(size: Size, seen: Seen, pooler: str = "") -> list[Figure]:
    """The figures of one storm; ``pooler``: the name of that through which executors reached the server."""
    rows = [*_jobs(size, seen), *_times(seen, pooled=bool(pooler)), *_growths(size, seen.samples)]
    rows += _connections_pooled(size, seen, pooler) if pooler else _connections(size, seen)
    where = f"through {pooler}: " if pooler else ""
    return [*(replace(one, what=where + one.what) for one in rows), *_moments(seen.samples, pooler)]


def _told(what: str, value: float, unit: str) -> Figure:
    return Figure(what, value, unit, table=STORM)


def _none(what: str, count: int, unit: str) -> Figure:
    return Figure(what, count, unit, "0", count == 0, table=STORM)


def _at_most(what: str, value: float, unit: str, most: float) -> Figure:
    return Figure(what, value, unit, f"at most {most:g}", value <= most, table=STORM)


def _jobs(size: Size, seen: Seen) -> list[Figure]:
    happened = ", ".join(f"{seen.happened[how]} {how}" for how in ("killed", "drained", "stopped"))
    return [
        _told(f"{size.executors} executors, with {happened}: jobs submitted", seen.submitted, "jobs"),
        _none("jobs lost", seen.submitted - seen.done - seen.failed.total(), "jobs"),
        _none("jobs that failed", seen.failed.total(), "jobs"),
        _none("second effects of a job", seen.twice, "effects"),
        _none("living executors declared dead", seen.disowned, "executors"),
        _none("processes that ended by themselves, or with an error", seen.failures, "processes"),
        _told("executors that could not start at the first try", seen.exited.total(), "executors"),
        _told("runs lost with killed executors, and begun again", seen.losses, "runs"),
    ]


def _times(seen: Seen, *, pooled: bool) -> list[Figure]:
    new, others = quantile(seen.waits, 0.5), quantile(seen.others_waits, 0.5)
    index = jain(seen.shares)
    most = (5 if pooled else 1) * LEASE + 5  # an executor is dead after one lease, or five where it can't hold a lock
    return [
        _at_most("kill -9 to the last job taken from the dead, worst", max(seen.moved_on, default=0.0), "s", most),
        Figure(f"Jain's index of {GROUPS} backlogged groups", index, "", "at least 0.99", index >= 0.99, table=STORM),
        _told("first job of a new tenant, submit to take, p50", new, "ms"),
        _told("first job of a new tenant, submit to take, p95", quantile(seen.waits, 0.95), "ms"),
        _at_most("the same p50, against a job of a backlogged group", new / others, "x", 0.1),
    ]


def _growths(size: Size, samples: Sequence[Sample]) -> list[Figure]:
    counted = [one for one in samples if one.at >= size.warm_up]
    half = len(counted) // 2
    first, second = ([(one.finished, one.jobs) for one in part] for part in (counted[: half + 1], counted[half:]))
    minutes = (counted[-1].at - counted[0].at) / 60

    def of(what: str, size_of: Callable[[Sample], float]) -> Figure:
        grown = growth([(one.at, size_of(one)) for one in counted])
        return _at_most(f"{what}: growth in {minutes:.1f} minutes", grown, "%", _FLAT)

    return [
        _told(
            "table of jobs: bytes per finished job that it keeps, at the end",
            samples[-1].jobs / samples[-1].finished,
            "B",
        ),
        _at_most(
            "table of jobs: bytes that a further job adds, second half against first",
            slope(second) / slope(first),
            "x",
            _LINEAR,
        ),
        of("tables that keep no jobs", lambda one: one.others),
        of(f"memory of a process with {size.each} executors", lambda one: one.process),
        of("memory of a session of the server", lambda one: one.session),
    ]


def _connections(size: Size, seen: Seen) -> list[Figure]:
    most = max(sum(one.values()) for one in seen.busy)
    rest = sum(seen.rest.values())
    return [
        _at_most("connections of an idle executor", rest / size.executors, "", _AT_REST),
        _at_most("connections of an executor in the storm, most", most / size.executors, "", MOST_CONNECTIONS),
        _told("sessions of the server for executors in the storm, most", most, "sessions"),
    ]


def _connections_pooled(size: Size, seen: Seen, pooler: str) -> list[Figure]:
    clients = max(one[CLIENTS] for one in seen.busy)
    return [
        _at_most("connections of an idle executor", seen.rest[CLIENTS] / size.executors, "", _AT_REST),
        _at_most("connections of an executor in the storm, most", clients / size.executors, "", MOST_CONNECTIONS),
        _at_most(
            f"sessions of the server for executors in the storm, most ({pooler} may open {SESSIONS_POOLED})",
            max(one[SESSIONS] for one in seen.busy),
            "sessions",
            SESSIONS_POOLED,
        ),
    ]


def _moments(samples: Sequence[Sample], pooler: str) -> list[Figure]:
    """Some of the samples, spread evenly over the storm."""
    made = []
    for one in samples[len(samples) // _MOMENTS - 1 :: len(samples) // _MOMENTS]:
        when = f"{one.at / 60:.1f} min" + (f", {pooler}" if pooler else "")
        for what, value, unit in (
            ("jobs finished", one.finished, ""),
            ("table of jobs", one.jobs / MIB, "MiB"),
            ("dead rows in it", one.dead, ""),
            ("tables that keep no jobs", one.others / MIB, "MiB"),
            ("a process of executors", one.process / MIB, "MiB"),
            ("a session of the server", one.session / MIB, "MiB"),
        ):
            made.append(Figure(what, value, unit, system=when, table=OVER_TIME))
    return made
