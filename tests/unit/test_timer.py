"""Timers: parsing, normal forms, and due times."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import cronsim
import pytest

from joex.core.timers import Timer, parse_zone
from joex.core.timers.wall_clock import as_cron_at_times, as_cron_often, as_systemd
from tests.support.timers import differences, read_record

ZURICH = ZoneInfo("Europe/Zurich")
UTC_ZONE = ZoneInfo("UTC")
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


def at(text):
    """A time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def elapses(text, after, zone="UTC", count=3):
    """The next times, in UTC and in short."""
    timer, moment = Timer.parse(text), at(after)
    found: list[str | None] = []
    while len(found) < count and moment is not None:
        moment = timer.next(moment, ZoneInfo(zone))
        found.append(moment.replace(tzinfo=None).isoformat(" ").removesuffix(":00") if moment else None)
    return found


def test_calendar_events_are_what_systemd_says_they_are():
    """Accepted or refused, their normal forms and their next times: see scripts/judge_timers.py."""
    rounds = list(read_record())
    assert sum(len(told.answers) for told in rounds) > 5000
    assert [line for told in rounds for line in differences(told)] == []


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("minutely", "*-*-* *:*:00"),
        ("hourly", "*-*-* *:00:00"),
        ("daily", "*-*-* 00:00:00"),
        ("weekly", "Mon *-*-* 00:00:00"),
        ("Monthly", "*-*-01 00:00:00"),
        ("quarterly", "*-01,04,07,10-01 00:00:00"),
        ("semi-annually", "*-01,07-01 00:00:00"),
        ("YEARLY", "*-01-01 00:00:00"),
        ("daily Europe/Zurich", "*-*-* 00:00:00 Europe/Zurich"),
        ("sun,mon-WEDNESDAY 8:5", "Mon..Wed,Sun *-*-* 08:05:00"),
        ("Mon..Sun 8:05", "*-*-* 08:05:00"),
        ("Sat,Sun,", "Sat,Sun *-*-* 00:00:00"),
        ("12-24", "*-12-24 00:00:00"),
        ("3-1 12:00:30", "*-03-01 12:00:30"),
        ("69-1-1", "2069-01-01 00:00:00"),
        ("70..99/5-1-1", "1970..1995/5-01-01 00:00:00"),
        ("*-*~1", "*-*~01 00:00:00"),
        ("*-2~3..7/2 *:0/15", "*-02~03..07/2 *:00/15:00"),
        ("*-*~*", "*-*-* 00:00:00"),
        ("5,1,5,1..4/2:30..30", "*-*-* 01,01..03/2,05:30:00"),
        ("*:*:0.25/7.5", "*-*-* *:*:00.250000/7.500000"),
        ("*:*:5..9.9999995", "*-*-* *:*:05..10"),
        ("*:*:0/1,30", "*-*-* *:*:*"),
        ("@1735689600", "2025-01-01 00:00:00 UTC"),
        ("  Mon   8:00\tuTc ", "Mon *-*-* 08:00:00 UTC"),
    ],
)
def test_a_calendar_event_has_a_normal_form_which_is_its_own(text, normal):
    assert Timer.parse(text).normal == normal
    assert Timer.parse(normal) == Timer.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"expected something like 'Mon..Fri 08:30' or '30 8 \* \* 1-5'; got ''"),
        ("x" * 255, "expected at most 254 bytes; got 255"),
        ("fortnightly", "expected weekdays like 'Mon..Fri' or 'Sat,Sun', or a word like 'daily'; got 'fortnightly'"),
        ("Sun..Mon", "expected weekdays like .*; got 'Sun..Mon'"),
        ("Mon..Wed..Fri", "expected weekdays like"),
        ("Mon,,Tue", "expected weekdays like"),
        ("Mon 8:00 Europe/Zurch", "time zone: expected a name like 'Europe/Zurich' or 'UTC'; got 'Europe/Zurch'"),
        ("daily Europe", "time zone: expected a name like"),
        ("8", "expected a date like '.*', or a time like '08:30'; got '8'"),
        ("2024~2-1", "expected a date like"),
        ("1:2:3:4", "expected a time like '08:30' or '08:30:15'; got '1:2:3:4'"),
        ("8:00 12-24", "expected weekdays, a date, a time and a zone, or some .* five fields; got 2 fields"),
        ("* * * * * *", "expected weekdays, a date, .* got 6 fields"),
        ("0 8 * * 1-5 UTC", "expected weekdays, a date, .* got 6 fields"),
        ("*/5:00", "hour: expected '.' alone, or a list of numbers, ranges 'a..b' and steps 'a/step'; got './5'"),
        ("*:1.5", "minute: expected '.' alone, or a list"),
        ("24:00", "hour: expected 0 to 23; got '24'"),
        ("20/4:00", "hour: expected a step that leads to a second value; got '20/4'"),
        ("0/0:00", "hour: expected a step greater than 0; got '0/0'"),
        ("12..10:00", "hour: expected a range from a smaller to a larger value; got '12..10'"),
        ("*:*:1..1.5", "second: expected a range from a smaller to a larger value"),
        ("*:*:59.9999995", "second: expected 0 to 59.999999; got '59.9999995'"),
        ("*:*:1..3000/5000", "second: expected 0 to 59.999999; got '3000'"),
        ("*-13-01", "month: expected 1 to 12"),
        ("1969-1-1", "year: expected 1970 to 2199"),
        ("*-*-1/31", "day: expected a step that leads"),
        ("*-*~29", "day from the end of the month: expected 1 to 28; got '29'"),
        ("*-*~5/5", "day from the end of the month: expected a step that leads"),
        ("@x", "expected seconds since 1970 like '@1735689600'; got '@x'"),
        ("@7258118400", "year: expected 1970 to 2199"),
        ("60 * * * *", "minute: expected 0 to 59; got '60'"),
        ("0 8 * * mon-fry", "day-of-week: expected 0 to 7, 'SUN' to 'SAT', or .*; got 'MON-FRY'"),
        ("0 0 30 2 *", "day-of-month: expected 1 to 31 as the months have them, 'L' or 'LW'; got '30'"),
    ],
)
def test_what_is_no_timer_is_refused_with_the_part_that_is_wrong_and_what_belongs_there(text, message):
    with pytest.raises(ValueError, match=f"^timer.*: {message}"):
        Timer.parse(text)


