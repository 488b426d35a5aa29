"""The Events of objects, as data: changed conditions, and actions.

Not every change is an Event: a pool that grows and shrinks with its queue must not bury the Events that need attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joex_operator.api.names import slot_name
from joex_operator.decide.actions import Action, AskDrain, CreateSlot, DeleteSlot, Why
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
    """An Event for the slots added, drained or removed, for each reason."""
    slots_by: dict[tuple[str, Why], list[str]] = {}
    for action in actions:
        match action:
            case CreateSlot(index, why):
                slots_by.setdefault(("Added", why), []).append(slot_name(pool, index))
            case AskDrain(slot, _, why):
                slots_by.setdefault(("Draining", why), []).append(slot)
            case DeleteSlot(slot, _, why):
                slots_by.setdefault(("Removed", why), []).append(slot)
            case _:
                pass
    return [_event(reason, why, slots) for (reason, why), slots in slots_by.items()]


def _is_news(condition: Condition, before: Mapping[str, Any] | None) -> bool:
    if before is None:
        return condition.bad
    return (before["status"], before["reason"]) != (condition.status, condition.reason)


def _event(reason: str, why: Why, slots: list[str]) -> Event:
    more = f" and {len(slots) - _MOST_NAMED} more" if len(slots) > _MOST_NAMED else ""
    forced = why in (Why.DRAIN_TIMEOUT, Why.UNREACHABLE)
    return Event("Warning" if forced else "Normal", reason, f"{', '.join(slots[:_MOST_NAMED])}{more}: {why}")
