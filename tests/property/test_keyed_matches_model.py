"""Keyed jobs behave like a small model of them, under any sequence of calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joex import Client, JobExists, KeyedJobs
from joex.store import timeouts
from tests.support.soak import examples

TYPES = ("a", ("a", 1))
RETRIES = 1

# The steps. A number identifies a run, counted back from the latest; it may have ended, or lost its job, long ago.


@dataclass(frozen=True)
class Add:
    type: int
    id: int
    opts: dict[str, Any]


@dataclass(frozen=True)
class Say:
    """remove, cancel or resubmit, by a client that is not the worker."""

    what: str
    type: int
    id: int


@dataclass(frozen=True)
class Accept:
    type: int
    highest: int | None


@dataclass(frozen=True)
class Update:
    run: int
    opts: dict[str, Any]


@dataclass(frozen=True)
class Finish:
    run: int
    opts: dict[str, Any]
    error: str | None
    retry: bool


@dataclass(frozen=True)
class GiveBack:
    run: int


@dataclass(frozen=True)
class Lose:
    """These runs' workers die, and the activity monitor recovers their jobs."""

    runs: list[int]


@dataclass(frozen=True)
class MakeDue:
    """The time of all retries has come."""


types, ids, flags = st.integers(0, 1), st.integers(0, 3), st.sampled_from([False, False, True])
priorities, latest = st.sampled_from([0, 1, 2]), st.integers(0, 6)
data = st.builds(lambda value: {"n": value}, st.integers(0, 9))
worker_opts = st.fixed_dictionaries({}, optional={"priority": priorities, "data": data, "resubmit": flags})
added_opts = st.fixed_dictionaries(
    {}, optional={"priority": priorities, "data": data, "resubmit": flags, "cancel": flags}
)
adds = st.builds(Add, types, ids, added_opts)
accepts = st.builds(Accept, types, st.none() | priorities)
steps = st.one_of(
    adds,
    accepts,
    accepts,
    st.builds(Say, st.sampled_from(["remove", "cancel", "resubmit"]), types, ids),
    st.builds(Update, latest, worker_opts),
    st.builds(Finish, latest, worker_opts, st.none() | st.just("no luck"), st.booleans()),
    st.builds(GiveBack, latest),
    st.builds(Lose, st.lists(latest, max_size=3)),
    st.just(MakeDue()),
)
plans = st.tuples(st.lists(adds, max_size=6), st.lists(steps, max_size=40)).map(lambda parts: parts[0] + parts[1])


# The model.


@dataclass
class Job:
    """A job. ``place``: its place among those of its priority; ``run``: the number of the run that has it."""

    place: int
    state: str = "pending"
    priority: int = -1  # none: below all others
    data: dict[str, Any] = field(default_factory=dict)
    cancel: bool = False
    resubmit: bool = False
    remove: bool = False
    attempt: int = 0
    failures: int = 0
    is_retry: bool = False
    is_due: bool = True
    run: int | None = None

    def seen(self) -> tuple[Any, ...]:
        return self.state, self.priority, self.data, self.cancel, self.resubmit, self.attempt