def test_the_zone_of_the_expression_wins():
    given = Timer.parse("8:00 America/New_York")
    assert given.zone == ZoneInfo("America/New_York")
    assert given.next(NOON, ZURICH) == at("2025-06-02 12:00")
    assert Timer.parse("8:00").zone is None
    assert Timer.parse("8:00").next(NOON, ZURICH) == at("2025-06-02 06:00")


def test_a_moment_since_the_epoch_is_one_in_utc():
    assert Timer.parse("@1735689600 Europe/Zurich").zone == UTC_ZONE
    assert elapses("@1735689600", "2024-01-01", "Europe/Zurich") == ["2025-01-01 00:00", None]


@pytest.mark.parametrize(
    "name", ["", "Europe", "Europe/Zurch", "europe/zurich", "../x", "/etc/localtime", "zone.tab", "a\0b"]
)
def test_what_is_no_time_zone_is_refused(name):
    with pytest.raises(ValueError, match="time zone: expected a name like 'Europe/Zurich' or 'UTC'; got "):
        parse_zone(name)


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("*-02-29", "2096-03-01", ["2104-02-29 00:00", "2108-02-29 00:00", "2112-02-29 00:00"]),
        ("Mon *-02-29", "2025-01-01", ["2044-02-29 00:00", "2072-02-29 00:00", "2112-02-29 00:00"]),
        ("Fri *-*-13", "2025-01-01", ["2025-06-13 00:00", "2026-02-13 00:00", "2026-03-13 00:00"]),
        ("*-*-31", "2025-01-31", ["2025-03-31 00:00", "2025-05-31 00:00", "2025-07-31 00:00"]),
        ("*-2~1", "2023-01-01", ["2023-02-28 00:00", "2024-02-29 00:00", "2025-02-28 00:00"]),
        ("*-*~5/2 12:00", "2025-02-25", ["2025-02-26 12:00", "2025-02-28 12:00", "2025-03-27 12:00"]),
        ("2199-12-31 23:59:59", "2025-01-01", ["2199-12-31 23:59:59", None]),
        ("*-02-30", "2025-01-01", [None]),
        ("*-02,04,06,09,11-31", "2025-01-01", [None]),
        ("2001..2099/2-02-29", "2025-01-01", [None]),
        ("Tue 2025-12-24", "2025-01-01", [None]),
        ("yearly", "1900-01-01", ["1970-01-01 00:00", "1971-01-01 00:00", "1972-01-01 00:00"]),
        ("*:*:0/20", "2025-01-01 00:00:19.5", ["2025-01-01 00:00:20", "2025-01-01 00:00:40", "2025-01-01 00:01"]),
        (
            "*:*:59.999999",
            "2025-01-01",
            ["2025-01-01 00:00:59.999999", "2025-01-01 00:01:59.999999", "2025-01-01 00:02:59.999999"],
        ),
    ],
)
def test_a_calendar_event_elapses_when_it_says(text, after, expected):
    assert elapses(text, after) == expected


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        # the judge omits the first of January
        ("*-*-1/11", "2025-12-23 12:00", ["2026-01-01 00:00", "2026-01-12 00:00"]),
        # the judge continues at 01:00:00.7
        ("*:*:0/0.7", "2025-01-01 00:59:59.65", ["2025-01-01 01:00", "2025-01-01 01:00:00.700000"]),
        # the judge refuses it
        ("*-*~8,28", "2025-01-05", ["2025-01-24 00:00", "2025-02-01 00:00"]),
        # the judge gives up
        ("Mon *-02,04,06,09,11-31", "2025-01-01", [None]),
    ],
)
def test_where_the_judge_errs_a_calendar_event_elapses_when_it_says(text, after, expected):
    assert elapses(text, after, count=2) == expected


