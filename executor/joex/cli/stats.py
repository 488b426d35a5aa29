"""``joex stats``: numbers about the queues."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.database import with_client, with_connection
from joex.cli.options import AsJson, DatabaseUrl
from joex.cli.output import iso, make_table, print_json, print_json_line, print_table, say
from joex.cli.trace import print_trace
from joex.cli.watch import display, read_seconds, repeated
from joex.core.duration import span
from joex.errors import ConfigError
from joex.store.stats import QueueStats, Shares, finished_between, now, shared_queue_stats

if TYPE_CHECKING:
    from rich.console import RenderableType

    from joex.client.client import Client
    from joex.store.statement import Connection

_COLUMNS = ("QUEUE", "GROUPS", "WAITING", "DEFERRED", "STUCK", "SCHEDULED", "RUNNING", "OLDEST", "PAUSED")
_SHARE_COLUMNS = ("QUEUE", "ACTIVE", "BEHIND", "MEDIAN WAIT", "LONGEST WAIT", "LARGEST")
_NOTHING = "no unfinished jobs"


def stats(
    seconds: Annotated[str | None, typer.Argument(metavar="SECONDS", help="How often to refresh.")] = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every 2 seconds, or every SECONDS, until Ctrl-C.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print a JSON line for each finished job, for `joex simulate`.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="With --trace: only jobs ended since; '24h', or 2026-01-31T03:00:00Z."),
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="With --trace: only this queue.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="With --trace: replace each group's name by a hash.")
    ] = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Count the unfinished jobs of each queue, and show how its groups share the slots.

    OLDEST is how long the oldest job that may run has waited. ACTIVE groups hold slots, or have a job that an executor
    could take now; groups BEHIND hold less than their share while another group holds more. MEDIAN and LONGEST WAIT are
    the waits of each group's next job. LARGEST is the group that holds the most slots, with its part of the slots in
    use. With --watch, ENDED/S is the number of jobs that finished per second since the last refresh, and --json prints
    an object per line. --trace prints finished jobs instead.
    """
    _check(trace=trace, watch=watch or seconds is not None, since=since, queue=queue, anonymous=anonymous)
    if trace:
        print_trace(database_url, since=since, queue=queue, anonymous=anonymous)
        return
    if seconds is not None and not watch:
        raise ConfigError("stats: SECONDS goes with --watch")
    if watch:
        every = read_seconds("2" if seconds is None else seconds)
        with_client(database_url, lambda client: _watch(client, every, as_json=as_json))
        return
    queues = with_connection(database_url, shared_queue_stats)
    if as_json:
        print_json(queues)
    elif queues:
        print_table(_COLUMNS, map(_row, queues), numbers=_COLUMNS[1:])
        if shared := _shares(queues):
            say()
            print_table(_SHARE_COLUMNS, shared, numbers=_SHARE_COLUMNS[1:-1])
    else:
        say(_NOTHING)


def _check(*, trace: bool, watch: bool, **of_trace: object) -> None:
    """Refuse options that don't go together."""
    if trace and watch:
        raise ConfigError("stats: --trace does not go with --watch")
    for name, given in of_trace.items():
        if given and not trace:
            raise ConfigError(f"stats: --{name} goes with --trace")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The queues at a time of the database's clock, and the jobs finished per second since the last refresh."""

    at: datetime
    queues: list[QueueStats]
    ended: dict[str, float] | None

    @classmethod
    async def take(cls, connection: Connection, last: _Snapshot | None) -> _Snapshot:
        """Read the queues."""
        at, queues = await now(connection), await shared_queue_stats(connection)
        if last is None:
            return cls(at, queues, None)
        seconds = (at - last.at).total_seconds()
        ended = {name: count / seconds for name, count in (await finished_between(connection, last.at, at)).items()}
        idle = ended.keys() - {queue.queue for queue in queues}
        queues += [QueueStats(name, 0, 0, 0, 0, 0, None, 0) for name in idle]
        return cls(at, sorted(queues, key=lambda queue: queue.queue), ended)

    def rate(self, queue: str) -> float | None:
        """The jobs of the queue that finished per second; None at the first refresh."""
        return None if self.ended is None else round(self.ended.get(queue, 0.0), 1)


async def _watch(client: Client, every: float, *, as_json: bool) -> None:
    last: _Snapshot | None = None

    async def read(connection: Connection) -> _Snapshot:
        nonlocal last
        last = await _Snapshot.take(connection, last)
        return last

    found = repeated(client, read, every)
    if as_json:
        async for one in found:
            print_json_line(_as_json(one))
        return
    with display() as show:
        async for one in found:
            show(_block(one))


def _as_json(snapshot: _Snapshot) -> dict[str, object]:
    queues = [{**dataclasses.asdict(q), "ended_per_second": snapshot.rate(q.queue)} for q in snapshot.queues]
    return {"at": snapshot.at, "queues": queues}


def _block(snapshot: _Snapshot) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - slow to import, and --json does not need it
    from rich.text import Text  # noqa: PLC0415

    rows = [(*_row(queue), snapshot.rate(queue.queue)) for queue in snapshot.queues]
    columns = (*_COLUMNS, "ENDED/S")
    block: list[RenderableType] = [make_table(columns, rows, numbers=columns[1:]) if rows else _NOTHING]
    if shared := _shares(snapshot.queues):
        block += ["", make_table(_SHARE_COLUMNS, shared, numbers=_SHARE_COLUMNS[1:-1])]
    return Group(Text(iso(snapshot.at)), *block)


def _row(q: QueueStats) -> tuple[object, ...]:
    oldest = span(q.oldest_runnable_seconds)
    return (q.queue, q.groups, q.waiting, q.deferred, q.stuck, q.scheduled, q.running, oldest, q.paused)


def _shares(queues: list[QueueStats]) -> list[tuple[object, ...]]:
    return [_share_row(queue.shares) for queue in queues if queue.shares is not None]


def _share_row(s: Shares) -> tuple[object, ...]:
    largest = None if s.largest_share is None else f"{s.largest_share:.0%} {s.largest_group}"
    waits = (span(s.median_wait_seconds), span(s.longest_wait_seconds))
    return (s.queue, s.active_groups, s.groups_behind, *waits, largest)
