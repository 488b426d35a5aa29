"""The pages of queues: the overview, and fairness."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, status
from starlette.responses import Response

from joex.console.calls import Text, TheConsole, TheForm, not_found, to, way_back
from joex.console.pieces import in_order
from joex.console.snapshot import Snapshot
from joex.console.standings import Group, Queue, Standing
from joex.console.views import params, plural
from joex.core.access import Scope
from joex.http.caller import TheCaller, needs
from joex.http.dependencies import TheTurn

routes = APIRouter()

Page = Annotated[int, Query(ge=1, le=1_000_000)]

PAGE = 50
"""Groups, or queues."""
MOST_BESIDE_OTHERS = 10_000
"""Groups of a queue that are ordered beside those of others; with more, users take turns."""
_MOST_ALERTS = 20
_MINUTES = 60
_LONG_WAIT = 300.0
_MOST_FAILED = 0.25
_LEAST_FAILED = 5
_HALF = 0.5
_ORDERS: dict[str, Callable[[Group], Any]] = {
    "turn": lambda one: (one.turn is None, one.turn),
    "wait": lambda one: -(one.stats.oldest_runnable_seconds or 0),
    "jobs": lambda one: -one.stats.waiting,
    "slots": lambda one: -one.held,
    "name": lambda one: one.stats.group,
}


@dataclass(frozen=True, slots=True)
class Minute:
    """How many jobs of a queue ended in a minute."""

    at: datetime
    success: int
    failed: int
    cancelled: int

    @property
    def all(self) -> int:
        """All of them."""
        return self.success + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class Alert:
    """What an operator should look at: the name of an alert of the metrics page, or None, and a sentence."""

    queue: str
    text: str
    alert: str | None = None


@routes.get("/", dependencies=[needs(Scope.VIEW)])
async def overview(
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    queue: Text = "",
    page: Page = 1,
) -> Response:
    """The queues at one look, and what needs attention in any of them."""
    snapshot, why_old = await console.snapshot(caller)
    alerts = await snapshot.once(_all_alerts)
    matching = [one for one in snapshot.queues.values() if queue.lower() in one.name.lower()]
    begin = (page - 1) * PAGE
    part = matching[begin : begin + PAGE]
    minutes = {one.name: _minutes(snapshot, one.name) for one in part}
    return console.views.page(
        request, "overview.html", trouble=why_old, snapshot=snapshot, queues=part, matching=len(matching),
        begin=begin, page=page, page_size=PAGE, queue=queue, minutes=minutes,
        back=way_back(params({"queue": queue, "page": page})),
        alerts=alerts[:_MOST_ALERTS], more_alerts=len(alerts[_MOST_ALERTS:]),
    )  # fmt: skip


@routes.post("/queue", dependencies=[needs(Scope.OPERATE)])
async def set_queue(  # noqa: PLR0917 - the form, and the page that it is on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    form: TheForm,
    turn: TheTurn,
    queue: Text = "",
    page: Page = 1,
) -> Response:
    """Pause a queue, or resume it, and lead back to the same search and page of the overview."""
    named, paused = form.get("queue", ""), {"yes": True, "no": False}.get(form.get("paused", ""))
    if not named or paused is None:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "queue, paused: expected a queue, and yes or no.")
    caller.check_all_groups("a pause")
    if not caller.bounds.holds(named, ""):
        not_found(f"There is no queue {named!r}.")
    async with turn as connection:
        await console.client.queues.set(named, paused=paused, connection=connection)
    console.snapshots.expire(caller.key)
    return to(request, "/", queue=queue, page=page)


@routes.get("/fairness", dependencies=[needs(Scope.VIEW)])
async def fairness(  # noqa: PLR0917 - the fields of the form
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    queue: Text = "",
    order: Annotated[str, Query()] = "turn",
    group: Text = "",
    page: Page = 1,
) -> Response:
    """The groups of a queue: who holds slots, who waits, and whose turn is next."""
    snapshot, why_old = await console.snapshot(caller)
    names = list(snapshot.queues)
    if queue and queue not in names:
        not_found(f"No job and no executor is in the queue {queue!r} now.")
    shown = snapshot.queues.get(queue or await snapshot.once(_busiest))
    order = order if order in _ORDERS else "turn"
    begin = (page - 1) * PAGE
    is_large = shown is not None and len(shown.groups) > MOST_BESIDE_OTHERS
    async with console.searches.turn(request) if is_large else nullcontext():
        part, matching = await asyncio.to_thread(_part, shown, group, order, begin)
    scale = max([1.0, *(one.level for one in part), *((one.share or 0) / one.stats.weight for one in part)])
    return console.views.page(
        request, "fairness.html", trouble=why_old, snapshot=snapshot, queue=shown, names=names,
        groups=part, matching=matching, begin=begin, page=page, order=order, group=group, scale=scale,
        Standing=Standing, page_size=PAGE,
    )  # fmt: skip


def _part(shown: Queue | None, group: str, order: str, begin: int) -> tuple[list[Group], int]:
    """A page of the groups of a queue with this text in their names, in order; and how many these are."""
    found = [] if shown is None else [one for one in shown.groups if group.lower() in one.stats.group.lower()]
    return list(islice(in_order(found, _ORDERS[order]), begin, begin + PAGE)), len(found)


def _busiest(snapshot: Snapshot) -> str:
    return max(snapshot.queues, key=lambda name: sum(snapshot.queues[name].sums.values()), default="")


def _minutes(snapshot: Snapshot, queue: str) -> list[Minute]:
    """The last hour, minute by minute; the last one is not over."""
    last = snapshot.at.replace(second=0, microsecond=0)
    times = [last - timedelta(minutes=back) for back in reversed(range(_MINUTES))]
    ended = snapshot.ended
    return [
        Minute(at, ended[queue, "success", at], ended[queue, "failed", at], ended[queue, "cancelled", at])
        for at in times
    ]


def _recent(snapshot: Snapshot) -> Counter[tuple[str, str]]:
    """The jobs that ended within the last half hour, by queue and state."""
    since = snapshot.at.replace(second=0, microsecond=0) - timedelta(minutes=_MINUTES // 2)
    recent: Counter[tuple[str, str]] = Counter()
    for (queue, state, at), number in snapshot.ended.items():
        if at > since:
            recent[queue, state] += number
    return recent


def _all_alerts(snapshot: Snapshot) -> list[Alert]:
    """The alerts of all queues, those of the metrics page first."""
    recent = _recent(snapshot)
    alerts = [alert for one in snapshot.queues.values() for alert in _alerts(one, recent)]
    return sorted(alerts, key=lambda one: one.alert is None)


def _alerts(queue: Queue, recent: Counter[tuple[str, str]]) -> list[Alert]:
    """What the alerts of the metrics page would say, from what is known here."""
    found = []
    if unserved := queue.standings[Standing.UNSERVED]:
        found.append(
            Alert(
                queue.name,
                f"No executor serves this queue: jobs of {plural(unserved, 'group')} wait.",
                "JoexQueueUnserved",
            )
        )
    elif queue.oldest is not None and queue.oldest > _LONG_WAIT:
        found.append(Alert(queue.name, "A job has waited for more than five minutes.", "JoexQueueStuck"))
    behind = [one for one in queue.groups if one.standing is Standing.BEHIND]
    waits = [one.stats.oldest_runnable_seconds or 0 for one in behind]
    if waits and max(waits) > _LONG_WAIT and max(one.held for one in queue.groups) > queue.held * _HALF:
        found.append(
            Alert(
                queue.name,
                f"One group holds most slots, and {plural(len(behind), 'other')} fell behind.",
                "JoexGroupsBehind",
            )
        )
    failed = recent[queue.name, "failed"]
    ended = failed + recent[queue.name, "success"]
    if failed >= _LEAST_FAILED and failed > ended * _MOST_FAILED:
        found.append(
            Alert(queue.name, f"{failed:,} of {ended:,} jobs have failed within half an hour.", "JoexJobsFailing")
        )
    if queue.paused is not None:
        found.append(Alert(queue.name, f"The queue is paused: {plural(queue.sums['waiting'], 'job')} in line."))
    elif paused := [one for one in queue.groups if one.standing is Standing.PAUSED and one.stats.waiting]:
        found.append(Alert(queue.name, f"Jobs wait in {plural(len(paused), 'paused group')}."))
    return found
