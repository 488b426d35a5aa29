"""What kopf calls in its thread: for each event of a watch, for a new session, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import kopf

from joex_operator.api.names import GROUP, POOL_LABEL, VERSION
from joex_operator.cluster.watch_session import WatchSession

_CANCEL_EVERY = 1.0
"""Seconds."""


def handlers(session: WatchSession, hand_over: Callable[[str, kopf.RawEvent], None]) -> kopf.OperatorRegistry:
    """The handlers. Call this in the task that runs kopf.

    Args:
        session: creates sessions.
        hand_over: takes the plural of a kind, and an event of it.
    """
    registry = kopf.OperatorRegistry()
    own, loop = asyncio.current_task(), asyncio.get_running_loop()

    def cancel_rest() -> None:
        for task in asyncio.all_tasks(loop):
            if task is not own:
                task.cancel()
        loop.call_later(_CANCEL_EVERY, cancel_rest)

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        # kopf has cancelled each of its tasks once, and waits for them without an end. A watch that waits for its
        # answer loses the cancellation, and goes on: so kopf would never tell that it has failed.
        loop.call_later(_CANCEL_EVERY, cancel_rest)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return await session.login()

    def watch(group: str, version: str, plural: str, **selector: Any) -> None:
        @kopf.on.event(group, version, plural, id=plural, registry=registry, **selector)
        async def on_event(event: kopf.RawEvent, **_: Any) -> None:
            hand_over(plural, taken(event))

    watch(GROUP, VERSION, "joexpools")
    watch(GROUP, VERSION, "periodictasks")
    watch("apps", "v1", "deployments", labels={POOL_LABEL: kopf.PRESENT})
    watch("", "v1", "pods", labels={POOL_LABEL: kopf.PRESENT})
    return registry


def taken(event: kopf.RawEvent) -> kopf.RawEvent:
    """The event, of whose object kopf keeps the name alone.

    kopf's own objects for an event refer to each other, and live until a pass of the garbage collector. That counts
    objects, whatever their size: two pools of a megabyte that changed all the time took half a gigabyte.
    """
    kept: dict[str, Any] = event["object"]  # type: ignore[assignment]
    body = kept.copy()
    kept.clear()
    kept["metadata"] = {name: body["metadata"].get(name) for name in ("name", "namespace", "uid", "resourceVersion")}
    return {**event, "object": body}  # type: ignore[typeddict-item]
