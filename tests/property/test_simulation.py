"""With any jobs and pools, a simulation loses no job, and has no free slot while there is work for it."""

from collections import Counter
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from joex_operator.simulate.clock import Timing
from joex_operator.simulate.engine import Simulation
from joex_operator.simulate.jobs import GroupOf, Jobs, SimulatedJob
from tests.unit.joex_operator.builders import autoscaled, pool

QUEUES = ["one", "two"]

groups_of = st.lists(
    st.builds(
        GroupOf,
        st.sampled_from(QUEUES),
        st.text("abc", min_size=1),
        st.sampled_from([1, 1, 2, 5]),
        st.sampled_from([None, None, 1, 3]),
    ),
    min_size=1,
    max_size=5,
)
jobs_of = st.lists(
    st.builds(
        SimulatedJob,
        at=st.sampled_from([0, 0, 1, 7, 30]) | st.floats(0, 500),
        group=st.integers(0, 99),
        seconds=st.sampled_from([0, 10, 100, 100]) | st.floats(0, 100),
        is_high=st.booleans(),
        failures=st.sampled_from([0, 0, 0, 1, 3]),
        retries=st.sampled_from([None, 0, 5]),
        retry_delay=st.sampled_from([None, 0, 10]),
    ),
    min_size=1,
    max_size=60,
)
fixed = st.integers(1, 3).map(lambda replicas: {"replicas": replicas})
scaled = st.builds(
    lambda least, most, window: {"scaling": autoscaled(least, most, window)},
    st.integers(0, 1),
    st.integers(1, 4),
    st.sampled_from([0, 10, 300]),
)


def pools_of(sizes):
    """Pools of one or three slots, each of which serves both queues."""
    return st.builds(
        lambda size, slots, turned: pool(
            poolSize=slots, queues=QUEUES[::-1] if turned else QUEUES, retryDelay="1s", **size
        ),
        sizes,
        st.sampled_from([1, 3]),
        st.booleans(),
    )


def made(groups, some):
    jobs = Jobs(groups=groups)
    for job in some:
        jobs.add(replace(job, group=job.group % len(groups)))
    jobs.sort()
    return jobs


class Watched(Simulation):
    """Checks all invariants before time moves on."""

    looked_at = 0.0

    def _becomes_runnable(self, job, lane=None):
        self.watch()
        super()._becomes_runnable(job, lane)

    def _end(self, executor, job, *more):
        self.watch()
        super()._end(executor, job, *more)

    def watch(self):
        if self._clock.now == self.looked_at:
            return
        self.looked_at = self._clock.now
        for one_pool in self._pools:
            executors = one_pool._executors.values()
            assert one_pool._held == sum(len(one.held) for one in executors)
            assert all(one.free + len(one.held) == one_pool.spec.pool_size for one in executors)
            free = any(one.free and one.is_ready for one in executors)
            assert not free or not any(ring.has_work for ring in one_pool.queues)
        for ring in self._queues.values():
            assert all(group.max_running is None or group.running <= group.max_running for group in ring.groups)


# Most executors have one long job, and others come.
@example(
    [GroupOf("one", "a")],
    [
        SimulatedJob(at, 0, seconds)
        for at, seconds in [(0, 10), (0, 10), (0, 10), (0, 100), (0, 10), (0, 90), (50, 100)]
    ],
    [pool(poolSize=3, queues=QUEUES, scaling=autoscaled(0, 3))],
)
@given(groups_of, jobs_of, st.lists(pools_of(fixed | scaled), min_size=1, max_size=3))
def test_every_job_runs_to_its_end_whatever_the_pools_do(groups, some, pools):
    jobs = made(groups, some)
    totals = Watched(jobs, pools, Timing(overhead=0.0)).run()
    assert totals.ended.total() == len(jobs)
    taken = Counter(totals.taken.group)
    assert set(taken) == {job.group for job in jobs}
    assert min(totals.taken.waited) >= 0
    assert list(totals.taken.at) == sorted(totals.taken.at)
    assert all(size >= 0 for sizes in totals.sizes for _, size in sizes.points)


@given(groups_of, jobs_of, st.integers(1, 5))
def test_slots_are_busy_as_long_as_anything_could_run(groups, some, executors):
    """With one queue and no limits the last job ends no later than by any order that keeps the slots busy."""
    plain = [GroupOf("one", group.name, group.weight) for group in groups]
    given_jobs = [SimulatedJob(at=0.0, group=job.group, seconds=job.seconds) for job in some]
    jobs = made(plain, given_jobs)
    totals = Simulation(jobs, [pool(poolSize=1, replicas=executors, queues=["one"])], Timing(overhead=0.0)).run()
    work, longest = sum(jobs.seconds), max(jobs.seconds)
    assert totals.end <= work / executors + longest + 1e-6  # Graham's bound for any list schedule
    assert sum(totals.slot_seconds) - work < 1e-6
