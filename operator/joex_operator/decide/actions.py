"""The actions on a pool, as data. `control.pool_reconciler` carries them out.

Each action is idempotent, and may come late: from an operator that was suspended for a while and leads no more. So each
action names its object precisely enough to do nothing when it is done already, or when another object has that name.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias


class Why(enum.StrEnum):
    """The reason for an action."""

    DEMAND = "demand"
    FIXED = "fixed"
    SUSPENDED = "suspended"
    DELETED = "deleted"
    HOLD = "hold"
    FALLBACK = "fallback"
    TEMPLATE = "template"  # its template is outdated
    DATABASE = "database"  # its pool has another database now
    LOST = "lost"  # its node is lost, and the database says that its executor is dead
    RETIRED = "retired"  # no executor runs under its app-id, and none will
    DRAIN_TIMEOUT = "drain timeout"  # it has drained for too long, and onTimeout is Terminate
    UNREACHABLE = "unreachable"  # its pool is deleted and the database is down: its pod drains at SIGTERM


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """Create the Deployment of a new replica, unless one of this name exists."""

    index: int
    why: Why


@dataclass(frozen=True, slots=True)
class AskDrain:
    """Retire a replica's app-id, in one transaction. With ``only_if_idle``: only if its executor holds no job."""

    replica: str
    only_if_idle: bool
    why: Why


@dataclass(frozen=True, slots=True)
class MarkSpare:
    """Mark a replica's executor as one that leaves new jobs to others, or no longer."""

    replica: str
    spare: bool


@dataclass(frozen=True, slots=True)
class DeleteReplica:
    """Delete the Deployment of a replica, if its uid still is this one."""

    replica: str
    uid: str
    why: Why


@dataclass(frozen=True, slots=True)
class ForgetReplica:
    """Forget that the app-id of a replica was retired, so that a new one can use its index. Nothing of it is left."""

    replica: str
    retired_at: datetime


@dataclass(frozen=True, slots=True)
class UpdateReplica:
    """Scale the Deployment of a replica, if its uid still is this one, back to one pod, after a user changed that."""

    replica: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReportGone:
    """Tell the database that a pod has ended, so that other executors take its executor's jobs."""

    pod_uid: str


Action: TypeAlias = CreateReplica | AskDrain | MarkSpare | DeleteReplica | ForgetReplica | UpdateReplica | ReportGone