def test_fractions_of_seconds_stay_in_the_normal_form_where_the_judge_writes_a_star():
    assert Timer.parse("*:*:0/1,0.5").normal == "*-*-* *:*:00/1,00.500000"


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # Zurich, 30 March 2025: clocks skip 02:00 to 03:00, at 01:00 in UTC.
        ("02:30", "Europe/Zurich", "2025-03-29 00:00", ["2025-03-29 01:30", "2025-03-31 00:30", "2025-04-01 00:30"]),
        ("2..3:30", "Europe/Zurich", "2025-03-30 00:00", ["2025-03-30 01:30", "2025-03-31 00:30", "2025-03-31 01:30"]),
        ("*:0/30", "Europe/Zurich", "2025-03-30 00:00", ["2025-03-30 00:30", "2025-03-30 01:00", "2025-03-30 01:30"]),
        ("*:*:0/0.000001", "Europe/Zurich", "2025-03-30 00:59:59.999999", ["2025-03-30 01:00"]),
        # Zurich, 26 October 2025: 02:00 to 03:00 comes twice, at 00:00 and 01:00 in UTC.
        ("02:30", "Europe/Zurich", "2025-10-25 01:00", ["2025-10-26 00:30", "2025-10-27 01:30", "2025-10-28 01:30"]),
        ("*:0/30", "Europe/Zurich", "2025-10-26 00:00", ["2025-10-26 00:30", "2025-10-26 02:00", "2025-10-26 02:30"]),
        ("*:0/30", "Europe/Zurich", "2025-10-26 01:00", ["2025-10-26 01:30", "2025-10-26 02:00", "2025-10-26 02:30"]),
        ("02:30", "Europe/Zurich", "2025-10-26 01:00", ["2025-10-26 01:30", "2025-10-27 01:30", "2025-10-28 01:30"]),
        # Half an hour.
        (
            "2:*",
            "Australia/Lord_Howe",
            "2024-10-05 15:00",
            ["2024-10-05 15:30", "2024-10-05 15:31", "2024-10-05 15:32"],
        ),
        # The day that Samoa skipped.
        ("12:00", "Pacific/Apia", "2011-12-29 00:00", ["2011-12-29 22:00", "2011-12-30 22:00", "2011-12-31 22:00"]),
        # No summer time, and a gap that does not begin with the hour: the judge errs.
        ("2:45", "America/Caracas", "2007-12-08 12:00", ["2007-12-09 06:45", "2007-12-10 07:15", "2007-12-11 07:15"]),
        (
            "0..1:30",
            "America/St_Johns",
            "2010-03-14 00:00",
            ["2010-03-14 04:00", "2010-03-15 03:00", "2010-03-15 04:00"],
        ),
    ],
)
def test_a_calendar_event_leaves_out_the_missing_hour_and_counts_the_repeated_one_once(text, zone, after, expected):
    assert elapses(text, after, zone, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (" 30 8  * *\tmon-fri ", "30 8 * * MON-FRI"),
        ("*/5 0-12/3 1,15 jan-mar 0", "*/5 0-12/3 1,15 JAN-MAR 0"),
        ("0 0 l * 5l", "0 0 L * 5L"),
    ],
)
def test_five_fields_are_a_cron_line(text, normal):
    assert Timer.parse(text).normal == normal
    assert Timer.parse(text) == Timer.parse(normal)
    assert Timer.parse(text).zone is None


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("*/20 * * * *", "2025-01-01", ["2025-01-01 00:20", "2025-01-01 00:40", "2025-01-01 01:00"]),
        ("30 8 * * MON-FRI", "2025-01-03 09:00", ["2025-01-06 08:30", "2025-01-07 08:30", "2025-01-08 08:30"]),
        ("0 0 13 * FRI", "2025-06-01", ["2025-06-06 00:00", "2025-06-13 00:00", "2025-06-20 00:00"]),
        ("0 0 */2 * FRI", "2025-06-01", ["2025-06-13 00:00", "2025-06-27 00:00", "2025-07-11 00:00"]),
        ("0 0 L * *", "2025-01-31", ["2025-02-28 00:00", "2025-03-31 00:00", "2025-04-30 00:00"]),
        ("0 0 LW * *", "2025-05-01", ["2025-05-30 00:00", "2025-06-30 00:00", "2025-07-31 00:00"]),
        ("0 0 * * 5L", "2025-05-01", ["2025-05-30 00:00", "2025-06-27 00:00", "2025-07-25 00:00"]),
        ("0 0 * * MON#5", "2025-01-01", ["2025-03-31 00:00", "2025-06-30 00:00", "2025-09-29 00:00"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29 00:00", "2108-02-29 00:00", "2112-02-29 00:00"]),
        ("0 0 * 2 MON#5", "2025-01-01", ["2044-02-29 00:00", "2072-02-29 00:00", "2112-02-29 00:00"]),
        ("0 0 */20 * 1L", "2025-01-01", [None]),
        ("0 0 LW * */7", "2025-01-01", [None]),
    ],
)
def test_a_cron_line_is_due_when_it_says(text, after, expected):
    assert elapses(text, after) == expected


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # A fixed time that clocks skip comes at the end of the gap; one that they show twice comes once.
        ("30 2 * * *", "Europe/Zurich", "2025-03-29 12:00", ["2025-03-30 01:00", "2025-03-31 00:30"]),
        (
            "0,30 2,3 * * *",
            "Europe/Zurich",
            "2025-03-30 00:00",
            ["2025-03-30 01:00", "2025-03-30 01:30", "2025-03-31 00:00"],
        ),
        ("30 2 * * *", "Europe/Zurich", "2025-10-25 12:00", ["2025-10-26 00:30", "2025-10-27 01:30"]),
        ("30 2 * * *", "Europe/Zurich", "2025-10-26 01:00", ["2025-10-27 01:30"]),
        # With a star for minute or hour, it comes whenever clocks show it.
        ("*/30 2 * * *", "Europe/Zurich", "2025-03-29 01:30", ["2025-03-31 00:00", "2025-03-31 00:30"]),
        ("30 * * * *", "Europe/Zurich", "2025-03-30 00:00", ["2025-03-30 00:30", "2025-03-30 01:30"]),
        (
            "*/30 2 * * *",
            "Europe/Zurich",
            "2025-10-26 00:00",
            ["2025-10-26 00:30", "2025-10-26 01:00", "2025-10-26 01:30", "2025-10-27 01:00"],
        ),
        ("20 * * * *", "Europe/Zurich", "2025-10-26 00:45", ["2025-10-26 01:20", "2025-10-26 02:20"]),
        ("0 * * * *", "Europe/Zurich", "2025-10-26 00:45:00.5", ["2025-10-26 01:00", "2025-10-26 02:00"]),
        # Havana skips the first hour of the day; the second exists.
        ("* 1 * * *", "America/Havana", "2024-03-10 00:00", ["2024-03-10 05:00", "2024-03-10 05:01"]),
        # St. John's went back at one minute past midnight.
        ("2 */5 * * *", "America/St_Johns", "2007-11-04 03:07", ["2007-11-04 03:32", "2007-11-04 08:32"]),
        # Half an hour.
        ("*/15 2 * * *", "Australia/Lord_Howe", "2024-04-06 14:30", ["2024-04-06 15:30", "2024-04-06 15:45"]),
    ],
)
def test_a_cron_line_is_due_once_in_a_missing_and_a_repeated_hour_or_whenever_clocks_show_it(
    text, zone, after, expected
):
    assert elapses(text, after, zone, len(expected)) == expected


