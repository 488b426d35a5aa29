"""Simulations for the tests: a few jobs, a pool, and the time of each take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joex_operator.simulate.clock import Timing
from joex_operator.simulate.engine import Simulation
from joex_operator.simulate.jobs import GroupOf, Jobs, SimulatedJob
from joex_operator.simulate.report import Report, report
from joex_operator.simulate.totals import Totals
from tests.unit.joex_operator.builders import autoscaled, pool

EXACT = Timing(start_up=5.0, overhead=0.0)


def job(group: str, at: float = 0.0, seconds: float = 10.0, **more: Any) -> tuple[str, dict[str, Any]]:
    """A job of a group; ``more`` in the words of `SimulatedJob`."""
    return group, {"at": at, "seconds": seconds, **more}


def jobs_of(some: Iterable[tuple[str, dict[str, Any]]], settings: Mapping[str, Any] | None = None) -> Jobs:
    """Jobs; ``settings``: of groups by name."""
    given = list(some)
    names = list(dict.fromkeys(name for name, _ in given))
    jobs = Jobs(
        groups=[GroupOf(**{"queue": "default", "name": name, **(settings or {}).get(name, {})}) for name in names]
    )
    for name, fields in given:
        jobs.add(SimulatedJob(group=names.index(name), **fields))
    jobs.sort()
    return jobs


@dataclass
class Outcome:
    """The result of a simulation."""

    jobs: Jobs
    totals: Totals
    report: Report

    @property
    def taken(self) -> list[tuple[str, float]]:
        """The groups of the jobs in the order of their takes, with the times."""
        taken = self.totals.taken
        return [(self.jobs.groups[group].name, at) for group, at in zip(taken.group, taken.at, strict=True)]

    @property
    def waits(self) -> list[float]:
        return list(self.totals.taken.waited)


def simulated(
    *some: tuple[str, dict[str, Any]], settings: Mapping[str, Any] | None = None, timing: Timing = EXACT, **spec: Any
) -> Outcome:
    """Simulate these jobs on a pool; by default on one executor with one slot."""
    return simulated_on([{"replicas": 1, "poolSize": 1, **spec}], jobs_of(some, settings), timing)


def simulated_on(
    specs: Iterable[dict[str, Any]], jobs: Jobs, timing: Timing = EXACT, most_groups: int | None = None
) -> Outcome:
    pools = [pool(**spec) for spec in specs]
    totals = Simulation(jobs, pools, timing).run()
    return Outcome(jobs, totals, report("it", jobs, pools, totals, None, most_groups=most_groups))


def by_demand(most: int, window: int = 0, **spec: Any) -> dict[str, Any]:
    """A pool that is sized by demand, in the words of its file."""
    return {"replicas": None, "scaling": autoscaled(0, most, window), **spec}
