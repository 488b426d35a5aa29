"""The Events of objects, as data: changed conditions, and actions.

Not every change is an Event: a pool that grows and shrinks with its queue must not bury the Events that need attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joex_operator.api.names import replica_name
from joex_operator.decide.actions import Action, AskDrain, CreateReplica, DeleteReplica, Why
from joex_operator.decide.conditions import Condition
from joex_operator.decide.status import by_type

_SHOWN = ("Ready", "DatabaseReachable", "Suspended", "ScalingActive")
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Event:
    """An Event on an object: ``Normal``, or a ``Warning``."""

    type: str
    reason: str
    message: str


def events_of_change(new: Iterable[Condition], previous: Mapping[str, Any]) -> list[Event]:
    """An Event for each condition that has changed; for a new object, one for each bad condition.

    Args:
        new: the present conditions.
        previous: the stored status.
    """
    before = by_type(previous)
    return [
        Event("Warning" if condition.bad else "Normal", condition.reason, condition.message)
        for condition in new
        if condition.type in _SHOWN and _is_news(condition, before.get(condition.type))
    ]


def events_of_actions(pool: str, actions: Sequence[Action]) -> list[Event]:
    """An Event for the replicas added, drained or removed, for each reason."""
    replicas_by: dict[tuple[str, Why], list[str]] = {}
    for action in actions:
        match action:
            case CreateReplica(index, why):
                replicas_by.setdefault(("Added", why), []).append(replica_name(pool, index))
            case AskDrain(replica, _, why):
                replicas_by.setdefault(("Draining", why), []).append(replica)
            case DeleteReplica(replica, _, why):
                replicas_by.setdefault(("Removed", why), []).append(replica)
            case _:
                pass
    return [_event(reason, why, replicas) for (reason, why), replicas in replicas_by.items()]


def _is_news(condition: Condition, before: Mapping[str, Any] | None) -> bool:
    if before is None:
        return condition.bad
    return (before["status"], before["reason"]) != (condition.status, condition.reason)


def _event(reason: str, why: Why, replicas: list[str]) -> Event:
    more = f" and {len(replicas) - _MOST_NAMED} more" if len(replicas) > _MOST_NAMED else ""
    forced = why in (Why.DRAIN_TIMEOUT, Why.UNREACHABLE)
    return Event("Warning" if forced else "Normal", reason, f"{', '.join(replicas[:_MOST_NAMED])}{more}: {why}")
