"""Generates the jobs of a workload: arrivals, durations, failures. The random generator is an argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import accumulate, count, takewhile
from random import Random

from joex_operator.simulate.jobs import GroupOf, Jobs, SimulatedJob
from joex_operator.simulate.workload import Burst, Spread, Tenant, Workload

_HOUR = 3600.0
_P95 = 1.6448536269514722
"""Standard deviations between the median and the 95th percentile of a normal distribution."""
_ALWAYS = 1_000_000_000


def generate(workload: Workload, chance: Random) -> Jobs:
    """The jobs of a workload."""
    jobs = Jobs(period=workload.period.total_seconds())
    for task, tenant in enumerate(workload.tenants):
        for name in tenant.names():
            jobs.groups.append(GroupOf(tenant.queue, name, tenant.weight, tenant.max_running))
            for job in _jobs(tenant, task, len(jobs.groups) - 1, jobs.period, chance):
                jobs.add(job)
    jobs.sort()
    return jobs


def _jobs(tenant: Tenant, task: int, group: int, period: float, chance: Random) -> Iterator[SimulatedJob]:
    seconds = _durations(tenant.duration, chance)
    delay = None if tenant.retry_delay is None else tenant.retry_delay.total_seconds()
    for at in _times(tenant, period, chance):
        yield SimulatedJob(
            at=at,
            group=group,
            seconds=seconds(),
            task=task,
            is_high=chance.random() < tenant.high,
            failures=_failures(tenant.failures, chance),
            retries=tenant.retries,
            retry_delay=delay,
        )


def _times(tenant: Tenant, period: float, chance: Random) -> Iterator[float]:
    if tenant.rate:
        steps = (chance.expovariate(1.0) if tenant.arrivals == "poisson" else 1.0 for _ in count())
        yield from takewhile(lambda at: at < period, _paced(accumulate(steps), tenant.rate, tenant.daily))
    for burst in tenant.bursts:
        for at in takewhile(lambda at: at < period, _repeated(burst)):
            yield from (at for _ in range(burst.jobs))


def _paced(work: Iterator[float], rate: float, daily: list[float] | None) -> Iterator[float]:
    """The times at which the integral of the rate reaches these amounts.

    With a daily pattern the rate changes each hour; ``reached`` is the integral at the beginning of the hour.
    """
    if daily is None:
        yield from (amount / rate for amount in work)
        return
    hour, reached = 0, 0.0
    for amount in work:
        while amount > reached + rate * daily[hour % len(daily)] * _HOUR:
            reached += rate * daily[hour % len(daily)] * _HOUR
            hour += 1
        yield hour * _HOUR + (amount - reached) / (rate * daily[hour % len(daily)])


def _repeated(burst: Burst) -> Iterator[float]:
    begin = burst.at.total_seconds()
    return iter([begin]) if burst.every is None else count(begin, burst.every.total_seconds())


def _durations(spread: Spread, chance: Random) -> Callable[[], float]:
    if spread.mean is not None:
        rate = 1 / spread.mean.total_seconds()
        return lambda: chance.expovariate(rate)
    if spread.median is not None and spread.p95 is not None:
        mu = math.log(spread.median.total_seconds())
        sigma = (math.log(spread.p95.total_seconds()) - mu) / _P95
        return lambda: chance.lognormvariate(mu, sigma)
    seconds = (spread.constant or timedelta(0)).total_seconds()
    return lambda: seconds


def _failures(share: float, chance: Random) -> int:
    """The number of failed runs in a row if each fails with this probability, by inversion of the geometric law."""
    if share in (0.0, 1.0):
        return int(share) * _ALWAYS
    return int(math.log(1.0 - chance.random()) / math.log(share))
