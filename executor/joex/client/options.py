"""Reads the options of clients and their waits."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from joex.core.duration import parse_duration
from joex.core.job import State
from joex.core.json_values import shown
from joex.errors import ConfigError

_STATES = frozenset(State)
FINAL = tuple(state for state in State if state.is_final)


def time_limit(timeout: timedelta | float | str | None) -> float | None:
    """The longest time of a statement in seconds; None: no limit.

    Raises:
        ConfigError: it is none.
    """
    if timeout is None:
        return None
    seconds = seconds_of("timeout", timeout)
    if not seconds:
        raise ConfigError("timeout: expected more than 0, or None for no limit; got 0")
    return seconds


def seconds_of(field: str, duration: timedelta | float | str) -> float:
    """A duration in seconds.

    Raises:
        ConfigError: it is none; the message names the field.
    """
    try:
        return parse_duration(duration).total_seconds()
    except ValueError as error:
        raise ConfigError(f"{field}: {error}") from error


def states_of(given: Collection[str]) -> frozenset[str]:
    """The states to wait for.

    Raises:
        ConfigError: there is none, or one that no job has.
    """
    try:
        states = frozenset([given] if isinstance(given, str) else given)
    except TypeError:
        states = frozenset()
    if not states or not states <= _STATES:
        raise ConfigError(f"states: expected some of {', '.join(State)}; got {shown(given)}")
    return states
