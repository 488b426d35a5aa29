"""Durations as people write them."""

from datetime import timedelta

import pytest

from joex.core.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1m", 60),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 30 minutes ", 1800),
        ("1 minute", 60),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2 Hours", 7200),
        ("7d", 604_800),
        ("1w2d", 777_600),
        ("0s", 0),
        ("12", 12),
        ("0.5", 0.5),
    ],
)
def test_a_duration_is_numbers_with_units(text, seconds):
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("value", [30, 30.0, timedelta(seconds=30), "30", "30s"], ids=repr)
def test_numbers_are_seconds_and_a_timedelta_is_itself(value):
    assert parse_duration(value) == timedelta(seconds=30)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "1x",
        "1m 5",
        "5 1m",
        "m1",
        "1,5h",
        "1h-30m",
        "+1m",
        "1m!",
        "one minute",
        "0s" * 11,
        " " * 99 + "1s",
    ],
)
def test_what_is_not_a_duration_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="expected something like '30s', '1m', '1h30m' or '7d'"):
        parse_duration(text)


@pytest.mark.parametrize("value", [True, False, [], None])
def test_a_value_that_is_neither_text_nor_number_is_no_duration(value):
    with pytest.raises(ValueError, match="expected a duration such as '30s', or seconds; got"):
        parse_duration(value)


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, timedelta(seconds=-1), "3651d", "999999999999999d", 1e300, float("inf"), float("-inf"), float("nan")],
)
def test_a_duration_is_not_negative_and_not_longer_than_ten_years(value):
    with pytest.raises(ValueError, match="expected 0 to 3650 days"):
        parse_duration(value)


@pytest.mark.parametrize("text", ["1h30m", "250ms", "7d", "1d1h1m1s1ms", "0s", "59s"])
def test_a_duration_is_written_as_short_as_it_can_be_read(text):
    assert format_duration(parse_duration(text)) == text
