"""The cost of events, with a subscriber and without one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.report import Figure
from benchmarks.side_by_side import Contender, Cost, by_turns, contenders
from benchmarks.support import say
from joex.store.database import connect

_WARM_UP = 10
_BATCHES = (1, 20)

# A database that sends no notification, as if there were no events.
_MUTE = """
    CREATE OR REPLACE FUNCTION joex_private.announce(p_event text, p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN END $$;
    CREATE OR REPLACE FUNCTION joex_private.is_heard(p_events boolean) RETURNS boolean
        LANGUAGE sql IMMUTABLE AS 'SELECT false';
"""


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Submit and finish in turns: without events, without a subscriber, and with a subscriber to all events."""
    rounds = 60 if quick else 300
    async with contenders(server_url, 3) as those:
        mute, _, heard = those
        await mute.connection.execute(_MUTE)
        listener = await connect(heard.url)
        notifications: list[object] = []
        channel = await listener.fetchval("SELECT joex.events_channel()")
        await listener.add_listener(channel, lambda *event: notifications.append(event[-1]))
        await heard.connection.execute("SELECT joex.subscribe('bench', '1 hour')")
        for one in those:
            await one.stock(1000, 10)
            await one.settle()
        figures = []
        for batch in _BATCHES:
            say(f"hearing: {rounds} times submit and finish of {batch}, by turns")
            found = await by_turns(those, rounds + _WARM_UP, partial(_turn, batch=batch))
            figures += _compare(batch, [costs[_WARM_UP:] for costs in found])
        await listener.close()
    if not notifications:
        raise RuntimeError("the benchmark's listener has heard nothing")
    return figures


async def _turn(one: Contender, batch: int) -> Cost:
    """The cost of submitting and finishing; the take between them is not measured."""
    submit = await one.submit([f"group {number % 10}" for number in range(batch)])
    rows, _ = await one.take(batch)
    finish = await one.finish(rows)
    return Cost(submit.wall + finish.wall, submit.cpu + finish.cpu)


def _compare(batch: int, found: Sequence[Sequence[Cost]]) -> list[Figure]:
    mute, unheard, heard = (statistics.median(cost.cpu or cost.wall for cost in costs) for costs in found)
    what = f"submit and finish of {batch}, the server's time"
    unheard_of, heard_of = unheard / mute, heard / unheard
    return [
        Figure(f"{what}: no subscriber, against no events", unheard_of, "x", "below 1.2", unheard_of < 1.2),
        Figure(f"{what}: one subscriber, against none", heard_of, "x"),
    ]
