"""The tables that ``joex simulate`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from joex.cli.output import note, print_table, say
from joex.core.duration import span
from joex_operator.simulate.report import GroupReport, PoolReport, Report, Waits

_WAITS = ("MEAN", "P50", "P95", "P99", "MAX")
_POOLS = ("EXECUTORS", "MIN", "MAX", "STARTED", "REMOVED", "IN USE", "HOURS")
_MONEY = ",.2f"


def show(reports: Sequence[Report], most: int) -> None:
    """Print one report in full, or several side by side. ``most``: the number of groups to list."""
    if len(reports) == 1:
        _show_one(reports[0], most)
    else:
        _compare(reports)
    for one in reports:
        if one.not_run:
            note(f"{one.policy}: {one.not_run:,} jobs never ran: no executor was left, or their group has maxRunning 0")


def _show_one(one: Report, most: int) -> None:
    say(f"{one.jobs:,} jobs in {span(one.seconds)}: {one.success:,} success, {one.failed:,} failed{_cancelled(one)}")
    say()
    was = [("as it was", None, one.was, None)] if one.was is not None else []
    queues = [(queue.queue, queue.waits.runs, queue.waits, queue.jain) for queue in one.queues]
    total = [("all", one.waits.runs, one.waits, None)] if len(queues) > 1 else []
    lines = [*queues, *total, *was]
    rows = [(name, _known(runs, ","), *_spans(waits), _known(jain, ".3f")) for name, runs, waits, jain in lines]
    _print(("QUEUE", "RUNS", *_WAITS, "JAIN"), rows, texts=1)
    _show_groups(one, most)
    _print(("POOL", *_POOLS, "COST"), map(_pool, one.pools, _costs(one)), texts=1)


def _show_groups(one: Report, most: int) -> None:
    say()
    longest = sorted(one.groups, key=lambda group: group.waits.p95, reverse=True)
    _print_groups(longest[:most], with_was=one.was is not None)
    if len(longest) > most:
        say(f"These waited longest, of {len(longest):,} groups. The busiest:")
        busiest = sorted(one.groups, key=lambda group: group.slot_hours, reverse=True)
        _print_groups(busiest[:most], with_was=one.was is not None)
    say()


def _print_groups(groups: Iterable[GroupReport], *, with_was: bool) -> None:
    rows = []
    for group in groups:
        was = (span(group.was.p95) if group.was else None,) if with_was else ()
        waits = _spans(group.waits)
        rows.append(
            (group.group, group.queue, group.weight, f"{group.waits.runs:,}", *waits, *was, _percent(group.slot_share))
        )
    columns = ("GROUP", "QUEUE", "WEIGHT", "RUNS", *_WAITS, *(("WAS P95",) if with_was else ()), "OF SLOTS")
    _print(columns, rows, texts=2)


def _compare(reports: Sequence[Report]) -> None:
    rows: list[tuple[object, ...]] = []
    if (was := reports[0].was) is not None:
        rows.append(("as it was", *_spans(was), *[None] * 7))
    for one in reports:
        jains = [queue.jain for queue in one.queues if queue.jain is not None]
        largest = sum(pool.executors_max for pool in one.pools)
        mean = sum(pool.executors_mean for pool in one.pools)
        hours, cost = f"{one.executor_hours:,.1f}", _known(one.cost, _MONEY)
        started = sum(pool.started for pool in one.pools)
        size = (f"{mean:,.1f}", largest, started, _percent(one.utilisation), hours, cost)
        rows.append((one.policy, *_spans(one.waits), _known(min(jains, default=None), ".3f"), *size))
    _print(("POLICY", *_WAITS, "JAIN", "EXECUTORS", "MAX", "STARTED", "IN USE", "HOURS", "COST"), rows, texts=1)


def _pool(pool: PoolReport, cost: float | None) -> tuple[object, ...]:
    size = (f"{pool.executors_mean:,.1f}", pool.executors_min, pool.executors_max, pool.started, pool.removed)
    return (pool.pool, *size, _percent(pool.utilisation), f"{pool.executor_hours:,.1f}", _known(cost, _MONEY))


def _costs(one: Report) -> list[float | None]:
    if one.cost is None:
        return [None] * len(one.pools)
    return [one.cost * pool.executor_hours / one.executor_hours if one.executor_hours else 0.0 for pool in one.pools]


def _print(columns: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int) -> None:
    print_table(columns, rows, numbers=columns[texts:])


def _spans(waits: Waits) -> tuple[str, ...]:
    return tuple(span(seconds) for seconds in (waits.mean, waits.p50, waits.p95, waits.p99, waits.max))


def _cancelled(one: Report) -> str:
    return f", {one.cancelled:,} cancelled" if one.cancelled else ""


def _known(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or not share else f"{share:.1%}"  # noqa: PLR2004 - two digits that count
