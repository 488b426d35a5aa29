"""Timers, compared with a walk over every minute, and with the properties of any timer."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import assume, given
from hypothesis import strategies as st

from joex.core.timers import Timer

ZONES = (
    "UTC", "Europe/Zurich", "America/New_York", "America/Santiago", "America/Havana", "Australia/Lord_Howe",
    # The errors of systemd and cronsim: summer time that is not on the hour, of two hours, or in winter; a skipped day;
# changes of half an hour and of three hours that are no summer time.
    "America/St_Johns", "Antarctica/Troll", "Europe/Dublin", "Pacific/Apia", "America/Caracas", "Antarctica/Casey",
)  # fmt: skip
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
FIRST, LAST = datetime(1990, 1, 1, tzinfo=UTC), datetime(2024, 12, 1, tzinfo=UTC)


@st.composite
def lists(draw, first, last):
    """The text of a unit, and its values."""
    if draw(st.booleans()):
        return "*", set(range(first, last + 1))
    texts, values = [], set()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(first, last))
        stop = draw(st.none() | st.integers(start + 1, last)) if start < last else None
        step = draw(st.none() | st.integers(1, last - start)) if start < last else None
        texts.append(f"{start}" + (f"..{stop}" if stop else "") + (f"/{step}" if step else ""))
        values |= set(range(start, (stop or last) + 1, step or 1)) if stop or step else {start}
    return ",".join(texts), values


@st.composite
def weekdays(draw):
    if draw(st.booleans()):
        return "", set(range(7))
    first = draw(st.integers(0, 6))
    last = draw(st.integers(first, 6))
    return f"{DAYS[first]}..{DAYS[last]} ", set(range(first, last + 1))


@st.composite
def events(draw):
    """A calendar event of whole minutes, and whether it is a wall clock time."""
    names, wanted_weekdays = draw(weekdays())
    months, wanted_months = draw(lists(1, 12))
    is_from_end = draw(st.booleans())
    days, wanted_days = draw(lists(1, 28 if is_from_end else 31))
    assume(not is_from_end or ("/" not in days and days != "*"))  # steps go the other way there
    hours, wanted_hours = draw(lists(0, 23))
    minutes, wanted_minutes = draw(lists(0, 59))

    def means(wall):
        next_month = (wall.replace(day=1) + timedelta(days=31)).replace(day=1)
        return (
            wall.weekday() in wanted_weekdays
            and wall.month in wanted_months
            and ((next_month.date() - wall.date()).days if is_from_end else wall.day) in wanted_days
            and wall.hour in wanted_hours
            and wall.minute in wanted_minutes
        )

    return f"{names}*-{months}{'~' if is_from_end else '-'}{days} {hours}:{minutes}", means


@st.composite
def seconds(draw):
    """Seconds with one decimal digit, and their tenths."""
    texts, tenths = [], set()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, 589))
        stop = draw(st.none() | st.integers(start + 10, 599))
        step = draw(st.none() | st.integers(1, 599 - start))
        texts.append(f"{start / 10}" + (f"..{stop / 10}" if stop else "") + (f"/{step / 10}" if step else ""))
        tenths |= set(range(start, (stop or 599) + 1, step or 10)) if stop or step else {start}
    return ",".join(texts), tenths


@st.composite
def cron_lines(draw):
    """A cron line, whether it is a wall clock time, and whether it has a star for minute or hour."""
    fields = [draw(lists(*unit)) for unit in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))]
    texts, (minutes, hours, days, months, wanted_weekdays) = zip(*fields, strict=True)
    is_possible = texts[2] == "*" or min(days) < 30
    assume(is_possible)
    joined = all if "*" in (texts[2], texts[4]) else any

    def means(wall):
        is_weekday = not wanted_weekdays.isdisjoint({wall.isoweekday(), wall.isoweekday() % 7})
        is_day = joined((wall.day in days, is_weekday))
        return is_day and wall.month in months and wall.hour in hours and wall.minute in minutes

    return " ".join(texts).replace("..", "-"), means, "*" in texts[:2]


texts = (events() | cron_lines()).map(lambda made: made[0]) | seconds().map(lambda made: f"*:*:{made[0]}")
timers = texts.map(Timer.parse)


@cache
def changes(zone):
    """The days on which clocks change."""
    days = [FIRST + day * DAY for day in range((LAST - FIRST) // DAY)]
    return [one for one, two in pairwise(days) if one.astimezone(zone).utcoffset() != two.astimezone(zone).utcoffset()]


@st.composite
def times(draw):
    """A minute, more often than not near a change of clocks, and the zone where they change."""
    zone = ZoneInfo(draw(st.sampled_from(ZONES)))
    start = draw(st.sampled_from(changes(zone) or [FIRST, LAST]))
    return start + draw(st.integers(-36 * 60, 48 * 60)) * MINUTE, zone


def wall_clock(at, zone):
    return at.astimezone(zone).replace(tzinfo=None)


def minutes_from(start, days):
    return (start + passed * MINUTE for passed in range(1, days * DAY // MINUTE))


def agree(found, expected, end):
    """Whether a time is the one that the walk found; the walk has an end."""
    return found == expected if expected is not None and expected < end else found is None or found >= end


@given(events(), times())
def test_a_calendar_event_is_due_when_clocks_first_show_later_what_it_means(event, moment):
    text, means = event
    after, zone = moment
    since = wall_clock(after, zone)
    walls = ((at, wall_clock(at, zone)) for at in minutes_from(after, 3))
    expected = next((at for at, wall in walls if wall > since and means(wall)), None)
    assert agree(Timer.parse(text).next(after, zone), expected, after + 3 * DAY)


@given(seconds(), st.integers(0, 2_000_000))
def test_a_calendar_event_meets_fractions_of_seconds(made, microseconds):
    text, tenths = made
    after = FIRST + timedelta(microseconds=microseconds)
    walk = ((passed, FIRST + passed * timedelta(milliseconds=100)) for passed in range(1800))
    expected = next(at for passed, at in walk if at > after and passed % 600 in tenths)
    assert Timer.parse(f"*:*:{text}").next(after, ZoneInfo("UTC")) == expected


def first_pass(wall, zone):
    """The first instant of a wall clock time, or the end of the gap in which it lies."""
    while wall_clock(at := wall.replace(tzinfo=zone).astimezone(UTC), zone) != wall:
        wall += MINUTE
    return at


@given(cron_lines(), times())
def test_a_cron_line_is_due_as_debians_cron_has_it(line, moment):
    text, means, has_star = line
    after, zone = moment
    if has_star:
        expected = next((at for at in minutes_from(after, 2) if means(wall_clock(at, zone))), None)
    else:
        walls = minutes_from(wall_clock(after, zone) - DAY, 5)
        expected = min((at for wall in walls if means(wall) and (at := first_pass(wall, zone)) > after), default=None)
    assert agree(Timer.parse(text).next(after, zone), expected, after + 2 * DAY)


@given(timers, times(), st.timedeltas(timedelta(0), timedelta(minutes=2)))
def test_the_next_time_is_always_later(timer, moment, passed):
    after, zone = moment
    after += passed
    for _ in range(5):
        found = timer.next(after, zone)
        if found is None:
            break
        assert found.tzinfo is UTC
        assert found > after
        after = found


@given(timers, times(), st.timedeltas(timedelta(0), timedelta(days=400)))
def test_no_time_is_left_out_by_a_later_question_and_none_stays_none(timer, moment, passed):
    """In UTC: in a repeated hour, a later question may well have the earlier answer."""
    after, _ = moment
    found, later = (timer.next(at, ZoneInfo("UTC")) for at in (after, after + passed))
    if found is None:
        assert later is None
    elif found > after + passed:
        assert later == found
    else:
        assert later is None or later > found


@given(timers, times())
def test_the_normal_form_reads_as_the_same_timer(timer, moment):
    again = Timer.parse(timer.normal)
    assert again == timer
    assert again.normal == timer.normal
    assert again.next(*moment) == timer.next(*moment)


@given(st.text("*~-/.,:@0123456789 MonUTC#L", max_size=30) | st.text(max_size=20))
def test_any_text_is_a_timer_or_refused_in_one_line(text):
    said = "timer"
    try:
        Timer.parse(text).next(FIRST, ZoneInfo("UTC"))
    except ValueError as error:
        said = str(error)
    assert said.startswith("timer")
    assert len(said.splitlines()) == 1
