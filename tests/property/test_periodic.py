"""Decisions about periodic tasks under any clock, compared with a model that knows all times of a timer."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from joex.core.periodic import Decision, Schedule, decide

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
TIMERS = (
    "*:*:*",
    "*:0/7",
    "hourly",
    "Mon..Fri 02:30 Europe/Zurich",
    "0 2 * * *",
    "monthly",
    "2026-01-05",
    "2020-01-01",
)
PERIODS = {f"*:*:0/{seconds}": timedelta(seconds=seconds) for seconds in (1, 5, 15, 20, 30)}
"""Timers whose times a model can count, and the time between two of them."""

deadlines = st.none() | st.timedeltas(timedelta(0), 2 * DAY)
steps = st.timedeltas(-3 * DAY, 3 * DAY) | st.timedeltas(-2 * SECOND, 40 * SECOND)
"""How far the clock moves, forward or back, until the next decision."""
looks = st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=30)
"""Steps, and whether the owner has changed the task before, so that its next time is computed again."""


class Row:
    """A row, with the effects of joex_private.fire_periodic on it."""

    def __init__(self, timer: str, deadline: timedelta | None) -> None:
        self.timer, self.deadline = timer, deadline
        self.nextrun: datetime | None = None
        self.last_run: datetime | None = None
        self.fired: list[datetime] = []
        self.is_over = False

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.timer, "UTC", self.nextrun, self.last_run, self.deadline)

    def change(self) -> None:
        """Its owner changes it."""
        self.nextrun, self.is_over = None, False

    def look(self, now: datetime) -> Decision | None:
        """Decide, if the task is due, or has no next time."""
        if self.is_over or (self.nextrun is not None and self.nextrun > now):
            return None
        decision = decide(self.schedule, now)
        if decision.fire is not None:
            self.fired.append(decision.fire)
        self.last_run = decision.fire or self.nextrun or self.last_run
        self.nextrun, self.is_over = decision.next, decision.next is None
        return decision


@given(st.sampled_from((*TIMERS, *PERIODS)), deadlines, looks)
def test_whatever_the_clock_does_no_time_comes_twice_and_the_next_is_after_all_that_were(timer, deadline, given_looks):
    row, now = Row(timer, deadline), EPOCH
    for step, is_changed in given_looks:
        if is_changed:
            row.change()
        now += step
        before = row.schedule
        decision = row.look(now)
        if decision is None:
            continue
        assert decision.error is None
        if decision.fire is not None:
            assert decision.fire <= now
            assert before.last_run is None or decision.fire > before.last_run
            assert deadline is None or decision.fire >= now - deadline
        for passed in (now, before.last_run, decision.fire):
            assert decision.next is None or passed is None or decision.next > passed
        assert row.look(now) is None  # at most one is caught up
    assert row.fired == sorted(set(row.fired))


@given(st.sampled_from(sorted(PERIODS)), deadlines, st.integers(0, 10_000), st.timedeltas(timedelta(0), 3 * DAY))
def test_the_first_time_that_is_not_too_late_is_caught_up_and_the_next_is_the_first_to_come(
    timer, deadline, number, passed
):
    period = PERIODS[timer]
    nextrun = EPOCH + number * period
    now = nextrun + passed
    times = [nextrun + step * period for step in range(passed // period + 1)]
    assert times[-1] <= now < times[-1] + period
    catchable = [time for time in times if deadline is None or now - time <= deadline]
    decision = decide(Schedule(timer, "UTC", nextrun, None, deadline), now)
    assert decision == Decision(catchable[0] if catchable else None, times[-1] + period)


@given(st.sampled_from(sorted(PERIODS)), st.timedeltas(timedelta(0), DAY), st.none() | st.timedeltas(-DAY, DAY))
def test_what_has_no_next_time_fires_nothing_and_gets_the_first_after_now_and_after_its_last(timer, passed, last):
    period, now = PERIODS[timer], EPOCH + passed
    last_run = None if last is None else EPOCH + last
    latest = now if last_run is None else max(now, last_run)
    expected = EPOCH + ((latest - EPOCH) // period + 1) * period
    assert decide(Schedule(timer, "UTC", None, last_run, None), now) == Decision(None, expected)


@given(st.text(max_size=30), st.text(max_size=30), st.datetimes(timezones=st.just(UTC)), st.booleans())
def test_whatever_is_in_a_row_it_is_decided_or_told(timer, zone, now, is_due):
    decision = decide(Schedule(timer, zone, now if is_due else None, None, SECOND), now)
    assert (decision.error is None) or (decision.fire, decision.next) == (None, None)
