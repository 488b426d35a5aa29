"""Repeat a query until Ctrl-C: the flag ``--watch``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from joex.cli.output import note, print_block, say
from joex.core.duration import parse_duration
from joex.errors import ConfigError, DatabaseUnavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from joex.client.client import Client
    from joex.store.statement import Connection

T = TypeVar("T")

_SHORTEST = 0.1


def read_seconds(text: str) -> float:
    """Return the seconds between two refreshes.

    Raises:
        ConfigError: it is not a duration, or too short.
    """
    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise ConfigError(f"stats --watch: {error}") from error
    if seconds < _SHORTEST:
        raise ConfigError(f"stats --watch: expected {_SHORTEST} seconds or more; got {text!r}")
    return seconds


async def repeated(client: Client, query: Callable[[Connection], Awaitable[T]], every: float) -> AsyncIterator[T]:
    """Yield the result of each query. If the database goes away meanwhile, print one line and keep trying."""
    is_first, is_lost = True, False
    while True:
        try:
            async with client.using() as connection:
                found = await query(connection)
        except DatabaseUnavailable as error:
            if is_first:
                raise
            if not is_lost:
                note(f"{error}; trying again")
            is_lost = True
        else:
            is_first = is_lost = False
            yield found
        await asyncio.sleep(every)


@contextmanager
def display() -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that shows a block: on a terminal in place of the last one, otherwise below it."""
    from rich.live import Live  # noqa: PLC0415 - slow to import, and --json does not need it

    if not sys.stdout.isatty():
        yield _print_below
        return
    with Live(auto_refresh=False) as live:
        yield lambda block: live.update(block, refresh=True)


def _print_below(block: RenderableType) -> None:
    print_block(block)
    say()