class Model:
    """The behaviour in the documentation."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[int, int], Job] = {}
        self.runs: list[tuple[int, int]] = []
        self._places = 0

    def place(self) -> int:
        self._places += 1
        return self._places

    def add(self, step: Add) -> str:
        if (step.type, step.id) in self.jobs:
            return "exists"
        job = Job(self.place(), cancel=step.opts.get("cancel", False))
        job.state = "finished" if job.cancel else "pending"
        self.jobs[step.type, step.id] = job
        self._change(job, step.opts)
        return "ok"

    def say(self, step: Say) -> str:
        job = self.jobs.get((step.type, step.id))
        if job is None or (job.remove and step.what == "resubmit"):
            return "not_found"
        if step.what == "resubmit":
            self._resubmit(job)
        elif step.what == "cancel" and job.state != "finished":
            job.cancel, job.resubmit = True, False
            job.state = "running" if job.state == "running" else "finished"
        elif step.what == "remove" and job.state == "running":
            job.cancel, job.remove, job.resubmit = True, True, False
        elif step.what == "remove":
            del self.jobs[step.type, step.id]
        return "ok"

    def _resubmit(self, job: Job) -> None:
        if job.state == "running":
            job.resubmit = True
        elif job.state == "finished" or not job.is_due:
            job.is_retry = job.state == "pending"
            job.state, job.is_due, job.place, job.failures, job.cancel = "pending", True, self.place(), 0, False

    def accept(self, step: Accept) -> int | None:
        """The id of the accepted job, which has a run now."""
        line = [
            (not job.is_retry, job.priority, job.place, job_id)
            for (job_type, job_id), job in self.jobs.items()
            if job_type == step.type and job.state == "pending" and job.is_due
            if step.highest is None or job.priority <= step.highest
        ]
        if not line:
            return None
        *_, job_id = min(line)
        job = self.jobs[step.type, job_id]
        job.state, job.run, job.attempt = "running", len(self.runs), job.attempt + 1
        self.runs.append((step.type, job_id))
        return job_id

    def _held(self, run: int) -> Job | None:
        job = self.jobs.get(self.runs[run])
        return job if job is not None and job.state == "running" and job.run == run else None

    def update(self, run: int, opts: dict[str, Any]) -> str:
        job = self._held(run)
        if job is None:
            return "worker_conflict"
        if job.cancel:
            return "canceled"
        self._change(job, opts)
        return "ok"

    def finish(self, run: int, step: Finish) -> str:
        answer = self.update(run, step.opts)
        if answer == "ok":
            job = self._current(run)
            failed = step.error is not None
            self._end(run, "retry" if failed and step.retry and job.failures < RETRIES else "finished", failed=failed)
        elif answer == "canceled":
            self._end(run, "finished")
        return answer

    def give_back(self, run: int) -> str:
        answer = self.update(run, {})
        if answer != "worker_conflict":
            if answer == "ok":
                self._current(run).attempt -= 1
            self._end(run, "finished" if answer == "canceled" else "pending")
        return answer

    def lose(self, run: int) -> None:
        job = self._held(run)
        if job is not None:
            place, failures = job.place, job.failures
            self._end(run, "finished" if job.cancel else "pending")
            job.place, job.failures = place, failures  # a lost run ends no round

    def make_due(self) -> None:
        for job in self.jobs.values():
            job.is_due = True

    def _current(self, run: int) -> Job:
        return self.jobs[self.runs[run]]

    def _end(self, run: int, state: str, *, failed: bool = False) -> None:
        job = self._current(run)
        job.is_retry, job.is_due = state == "retry", state != "retry"
        job.failures += failed
        if job.resubmit:
            state, job.place, job.failures, job.is_retry, job.is_due = "pending", self.place(), 0, False, True
            job.cancel = job.resubmit = False
        job.state = "pending" if state == "retry" else state
        if job.remove:
            del self.jobs[self.runs[run]]

    @staticmethod
    def _change(job: Job, opts: dict[str, Any]) -> None:
        job.priority = opts.get("priority", job.priority)
        job.data = opts.get("data", job.data)
        job.resubmit = job.resubmit or opts.get("resubmit", False)


# Model and database, side by side.


class Sides:
    """The model, and the database."""

    def __init__(self, keyed: KeyedJobs, connection: asyncpg.Connection) -> None:
        self.model = Model()
        self.keyed = keyed
        self.connection = connection
        self.locks: list[UUID] = []

    def run(self, back: int) -> int | None:
        """The number of a run."""
        return len(self.locks) - 1 - back % len(self.locks) if self.locks else None

    async def step(self, step: Any) -> None:
        match step:
            case Add():
                await self._add(step)
            case Say():
                answer = await getattr(self.keyed, step.what)(TYPES[step.type], step.id)
                assert answer == self.model.say(step)
            case Accept():
                await self._accept(step)
            case Lose():
                await self._lose({run for back in step.runs if (run := self.run(back)) is not None})
            case MakeDue():
                await self._make_due()
            case Update() | Finish() | GiveBack() if (run := self.run(step.run)) is not None:
                await self._report(step, run)
        await self.compare()

    async def _add(self, step: Add) -> None:
        try:
            await self.keyed.add(TYPES[step.type], step.id, step.opts)
            answer = "ok"
        except JobExists:
            answer = "exists"
        assert answer == self.model.add(step)

    async def _accept(self, step: Accept) -> None:
        limit = () if step.highest is None else (step.highest,)
        job = await self.keyed.accept(TYPES[step.type], *limit, worker=f"worker {len(self.locks)}")
        assert (None if job is None else job.id) == self.model.accept(step)
        if job is not None:
            assert job.lock_id is not None
            self.locks.append(job.lock_id)

    async def _report(self, step: Update | Finish | GiveBack, run: int) -> None:
        job_type, job_id = self.model.runs[run]
        given = TYPES[job_type], job_id
        lock_id = self.locks[run]
        match step:
            case Update(_, opts):
                assert await self.keyed.update(*given, opts, lock_id) == self.model.update(run, opts)
            case Finish(_, opts, error, retry):
                answer = await self.keyed.finish(*given, opts, lock_id, error=error, retry=retry)
                assert answer == self.model.finish(run, step)
            case GiveBack():
                assert await self.keyed.give_back(*given, lock_id) == self.model.give_back(run)

    async def _lose(self, lost: set[int]) -> None:
        await self.connection.execute(
            "UPDATE joex_private.job SET overdue_at = clock_timestamp() WHERE executor_id IS NOT NULL "
            "AND lock_id = ANY ($1)",
            [self.locks[run] for run in lost],
        )
        await timeouts.recover_overdue(self.connection)
        for run in lost:
            self.model.lose(run)

    async def _make_due(self) -> None:
        await self.connection.execute("""
            UPDATE joex_private.job SET due_at = clock_timestamp() WHERE due_at IS NOT NULL;
            SELECT joex_private.promote(name) FROM joex_private.queue;
        """)
        self.model.make_due()

    async def compare(self) -> None:
        for number, job_type in enumerate(TYPES):
            expected = {job_id: job for (its, job_id), job in sorted(self.model.jobs.items()) if its == number}
            listed = await self.keyed.list_jobs(job_type)
            assert {job.id: _seen(job) for job in listed} == {job_id: job.seen() for job_id, job in expected.items()}
            states = [job.state for job in expected.values()]
            counted = {state: states.count(state) for state in ("pending", "running", "finished")}
            assert await self.keyed.count(job_type) == counted
            active = [job_id for job_id, job in expected.items() if job.state == "running"]
            assert await self.keyed.active(job_type) == active

    async def accept_all(self) -> None:
        """Accept all waiting jobs, which come in the order of the model."""
        await self.step(MakeDue())
        for number in range(len(TYPES)):
            for _ in range(4 + 1):
                await self.step(Accept(number, None))


def _seen(job: Any) -> tuple[Any, ...]:
    opts = job.opts
    return job.state, opts.get("priority", -1), job.data, "cancel" in opts, "resubmit" in opts, job.attempt


@pytest.fixture
async def database(client: Client, connection: asyncpg.Connection) -> Callable[[], Any]:
    """Makes both sides, empty."""
    await connection.execute("SET synchronous_commit = off")
    keyed = KeyedJobs(client.connections, retries=RETRIES, retry_delay=timedelta(hours=1), retry_jitter=0)

    async def make() -> Sides:
        await connection.execute("TRUNCATE joex_private.job, joex_private.job_log")
        return Sides(keyed, connection)

    return make


def settings_of(number: int) -> settings:
    # All examples may share the fixtures, because each begins with empty tables.
    return settings(max_examples=examples(number), suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings_of(150)
@given(plan=plans)
@pytest.mark.postgres(18)
async def test_whatever_is_done_to_them_jobs_are_what_the_model_says(database, plan):
    await play(await database(), plan)


@settings_of(20)
@given(plan=plans)
@pytest.mark.postgres(16)
async def test_on_the_oldest_supported_server_too(database, plan):
    await play(await database(), plan)


async def play(sides: Sides, plan: list[Any]) -> None:
    for step in plan:
        await sides.step(step)
    await sides.accept_all()
