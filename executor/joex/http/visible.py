"""What a caller sees of jobs: without the scope ``payloads``, no arguments, results, errors, messages and logs.

These may be secrets of tenants, so for such a caller they are not even read. What remains says how a job is doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from joex.client.explain import Reason
from joex.http.caller import Caller
from joex.store.bounded import NOTHING
from joex.store.jobs import Job

MOST_BYTES = 4_000_000
"""Of payloads in one list: it then ends early."""
_OF_OTHERS = frozenset({"slots_busy", "next"})
"""The reasons why a job is not running that depend on the jobs of all queues (next: there are none before it)."""
_OF_OTHER_GROUPS = _OF_OTHERS | {"turn"}


@dataclass(frozen=True, slots=True)
class VisibleJob(Job):
    """A job. Without the scope payloads, args, progress_message, message, result and error are null."""

    args: dict[str, Any] | None  # type: ignore[assignment]  # a stored job has some


def most_bytes(caller: Caller) -> int:
    """How many bytes of payloads a list for this caller may have."""
    return MOST_BYTES if caller.sees_payloads else NOTHING


def visible(job: Job) -> VisibleJob:
    """A job, which was read with or without its payloads."""
    return VisibleJob(**{one.name: getattr(job, one.name) for one in fields(job)})


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A reason why a job is not running: a word, its details, and a sentence."""

    reason: str
    detail: dict[str, Any]
    message: str


def visible_reasons(caller: Caller, reasons: Sequence[Reason]) -> list[WhyNot]:
    """The reasons that a caller may know: those that tell of others' jobs become one that tells nothing of them."""
    bounds, shown = caller.bounds, []
    hidden = _OF_OTHER_GROUPS if bounds.groups is not None else _OF_OTHERS if bounds.are_set else frozenset()
    for one in reasons:
        detail = dict(one.detail)
        if not caller.sees_payloads and "error" in detail:
            detail["error"] = None
        if bounds.are_set and one.reason == "queue_paused":
            detail["by"] = None
        if bounds.are_set and one.reason == "queue_held":
            detail |= {"session": None, "role": None}
        if one.reason not in hidden:
            shown.append(WhyNot(one.reason, detail, Reason(one.reason, detail).message))
    return shown or [WhyNot("in_line", {}, "it waits for a slot, and for its turn")]
