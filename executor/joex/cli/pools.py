"""``joex pools``: the pools, and the steps of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.database import with_connection
from joex.cli.options import AsJson, DatabaseUrl, Limit, read_since
from joex.cli.output import note, print_json, print_table, say
from joex.errors import ConfigError, JoexError
from joex.store.pools import PoolStep, list_pools, list_steps

if TYPE_CHECKING:
    from joex.store.statement import Connection

_OF_STEPS = ("AT", "BEFORE", "TARGET", "READY", "DRAINING", "MODE", "WHY")
_OF_POOLS = ("POOL", *_OF_STEPS)
_NUMBERS = ("BEFORE", "TARGET", "READY", "DRAINING")


def pools(
    *,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="POOL", help="The steps of this pool: NAME, or NAMESPACE/NAME.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only steps since a time, or in the last duration ('1h'). With --steps."),
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List the pools of the operator and of joex up with their last step, or the steps of one, the latest first.

    A step is a change of a pool's size, or of its reason. Joex keeps the steps of a day. BEFORE is how many executors
    took jobs or were starting, TARGET how many there should be, and WHY says why.
    """
    if steps is None:
        if since is not None:
            raise ConfigError("pools: --since goes with --steps")
        found = with_connection(database_url, lambda connection: list_pools(connection, most=limit + 1))
        _show(found, limit, "no pool had a step within a day", as_json=as_json, names=True)
        return
    begin = None if since is None else read_since(since, datetime.now(UTC), "a duration, such as 1h")

    async def work(connection: Connection) -> list[PoolStep]:
        home, name = await _pool(connection, steps)
        return await list_steps(connection, home, name, begin, most=limit + 1)

    found = with_connection(database_url, work)
    _show(found, limit, f"the pool {steps} had no step since then", as_json=as_json, names=False)


async def _pool(connection: Connection, given: str) -> tuple[str, str]:
    """The home and the name of a pool. ``given``: its name, alone or after its namespace or its home.

    Raises:
        JoexError: there is none, or there are several.
    """
    where, _, name = given.rpartition("/")
    found = [one for one in await list_pools(connection, name) if where in ("", one.namespace, one.home)]
    if not found:
        raise JoexError(f"no pool {given!r} had a step within a day; 'joex pools' lists them")
    if len(found) > 1:
        names = ", ".join(f"{one.home}/{one.pool}" for one in found)
        raise JoexError(f"--steps: several pools have this name: give one of {names}")
    return found[0].home, found[0].pool


def _show(found: list[PoolStep], limit: int, nothing: str, *, as_json: bool, names: bool) -> None:
    shown = found[:limit]
    if as_json:
        print_json(shown)
    elif not shown:
        say(nothing)
    elif names:
        print_table(_OF_POOLS, [(f"{one.namespace}/{one.pool}", *_row(one)) for one in shown], numbers=_NUMBERS)
    else:
        print_table(_OF_STEPS, map(_row, shown), numbers=_NUMBERS)
    if len(found) > limit:
        note("there are more: raise --limit")


def _row(one: PoolStep) -> tuple[object, ...]:
    return (one.at, one.before, one.target, one.ready, one.draining, one.mode, one.why)
