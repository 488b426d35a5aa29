"""awa, by its bindings for Python; queueing, taking and finishing are its Rust runtime.

- Submission: `enqueue_many_copy` for a batch (COPY, "for high-volume Python producers"), `insert` for one; a client
  with one connection for each submitter.
- Work: the default storage (0.6: queue storage), `max_workers` = slots, two claimers ("benchmark 2 or 4 before raising
  it further"; more were no faster here), claims in batches of up to 500. With four claimers, or with
  4,000 slots and no deadline, some jobs were unfinished a minute after all had run.
- --fair: it knows partitions, not groups. A `PartitionedQueue` of ten, groups dealt over them by number, in weighted
  mode: each partition is sure of half its share of the slots, and the others are shared by weight.
- History: the ends of jobs stay (24 hours by default).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from urllib.parse import quote

import awa

from benchmarks.peers.drivers.protocol import Submission, Tasks, main, stop_signal, tell
from benchmarks.peers.drivers.sharing import PARTS, part_of

_QUEUE = "race"
_PARTITIONS = awa.PartitionedQueue(_QUEUE, PARTS)
_CLAIMERS, _CLAIM_BATCH, _CONNECTIONS = 2, 500, 20


@dataclass
class Noop:
    """Do nothing."""


@dataclass
class Stamp:
    """Print how late the job starts."""

    sent: float


@dataclass
class Sleep:
    """Hold a slot."""

    group: str
    ms: float
    sent: float


_KINDS = {"noop": Noop, "stamp": Stamp, "sleep": Sleep}


@dataclass(frozen=True, slots=True)
class _Producer:
    client: awa.AsyncClient
    fair: bool

    async def submit(self, jobs: Sequence[Submission]) -> None:
        given = [_KINDS[job.task](**job.args) for job in jobs]
        if len(jobs) == 1:
            queue = _PARTITIONS.queue_for_index(part_of(jobs[0].group)) if self.fair else _QUEUE
            await self.client.insert(given[0], queue=queue)
        else:
            await self.client.enqueue_many_copy(given, queue=_QUEUE)


def _client(url: str, connections: int) -> awa.AsyncClient:
    # Its URL parser wants the folder of a Unix socket as the host.
    if found := re.fullmatch(r"(\w+://[^@/]*@)/([^?]*)\?host=(.+)", url):
        url = f"{found[1].replace(':@', '@')}{quote(found[3], safe='')}/{found[2]}"
    return awa.AsyncClient(url, max_connections=connections)


class _Awa:
    async def version(self) -> str:
        return version("awa-pg")

    async def setup(self, url: str) -> None:
        client = _client(url, 1)
        await client.migrate()
        transaction = await client.transaction()
        await transaction.fetch_one("SELECT awa.storage_auto_finalize_if_fresh('awa')")
        await transaction.commit()
        await client.close()

    @asynccontextmanager
    async def producer(self, url: str, *, fair: bool) -> AsyncIterator[_Producer]:
        client = _client(url, 1)
        yield _Producer(client, fair)
        await client.close()

    async def work(self, url: str, slots: int, *, fair: bool) -> None:
        client = _client(url, _CONNECTIONS)
        tasks = Tasks()

        @client.task(Noop, queue=_QUEUE)
        async def noop(job: awa.Job[Noop]) -> None:
            await tasks.noop()

        @client.task(Stamp, queue=_QUEUE)
        async def stamp(job: awa.Job[Stamp]) -> None:
            await tasks.stamp(job.args.sent)

        @client.task(Sleep, queue=_QUEUE)
        async def sleep(job: awa.Job[Sleep]) -> None:
            await tasks.sleep(job.args.group, job.args.ms, job.args.sent)

        stop = stop_signal()
        if fair:
            await client.start(
                _PARTITIONS.queue_configs(min_workers_per_partition=max(1, slots // PARTS // 2)),
                global_max_workers=slots,
            )
        else:
            await client.start(
                [{"name": _QUEUE, "max_workers": slots, "claimers": _CLAIMERS, "claim_batch_size": _CLAIM_BATCH}]
            )
        tell(ready=True)
        await stop.wait()
        await client.shutdown()
        await client.close()

    async def pending(self, url: str) -> int:
        client = _client(url, 1)
        found = await client.queue_stats()
        await client.close()
        return sum(one.available + one.running + one.scheduled + one.retryable for one in found)


if __name__ == "__main__":
    main(_Awa())
