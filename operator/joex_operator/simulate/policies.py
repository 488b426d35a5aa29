"""The policies to simulate: the pools of files, in the format of ``joex up``, or a fixed number of executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joex.errors import ConfigError
from joex_operator.api.objects import Pool, Resource, parse_pool
from joex_operator.api.spec import DatabaseRef, JoexPoolSpec
from joex_operator.local.files import read_files
from joex_operator.simulate.jobs import Jobs

_NOWHERE = "simulation"


@dataclass(frozen=True, slots=True)
class Policy:
    """Pools under a name.

    ``jobs_per_executor``: the size of each is what KEDA's formula says; None: what Joex decides.
    """

    name: str
    pools: Sequence[Pool]
    jobs_per_executor: int | None = None


def of_files(paths: Sequence[Path], jobs: Jobs) -> Policy:
    """The pools of some files.

    Raises:
        ConfigError: a file is invalid, or the pools do not serve a queue that has jobs.
    """
    documents = read_files(paths, _NOWHERE)
    pools = [parse_pool(document.manifest) for document in documents.values() if document.kind == "JoexPool"]
    served = {queue for pool in pools for queue in pool.spec.queues}
    policy = Policy(", ".join(map(str, paths)), pools)
    if missing := sorted({group.queue for group in jobs.groups} - served):
        serves = ", ".join(sorted(served))
        raise ConfigError(f"{policy.name}: no pool serves queue {missing[0]!r}, which has jobs; served: {serves}")
    return policy


def of_keda(policy: Policy, jobs_per_executor: int) -> Policy:
    """The same pools, with their bounds and windows, as KEDA's formula sizes them: an executor for so many jobs."""
    ours = {"target": None, "target_utilization": 100, "idle_reserve": 0}
    pools = [
        replace(pool, spec=pool.spec.model_copy(update={"scaling": pool.spec.scaling.model_copy(update=ours)}))
        for pool in policy.pools
    ]
    return Policy(f"KEDA, {jobs_per_executor} jobs each", pools, jobs_per_executor)


def of_size(executors: int, pool_size: int, jobs: Jobs) -> Policy:
    """A fixed number of executors that serve all queues."""
    spec = JoexPoolSpec(
        app="simulated:app", database=DatabaseRef(secret_name=_NOWHERE), replicas=executors, pool_size=pool_size
    )
    # Without validation, because there may be more queues than a pool may name.
    spec = spec.model_copy(update={"queues": sorted({group.queue for group in jobs.groups})})
    return Policy(f"{executors} of {pool_size}", [Resource("executors", _NOWHERE, spec)])
