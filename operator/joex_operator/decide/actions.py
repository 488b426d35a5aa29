"""What can be done about a pool, as data: on a cluster by `cluster`, on local processes by `processes`.

Every action may be repeated, and may come late: from an operator that was stopped for a while, and does not lead any
more. So each names what it is about precisely enough to do nothing where that is done already, or has become another.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias


class Why(enum.StrEnum):
    """What an action is for."""

    DEMAND = "demand"
    FIXED = "fixed"
    SUSPENDED = "suspended"
    DELETED = "deleted"
    HOLD = "hold"
    FALLBACK = "fallback"
    TEMPLATE = "template"  # it has an outdated template
    LOST = "lost"  # its node is silent, and the database says that its executor is dead
    RETIRED = "retired"  # no executor lives under its app-id, and none will
    DRAIN_TIMEOUT = "drain timeout"  # it drains for too long, and onTimeout is Terminate
    UNREACHABLE = "unreachable"  # its pool is deleted, and the database silent: its pod drains at SIGTERM


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """Make the Deployment of a new slot; where there is one of this name, it is left as it is."""

    index: int
    why: Why


@dataclass(frozen=True, slots=True)
class AskDrain:
    """Retire a slot's app-id, in one transaction; ``only_if_idle``: unless it holds a job, then nothing happens."""

    slot: str
    only_if_idle: bool
    why: Why


@dataclass(frozen=True, slots=True)
class DeleteSlot:
    """Delete the Deployment of a slot, if it still is the one with this uid."""

    slot: str
    uid: str
    why: Why


@dataclass(frozen=True, slots=True)
class ForgetSlot:
    """Nothing of a slot is left: forget that its app-id was retired then, so that its index can be used again."""

    slot: str
    retired_at: datetime


@dataclass(frozen=True, slots=True)
class UpdateSlot:
    """Set the Deployment of a slot, if it still is the one with this uid, to one pod: somebody has changed that."""

    slot: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReportGone:
    """Tell the database that a pod does not run any more, so that its executor's jobs move on."""

    pod_uid: str


Action: TypeAlias = CreateSlot | AskDrain | DeleteSlot | ForgetSlot | UpdateSlot | ReportGone
