"""The memory of windows, compared with a plain one that forgets nothing."""

from hypothesis import given
from hypothesis import strategies as st

from joex_operator.decide.history import History, Mark, largest_lately
from joex_operator.decide.scaling import Demand, Load, Work, size, slots_for
from tests.unit.joex_operator.builders import autoscaled, pool

WINDOW = 60.0
SLACK = WINDOW / 30
START = 1_000_000.0

delays = st.floats(0.01, 30).map(lambda seconds: round(seconds, 2))


@given(st.lists(st.tuples(delays, st.integers(0, 9)), min_size=1, max_size=80))
def test_the_largest_size_lately_is_never_forgotten_early_nor_kept_for_long(steps):
    """The pool has 10 executors all the time, and needs fewer."""
    marks: tuple[Mark, ...] = ()
    now, wanted_at = START, [(START, 10)]
    for delay, wanted in steps:
        now = round(now + delay, 2)
        wanted_at.append((now, wanted))
        marks, largest, until = largest_lately(marks, size=10, wanted=wanted, now=now, window=WINDOW)
        # The present size counts as desired until the first step, not until START.
        seen = [(at, n) for at, n in [(wanted_at[1][0], 10), *wanted_at[1:]]]
        assert largest >= max(n for at, n in seen if at > now - WINDOW)
        assert largest <= max(n for at, n in seen if at >= now - WINDOW - SLACK)
        assert until > now
        assert len(marks) <= 33


loads = st.tuples(delays, st.integers(0, 60), st.booleans())


@given(st.lists(loads, min_size=1, max_size=60), st.integers(0, 4), st.integers(5, 20))
def test_a_pool_that_follows_its_size_stays_in_bounds_and_never_shrinks_below_a_recent_need(steps, least, most):
    asked_for = pool(scaling=autoscaled(least, most, int(WINDOW)))
    history, now, takers, needed = History(), START, least, []
    for delay, jobs, is_known in steps:
        now += delay
        demand = Demand(jobs) if is_known else None
        sizing = size(asked_for, Load(demand, takers), History.from_dict(history.to_dict()), now)
        need = min(max(-(-jobs // 2), least), most) if is_known else takers
        needed.append((now, need))
        assert least <= sizing.target <= most
        if sizing.target < takers:
            assert sizing.target >= max(n for at, n in needed if at > now - WINDOW)
        if is_known:
            assert sizing.target >= need
        history, takers = sizing.history, sizing.target


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 50), st.integers(1, 9))
def test_a_size_once_reached_is_kept(runnable, held, leaving, takers, pool_size):
    """No thrash: with the same work, the size that was answered is the answer again."""
    asked_for = pool(poolSize=pool_size, scaling=autoscaled(most=60))
    first = size(asked_for, Load(Demand(runnable), takers, held, leaving), History(), START)
    again = size(asked_for, Load(Demand(runnable), first.target, held, leaving), first.history, START + 1)
    assert again.target == first.target


shares = st.floats(0, 1)
works = st.builds(
    lambda runnable, share: Demand(runnable, work=Work(runnable * share, share)), st.integers(0, 300), shares
)


@given(works, st.integers(0, 100), st.integers(0, 60), st.floats(0, 60))
def test_with_a_target_slots_grow_with_the_backlog_between_what_runs_and_one_for_each_job(
    demand, running, more, more_work
):
    slots = slots_for(demand, running)
    assert running + min(demand.runnable, 1) * (running == 0) <= slots <= demand.runnable + running
    work = demand.work
    larger = Demand(demand.runnable + more, work=Work(work.runnable + more_work, work.running))
    assert slots_for(larger, running) >= slots
    assert slots_for(demand, running + more) >= slots


@given(works, st.integers(0, 100), st.integers(0, 100), st.integers(0, 50), st.integers(1, 9))
def test_with_a_target_too_a_size_once_reached_is_kept(demand, held, leaving, takers, pool_size):
    asked_for = pool(poolSize=pool_size, scaling=autoscaled(most=60, target={"wait": "30s"}))
    first = size(asked_for, Load(demand, takers, held, leaving), History(), START)
    again = size(asked_for, Load(demand, first.target, held, leaving), first.history, START + 1)
    assert again.target == first.target
