"""Why a job is not running, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from shlex import quote
from typing import Any

from joex.core.duration import format_duration

Detail = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a job is not running; sql/75_why.sql lists the reasons and their ``detail``."""

    reason: str
    detail: Detail

    @property
    def message(self) -> str:
        """The reason in a sentence, with the remedy."""
        return _SENTENCES[self.reason](self.detail)


def _finished(detail: Detail) -> str:
    error = f": {detail['error']}" if detail["error"] and detail["state"] == "failed" else ""
    return f"it is finished: {detail['state']} at {detail['at']}{error}"


def _held(what: str, alone_too: str) -> Callable[[Detail], str]:
    def say(detail: Detail) -> str:
        cancel = ", and a client has asked to cancel it" if detail["cancel_requested"] else ""
        alone = f", {alone_too}, because executors died while they held it" if detail["alone"] else ""
        return f"it {what} {detail['app_id']} since {detail['since']}{alone}{cancel}"

    return say


def _not_due(detail: Detail) -> str:
    rest = format_duration(timedelta(seconds=round(detail["seconds"])))
    what = f"its retry after failure {detail['failures']}" if detail["retry"] else "it"
    return f"{what} is not due before {detail['at']}, in {rest}"


def _no_executor(detail: Detail) -> str:
    draining = f" ({detail['draining']} drain)" if detail["draining"] else ""
    return f"no executor serves the queue {detail['queue']!r}{draining}"


def _behind(detail: Detail) -> str:
    parts = [
        (detail["retries"], "due retries"),
        (detail["same"], "of its own priority"),
        (detail["other"], "of the other priority, with which it takes turns"),
    ]
    said = ", ".join(f"{_count(number)} {what}" for number, what in parts if number)
    return f"jobs of its group come before it: {said}"


def _turn(detail: Detail) -> str:
    least = "at least " if detail["at_least"] else ""
    groups = "group is" if detail["places"] == 1 and not least else "groups are"
    return f"{least}{detail['places']} {groups} served before its own"


def _queue_paused(detail: Detail) -> str:
    by = f" by {detail['by']}" if detail["by"] is not None else ""  # hidden from a bound role, or a bound token
    queue = detail["queue"]
    return f"its queue {queue!r} is paused since {detail['since']}{by}: joex queues set {quote(queue)} --resume"


def _group_paused(detail: Detail) -> str:
    group, queue = detail["group"], detail["queue"]
    there = "" if queue == "default" else f" --queue {quote(queue)}"
    return f"its group {group!r} is paused: joex groups set {quote(group)}{there} --resume"


def _queue_held(detail: Detail) -> str:
    if detail["session"] is None:  # hidden from a bound role, or a bound token
        return f"a session of the database holds the lock of the queue {detail['queue']!r}, so takes are late"
    return (
        f"session {detail['session']} of the role {detail['role']} holds the lock of the queue {detail['queue']!r}, "
        f"so takes are late: SELECT pg_terminate_backend({detail['session']})"
    )


_MOST = 1000


def _count(number: int) -> str:
    return f"{_MOST} or more" if number >= _MOST else str(number)


def _executors(detail: Detail) -> str:
    return "1 executor of its queue" if detail["executors"] == 1 else f"{detail['executors']} executors of its queue"


_SENTENCES: dict[str, Callable[[Detail], str]] = {
    "not_found": lambda _: "there is no such job",
    "finished": _finished,
    "scheduled": _held("is about to start on", "as soon as nothing else runs there"),
    "running": _held("runs on", "with nothing beside it"),
    "not_due": _not_due,
    "no_executor": _no_executor,
    "unknown_task": lambda detail: (
        f"the task {detail['task']!r} is not known to the {_executors(detail)}: it will fail, and be retried"
    ),
    "slots_busy": lambda detail: f"all slots are busy: {detail['slots']}, of {_executors(detail)}",
    "queue_paused": _queue_paused,
    "group_paused": _group_paused,
    "group_at_limit": lambda detail: (
        f"its group {detail['group']!r} runs {detail['running']} of {detail['limit']} jobs it may"
    ),
    "queue_held": _queue_held,
    "behind": _behind,
    "turn": _turn,
    "next": lambda _: "nothing blocks it: the next take gets it",
}
