"""Rollouts: how executors with a changed template replace the outdated ones, as in a Deployment.

Replacements start beyond the size of the pool, at most maxSurge of them at a time. No outdated executor that takes jobs
drains before one with the new template does, and has been ready for minReadySeconds (where maxSurge is 0, there is no
room for that). Then as many drain as
the pool can do without. An executor that drains takes no jobs, and so no part of the size.
"""

from __future__ import annotations

from collections.abc import Iterable

from joex_operator.api.spec import Rollout
from joex_operator.decide.replicas import Phase, Replica, asked_for, first_to_leave, ready

_STARTING = (Phase.PENDING, Phase.UNSCHEDULED)


def is_under_way(rollout: Rollout, replicas: Iterable[Replica], template: str) -> bool:
    """Whether outdated replicas are to be replaced."""
    return not rollout.paused and any(replica.template != template for replica in asked_for(replicas))


def surge(rollout: Rollout, size: int) -> int:
    """How many replacements may start beyond this size."""
    given = rollout.max_surge
    return given if isinstance(given, int) else -(-size * _percent(given) // 100)


def may_be_missing(rollout: Rollout, size: int) -> int:
    """How many executors of a pool of this size may be missing. Where both shares are less than one: one."""
    given = rollout.max_unavailable
    missing = given if isinstance(given, int) else size * _percent(given) // 100
    return missing or int(surge(rollout, size) == 0)


def starting(replicas: Iterable[Replica], template: str) -> list[Replica]:
    """The replicas with this template that have yet to prove it, in the order in which they leave."""
    there = [one for one in asked_for(replicas) if one.template == template]
    some = [one for one in there if one.phase in _STARTING or one.fresh]
    return first_to_leave(some, template)


def proven(replicas: Iterable[Replica], template: str) -> int:
    """How many replicas with this template take jobs, and have done so for long enough."""
    return sum(replica.template == template and not replica.fresh for replica in ready(replicas))


def _percent(share: str) -> int:
    return int(share.removesuffix("%"))
