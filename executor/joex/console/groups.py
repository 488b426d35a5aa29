"""The page of a group with its settings, and what others would change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from fastapi import APIRouter, HTTPException, Request, status
from starlette.responses import Response

from joex.client.explain import Reason
from joex.console.calls import Console, Done, Text, TheConsole, TheForm, not_found, to
from joex.console.standings import Group, Queue, Standing
from joex.core.access import Scope
from joex.http.caller import Caller, TheCaller, needs
from joex.http.dependencies import TheTurn
from joex.http.visible import WhyNot, visible_reasons
from joex.store import jobs
from joex.store.bounded import NOTHING
from joex.store.jobs import Job
from joex.store.listing import Filter, list_jobs

routes = APIRouter()

_HIGHEST_WEIGHT = 100
_HIGHEST_LIMIT = 2**31 - 1
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Wish:
    """The settings that a form asks for; None: as they are."""

    weight: int | None = None
    paused: bool | None = None
    max_running: int | None = None

    @property
    def is_any(self) -> bool:
        """Whether it asks for a change."""
        return any(each is not None for each in (self.weight, self.paused, self.max_running))


@routes.get("/group", dependencies=[needs(Scope.VIEW)])
async def show_group(  # noqa: PLR0917 - what they depend on
    console: TheConsole,
    caller: TheCaller,
    request: Request,
    queue: Text,
    group: Text,
    done: Done,
) -> Response:
    """A group of a queue: why it waits, and what other settings would change."""
    snapshot, why_old = await console.snapshot(caller)
    if not caller.bounds.holds(queue, group):
        not_found(f"There is no group {group!r} in the queue {queue!r}.")
    of_queue = snapshot.queues.get(queue)
    found = None if of_queue is None else of_queue.group(group)
    if of_queue is None or found is None:
        not_found(f"The group {group!r} has no unfinished jobs in the queue {queue!r}, and no settings.")
    wish = _wish(request.query_params, found)
    async with console.searches.turn(request):  # to find that no job waits, it passes over all due later in the queue
        next_job, reasons = await _next_of(console, caller, queue, group)
        changes = await asyncio.to_thread(_changes, of_queue, found, wish)  # (of 100,000 groups: half a second)
    return console.views.page(
        request, "group.html", trouble=why_old, queue=of_queue, group=found, next_job=next_job,
        reasons=reasons, wish=wish, changes=changes, done=done,
        at=snapshot.at, Standing=Standing, may_weigh=caller.groups is None,
    )  # fmt: skip


@routes.post("/group", dependencies=[needs(Scope.OPERATE)])
async def set_group(console: TheConsole, caller: TheCaller, request: Request, form: TheForm, turn: TheTurn) -> Response:
    """Change the settings of a group."""
    queue, group = form.get("queue", ""), form.get("group", "")
    if not queue or not group:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "queue, group: expected both.")
    if not caller.bounds.holds(queue, group):
        not_found(f"There is no group {group!r} in the queue {queue!r}.")
    snapshot, why_old = await console.snapshot(caller, with_changes=False)
    of_queue = snapshot.queues.get(queue)
    # (An old one does not tell what is so already.)
    wish = _wish(form, None if of_queue is None or why_old is not None else of_queue.group(group))
    if wish.weight is not None or wish.max_running is not None:
        caller.check_all_groups("a weight or a limit")
    if wish.is_any:
        async with turn as connection:
            await console.client.groups.set(
                group, queue=queue, weight=wish.weight, paused=wish.paused, max_running=wish.max_running,
                connection=connection,
            )  # fmt: skip
        console.snapshots.expire(caller.key)
    return to(request, "/group", queue=queue, group=group, done="set" if wish.is_any else "same")


def _wish(given: Mapping[str, str], now: Group | None) -> Wish:
    """What a form asks for, but for what is so already.

    Raises:
        HTTPException: 400; the message names the field.
    """
    weight, most = _whole(given, "weight", 1, _HIGHEST_WEIGHT), _whole(given, "max_running", 0, _HIGHEST_LIMIT)
    if given.get("max_running") == "":
        most = -1
    paused = {"yes": True, "no": False}.get(given.get("paused", ""))
    if now is None:
        return Wish(weight, paused, most)
    known = now.stats.max_running
    return Wish(
        None if weight == now.stats.weight else weight,
        None if paused == now.stats.paused else paused,
        None if most == (-1 if known is None else known) else most,
    )


def _whole(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = given.get(name, "").strip()
    if not text:
        return None
    if not (text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS and least <= int(text) <= most):
        raise HTTPException(status.HTTP_400_BAD_REQUEST, f"{name}: expected a whole number, {least} to {most}.")
    return int(text)


async def _next_of(console: Console, caller: Caller, queue: str, group: str) -> tuple[Job | None, Sequence[WhyNot]]:
    """The job of the group that is next in its line, and why it waits."""
    wanted = Filter(queue, group, states=["waiting", "stuck"], bounds=caller.bounds)
    async with console.pace.reading(caller.tenant) as connection:
        found = (await list_jobs(connection, wanted, most=1, most_bytes=NOTHING)).jobs
        reasons = await jobs.why(connection, found[0].id) if found else []
    return found[0] if found else None, visible_reasons(caller, [Reason(*one) for one in reasons])


def _changes(queue: Queue, group: Group, wish: Wish) -> list[tuple[str, float, float]]:
    """The fair shares now, and with the wish: of this group, and of the others that it changes the most."""
    if not wish.is_any or queue.slots is None:
        return []
    known = group.stats
    most = known.max_running if wish.max_running is None else wish.max_running
    after = queue.with_settings(
        group,
        known.weight if wish.weight is None else wish.weight,
        None if most == -1 else most,
        paused=known.paused if wish.paused is None else wish.paused,
    )
    all_of_it = ((one.stats.group, one.share or 0.0, share) for one, share in zip(queue.groups, after, strict=True))
    return nsmallest(6, all_of_it, key=lambda one: (one[0] != known.group, -abs(one[2] - one[1]), one[0]))
