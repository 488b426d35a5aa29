"""The demand of queues that several pools serve, divided among these pools.

All jobs of the queues, waiting and running, are divided in proportion to the slots that each pool may have. A pool that
runs fewer than its part counts waiting ones, as many of them as it lacks beside the others::

    part = (runnable + running in all of the pools) * own slots / slots of all
    lack = part - running in this pool, at least 0
    own demand = runnable * own lack / lacks of all, rounded up

Running jobs count, so that a pool whose executors are the first to take jobs is asked for no more than before, and the
others for no fewer. What can't start has no slots for the others, so that no job waits for it. For itself a pool counts
all slots that it may have: else executors that never start would leave, and be asked for again.

Pools that serve the same queues in one database share. A pool that serves other queues too counts the jobs in full, as
do the pools beside it: then executors may be too many, and never too few.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from joex_operator.api.objects import Pool
from joex_operator.decide.replicas import Phase, Replica, crashing, ready
from joex_operator.decide.scaling import Demand


@dataclass(frozen=True, slots=True)
class Server:
    """A pool that serves queues: the slots that it may have, and the jobs that run on those of them that it has."""

    slots: int
    running: int


def most_slots(pool: Pool) -> int:
    """The slots that a pool may have."""
    spec = pool.spec
    if pool.deleted_at is not None or spec.suspend:
        return 0
    return spec.pool_size * (spec.scaling.max_replicas if spec.replicas is None else spec.replicas)


def able_slots(pool: Pool, replicas: Collection[Replica]) -> int:
    """The slots that a pool can have as it is: where it gets no further executor, no more than are ready.

    (Executors that take no jobs are a part of its size all the same, unless they crash or their nodes are lost.)
    """
    spec = pool.spec
    is_bound = spec.replicas is None and spec.scaling.behavior.scale_up.select_policy == "Disabled"
    if is_bound or any(one.is_stuck or one.is_deaf or _is_late(one) for one in replicas):
        return min(most_slots(pool), len(ready(replicas)) * spec.pool_size)
    failing = len(crashing(replicas)) + sum(one.phase is Phase.LOST for one in replicas)
    return max(most_slots(pool) - failing * spec.pool_size, 0)


def _is_late(replica: Replica) -> bool:
    """Whether its executor runs, and has not registered for a while."""
    return replica.phase is Phase.PENDING and replica.unready


def part(demand: Demand, own: Server, others: Sequence[Server]) -> Demand:
    """The part of a pool in the demand of its queues."""
    servers = (own, *others)
    slots = sum(one.slots for one in servers)
    jobs = demand.runnable + sum(one.running for one in servers)
    lacks = [max(jobs * one.slots - one.running * slots, 0) for one in servers]  # (times the slots of all)
    if not demand.runnable or not sum(lacks):
        return demand
    runnable = -(-demand.runnable * lacks[0] // sum(lacks))
    if demand.work is None:
        return replace(demand, runnable=runnable)
    work = replace(demand.work, runnable=demand.work.runnable * runnable / demand.runnable)
    return replace(demand, runnable=runnable, work=work)
