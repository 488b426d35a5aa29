"""The counting scheme: text to turns."""

import pytest

from joex.core.priority_turns import CountingScheme


def test_four_comma_one_gives_four_turns_to_high_and_then_one_to_low():
    scheme = CountingScheme.parse("4,1")
    assert [scheme.wants_high(position) for position in range(10)] == [True, True, True, True, False] * 2


def test_low_may_have_more_turns_than_high():
    scheme = CountingScheme(1, 3)
    assert [scheme.wants_high(position) for position in range(8)] == [True, False, False, False] * 2


@pytest.mark.parametrize(
    ("text", "high", "low"), [("4,1", 4, 1), (" 4 ,\t1 ", 4, 1), ("1,1000", 1, 1000), ("07,1", 7, 1)]
)
def test_a_scheme_is_two_whole_numbers_with_a_comma_between(text, high, low):
    assert CountingScheme.parse(text) == CountingScheme(high, low)


@pytest.mark.parametrize("text", ["", "4", "4,", ",1", "4;1", "4,1,1", "-4,1", "4.0,1", "four,one", "4 1", "1e2,1"])
def test_what_is_not_a_scheme_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"expected two numbers like '4,1'"):
        CountingScheme.parse(text)


@pytest.mark.parametrize("text", ["0,1", "4,0", "1001,1", "1,1001", "999999999,1"])
def test_neither_priority_can_be_starved_by_a_scheme(text):
    with pytest.raises(ValueError, match="must be 1 to 1000, so that no priority starves"):
        CountingScheme.parse(text)


def test_a_scheme_is_written_as_it_is_read():
    assert str(CountingScheme(4, 1)) == "4,1"
    assert CountingScheme.parse(str(CountingScheme(12, 7))) == CountingScheme(12, 7)


def test_the_cycle_is_over_after_all_turns():
    assert CountingScheme(4, 1).cycle == 5
    assert CountingScheme(4, 1).wants_high(5) is CountingScheme(4, 1).wants_high(0)
