"""The expression for one unit of a calendar event: ``*``, or a list of values and ranges, with steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LARGEST = 2**31 - 1  # systemd counts in 32 bits; larger numbers are out of every range
_MICROSECONDS = 1_000_000
_FIRST_OF_LAST_CENTURY = 70  # '70' is 1970, '69' is 2069
_SPAN = "({0})(?:\\.\\.({0}))?(?:/({0}))?"
_WHOLE, _FRACTIONAL = (re.compile(_SPAN.format(number)) for number in ("[0-9]+", r"[0-9]+(?:\.[0-9]+)?"))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time, and the values it takes.

    Attributes:
        name: Its name in errors.
        first: Its least value.
        last: Its largest value.
        width: How many digits a value is written with.
        scale: How many values there are in 1: seconds are counted in microseconds.
        from_end: Its values count back from the end of the month, and so do steps.
    """

    name: str
    first: int
    last: int
    width: int = 2
    scale: int = 1
    from_end: bool = False


YEAR = Unit("year", 1970, 2199, width=4)
MONTH = Unit("month", 1, 12)
DAY = Unit("day", 1, 31)
LAST_DAY = Unit("day from the end of the month", 1, 28, from_end=True)
HOUR = Unit("hour", 0, 23)
MINUTE = Unit("minute", 0, 59)
SECOND = Unit("second", 0, 60 * _MICROSECONDS - 1, scale=_MICROSECONDS)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One value, or values in steps.

    Attributes:
        start: The first value.
        stop: The last value; -1: there is none, steps lead on to the end of the unit.
        step: From one value to the next; 0: there is only one value.
    """

    start: int
    stop: int = -1
    step: int = 0


_EVERY_SECOND = Span(0, step=_MICROSECONDS)  # no list at all would be every microsecond


@dataclass(frozen=True, slots=True)
class Chain:
    """The wanted values of one unit, in the order in which systemd writes them; no span at all means every value."""

    unit: Unit
    spans: tuple[Span, ...]

    @classmethod
    def parse(cls, text: str, unit: Unit) -> Chain:
        """Parse the expression for a unit.

        >>> str(Chain.parse("5,1..4/2,1", MONTH)), str(Chain.parse("*", SECOND)), str(Chain.parse("7.5/10", SECOND))
        ('01,01..03/2,05', '*', '07.500000/10')

        Raises:
            ValueError: systemd would refuse it.
        """
        if text == "*":
            return cls(unit, (_EVERY_SECOND,) if unit is SECOND else ())
        spans = {_parse_span(part, unit) for part in text.split(",")}
        if _EVERY_SECOND in spans and not any(s.start % _MICROSECONDS or s.step % _MICROSECONDS for s in spans):
            spans = {_EVERY_SECOND}  # it includes the others
        return cls(unit, tuple(sorted(spans)))

    def at_least(self, value: int) -> int | None:
        """The least wanted value that is not less than ``value``; None: there is none. Steps lead to larger values."""
        hits = [hit for span in self.spans or (Span(self.unit.first, step=1),) if (hit := self._hit(span, value)) >= 0]
        return min(hits, default=None)

    def _hit(self, span: Span, value: int) -> int:
        if value <= span.start:
            return span.start
        if not span.step:
            return -1
        hit = value + (span.start - value) % span.step
        return hit if hit <= (self.unit.last if span.stop < 0 else span.stop) else -1

    def __str__(self) -> str:
        if self.spans in ((), (_EVERY_SECOND,)):
            return "*"
        return ",".join(_format_span(span, self.unit) for span in self.spans)


def _parse_span(text: str, unit: Unit) -> Span:
    match = (_FRACTIONAL if unit is SECOND else _WHOLE).fullmatch(text)
    if match is None:
        expected = "'*' alone, or a list of numbers, ranges 'a..b' and steps 'a/step'"
        raise ValueError(f"{unit.name}: expected {expected}; got {text!r}")
    start = _value(match[1], unit)
    stop = _value(match[2], unit) if match[2] else -1
    step = _number(match[3], unit) if match[3] else unit.scale if match[2] else 0
    if match[3] and not step:
        raise ValueError(f"{unit.name}: expected a step greater than 0; got {text!r}")
    shortest = step if unit is SECOND and not match[3] else 0  # whole seconds without a step: less than one is no range
    if match[2] and stop < start + shortest:
        raise ValueError(f"{unit.name}: expected a range from a smaller to a larger value; got {text!r}")
    if match[2]:
        stop -= (stop - start) % step  # the last value that is met
    span = Span(start) if stop == start else Span(start, stop, step)
    _check(span, unit, text)
    return span


def _check(span: Span, unit: Unit, text: str) -> None:
    if not unit.first <= span.start <= unit.last or span.stop > unit.last:
        raise ValueError(f"{unit.name}: expected {unit.first} to {_format(unit.last, unit)}; got {text!r}")
    second = span.start - span.step if unit.from_end else span.start + span.step
    if span.stop < 0 and not unit.first <= second <= unit.last:
        raise ValueError(f"{unit.name}: expected a step that leads to a second value; got {text!r}")


def _value(digits: str, unit: Unit) -> int:
    value = _number(digits, unit)
    if unit is YEAR and value < 100:  # noqa: PLR2004 - of two digits
        return value + (2000 if value < _FIRST_OF_LAST_CENTURY else 1900)
    return value


def _number(digits: str, unit: Unit) -> int:
    """A number in the values of a unit. The seventh digit after the point rounds the sixth; later ones don't count."""
    whole, _, fraction = digits.partition(".")
    value = int(whole) * unit.scale + (int(fraction[:6].ljust(6, "0")) + (fraction[6:7] >= "5") if fraction else 0)
    if value > _LARGEST:
        raise ValueError(f"{unit.name}: expected {unit.first} to {_format(unit.last, unit)}; got {digits!r}")
    return value


def _format_span(span: Span, unit: Unit) -> str:
    text = _format(span.start, unit, unit.width)
    if span.stop >= 0:
        text += f"..{_format(span.stop, unit, unit.width)}"
    if span.step and (span.stop < 0 or span.step != unit.scale):
        text += f"/{_format(span.step, unit)}"
    return text


def _format(value: int, unit: Unit, width: int = 1) -> str:
    whole, fraction = divmod(value, unit.scale)
    return f"{whole:0{width}}" + (f".{fraction:06}" if fraction else "")
