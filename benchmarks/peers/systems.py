"""The systems of the race: how the race starts each, its properties, and its settings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import install

_ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class System:
    """One system of the race.

    Attributes:
        name: in `--peers`, in tables and in plots.
        language: of its workers.
        install: installs its driver; None if it needs nothing.
        command: starts its driver; a command of the protocol follows.
        slots: how many jobs at a time its worker runs in the drain: the best of several tries.
        jobs: how many no-op jobs the drain has: enough for some seconds.
        unfinished: an SQL condition: some job is not finished.
        history: the data that it keeps of a finished job by default.
        settings: in words, for people.
        fairness: its means for fairness between groups, and which of them ``--fair`` uses; empty: none.
        has_own_bench: its driver also runs its maker's benchmark.
    """

    name: str
    language: str
    install: Callable[[], None] | None
    command: tuple[str, ...]
    slots: int
    jobs: int
    unfinished: str
    history: str
    settings: str
    fairness: str = ""
    has_own_bench: bool = False


def _python(name: str) -> tuple[str, ...]:
    return (str(install.PYTHON), "-m", f"benchmarks.peers.drivers.{name}")


def _node(name: str) -> tuple[str, ...]:
    return (str(install.NODE), str(install.NODE_DRIVERS / f"{name}.mjs"))


JOEX = System(
    name="joex",
    language="Python",
    install=None,
    command=(sys.executable, "-m", "benchmarks.peers.drivers.joex"),
    slots=4000,
    jobs=150_000,
    unfinished="EXISTS (SELECT FROM joex_private.job WHERE finished_at IS NULL)",
    history="the job, with its times, attempts and result, for 7 days",
    settings="`joex executor --pool-size`; `Client.submit_many` for batches, `Client.submit` for one.",
    fairness="how it works: by occupancy, jointly over all executors; nothing is set",
)

PEERS = {
    system.name: system
    for system in (
        System(
            name="pgqueuer",
            language="Python",
            install=install.python,
            command=_python("pgqueuer"),
            slots=2000,
            jobs=100_000,
            unfinished="EXISTS (SELECT FROM pgqueuer)",
            history="two lines in a log (picked, successful), rolled up into statistics; the job's row is deleted",
            settings="asyncpg, uvloop, one direct connection for the worker, batches of 500, `pgq autovac`; "
            "`Queries.enqueue` with lists for batches. Durability: its default, all tables logged.",
            fairness="entry points with a `concurrency_limit` each: ten, groups dealt over them",
        ),
        System(
            name="procrastinate",
            language="Python",
            install=install.python,
            command=_python("procrastinate"),
            slots=20,
            jobs=1_000,
            unfinished="EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
            history="the job and an event for each change of its state, for good",
            settings="psycopg 3 with its C part, uvloop, `concurrency` = slots, a pool of 20 connections, "
            "LISTEN/NOTIFY; `batch_defer_async` for batches.",
            fairness="queues with a worker each: ten, groups dealt over them",
        ),
        System(
            name="oban",
            language="Python",
            install=install.oban,
            command=(str(install.PYTHON_OBAN), "-m", "benchmarks.peers.drivers.oban"),
            slots=1000,
            jobs=10_000,
            unfinished="EXISTS (SELECT FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled'))",
            history="the job, for a day",
            settings="Oban for Python without Oban Pro, on Python 3.12 or newer: psycopg 3 with its C part, uvloop, a "
            "pool of 10 connections, one queue whose limit is the slots; `enqueue_many` for batches.",
            fairness="queues with a tenth of the slots each: ten, groups dealt over them (Oban Pro: limits for "
            "partitions of a queue)",
        ),
        System(
            name="awa",
            language="Rust, tasks in Python",
            install=install.python,
            command=_python("awa"),
            slots=1000,
            jobs=30_000,
            unfinished="EXISTS (SELECT FROM awa.jobs WHERE state IN "
            "('available', 'running', 'scheduled', 'retryable'))",
            history="the end of a job, for 24 hours",
            settings="queue storage, two claimers, claims of up to 500; `enqueue_many_copy` (COPY) for batches.",
            fairness="a partitioned queue of ten in weighted mode, groups dealt over the partitions",
        ),
        System(
            name="graphile-worker",
            language="TypeScript",
            install=install.node,
            command=_node("graphile-worker"),
            slots=24,
            jobs=150_000,
            unfinished="EXISTS (SELECT FROM graphile_worker._private_jobs)",
            history="nothing: finished jobs are deleted",
            settings="its own performance guide: a local queue of 500, batched completion, prepared statements; "
            "`addJobs` for batches.",
            fairness="a named queue per group, which runs one job at a time",
        ),
        System(
            name="pg-boss",
            language="TypeScript",
            install=install.node,
            command=_node("pg-boss"),
            slots=10,
            jobs=150_000,
            unfinished="EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')",
            history="the job, with its output, for 7 days",
            settings="LISTEN/NOTIFY, polling at its least, workers that wake themselves until nothing is left, "
            "batches of 500 in the drain; `insert` for batches.",
            fairness="`groupConcurrency`: no group has more than half the slots",
        ),
        System(
            name="river",
            language="Go",
            install=install.river,
            command=(str(install.RIVER),),
            slots=2000,
            jobs=100_000,
            unfinished="EXISTS (SELECT FROM river_job WHERE state IN "
            "('available', 'pending', 'retryable', 'running', 'scheduled'))",
            history="the job, for 24 hours",
            settings="`FetchCooldown` 1 ms, `FetchPollInterval` 20 ms, pgx; `InsertManyFast` (COPY) for batches.",
            has_own_bench=True,
        ),
    )
}