@pytest.mark.parametrize("text", ["*:0/10", "*/10 * * * *"])
def test_it_makes_no_difference_in_which_zone_a_time_is_given(text):
    timer = Timer.parse(text)
    for minute in range(0, 240, 7):
        after = at("2025-10-25 23:00") + timedelta(minutes=minute)
        assert timer.next(after, ZURICH) == timer.next(after.astimezone(ZURICH), ZURICH)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="after: expected a time with its time zone"):
        Timer.parse("daily").next(datetime(2025, 1, 1), UTC_ZONE)  # noqa: DTZ001 - the fault


@pytest.mark.parametrize("text", ["daily", "0 0 * * *"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_the_ends_of_time_are_no_obstacle(text, zone):
    timer, there = Timer.parse(text), ZoneInfo(zone)
    first = timer.next(datetime.min.replace(tzinfo=UTC), there)
    assert first is not None
    assert first.year in (1969, 1970)
    assert timer.next(datetime.min.replace(tzinfo=there), there) == first
    assert timer.next(datetime.max.replace(tzinfo=UTC), there) is None
    assert timer.next(datetime.max.replace(tzinfo=there), there) is None


# The schedulers read the timers of all tenants in their event loops, so one decision takes little work.


def last_sunday_of_march(wall):
    """Half past two on the first one later than a wall clock time."""
    days = (datetime(wall.year + more, 3, day, 2, 30) for more in (0, 1) for day in range(25, 32))  # noqa: DTZ001
    return next(day for day in days if day > wall and day.weekday() == 6)


def each_minute(wall):
    """The first minute later than a wall clock time."""
    return wall.replace(second=0, microsecond=0) + timedelta(minutes=1)


def never(_wall):
    """No wall clock time."""
    return


@pytest.mark.parametrize(
    ("rule", "later", "zone", "after", "found", "most"),
    [
        # All in gaps: it gives up.
        (as_systemd, last_sunday_of_march, "Europe/Zurich", "2025-06-01", None, 30),
        (as_cron_often, last_sunday_of_march, "Europe/Zurich", "2025-06-01", None, 30),
        # In the first pass: where the second one and all that follows have none, it has none either.
        (as_cron_often, never, "Europe/Zurich", "2025-10-26 00:15", None, 1),
        # At the beginning of the second pass of two hours, of which no time is wanted.
        (as_cron_at_times, each_minute, "Antarctica/Troll", "2025-10-26 01:00", "2025-10-26 03:00", 1),
    ],
)
def test_a_search_asks_for_few_times(rule, later, zone, after, found, most):  # noqa: PLR0917 - its table
    asked = []

    def counted(wall):
        asked.append(wall)
        return later(wall)

    assert rule(at(after), ZoneInfo(zone), counted) == (at(found) if found else None)
    assert len(asked) <= most


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("*/2 2 * 3 0L", "Europe/Zurich"),
        ("* 1 * 3 0L", "Europe/Dublin"),
        ("*/2 1 * 3 0L", "Antarctica/Troll"),
        ("Sun *-03~07/1 2:30:00", "Europe/Zurich"),
    ],
)
def test_a_timer_that_only_names_times_that_clocks_skip_is_never_due(text, zone):
    assert elapses(text, "2026-11-27", zone) == [None]


def test_the_fifty_years_of_a_cron_line_begin_once_whatever_gaps_there_are(monkeypatch):
    years = []

    class Noted(cronsim.CronSim):
        def __init__(self, line, start):
            years.append(start.year)
            super().__init__(line, start)

    timer = Timer.parse("*/2 2 L 3 */7")  # in a gap whenever 31 March is a Sunday
    monkeypatch.setattr(cronsim, "CronSim", Noted)
    assert timer.next(NOON, ZURICH) is None
    assert len(years) > 1
    assert max(years) <= NOON.year + 50


@pytest.mark.parametrize("text", ["0 0 */20 * 1L", "0 0 LW * */7"])
def test_a_cron_line_that_no_day_can_match_is_not_searched_for(text, monkeypatch):
    monkeypatch.setattr(cronsim.CronSim, "__next__", lambda _: pytest.fail("it searches"))
    assert elapses(text, "2025-01-01") == [None]
