"""Where executors run: a cluster (`cluster`), or this machine (`processes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from joex_operator.api.objects import Pool, Ref
from joex_operator.decide.events import Event
from joex_operator.decide.slots import Slot


class FleetError(Exception):
    """Something could not be done now, in one line; it is tried again."""


class Fleet(Protocol):
    """What a reconciler sees of executors, and does to them. Each change may be repeated."""

    def template(self, pool: Pool) -> str:
        """The hash of the template that new slots of the pool are made with.

        Raises:
            SpecError: spec.template can't be used; the message names the field.
        """

    def slots(self, pool: Pool) -> list[Slot]:
        """The slots of a pool that have something here: a Deployment, a pod, a process. Without their ``executor``."""

    async def create(self, pool: Pool, index: int) -> None:
        """Make a slot; where there is one of this name, it is left as it is.

        Raises:
            FleetError: it could not be made, as with all that follow.
        """

    async def delete(self, pool: Pool, slot: str, uid: str) -> None:
        """Remove a slot, if it still is the one with this uid."""

    async def update(self, pool: Pool, slot: str, uid: str) -> None:
        """Bring a slot, if it still is the one with this uid, back to one executor."""

    async def is_clear(self, pool: Pool, slot: str) -> bool:
        """Whether nothing of a slot is left, asked anew: nobody can come back under its name."""

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database.

        Raises:
            UrlUnknown: it can't be had; the reason is for a condition.
        """

    def doubt_url(self, pool: Pool) -> None:
        """The database has refused what this URL says: it may have changed."""

    def status(self, ref: Ref) -> Mapping[str, Any]:
        """The status of an object that is stored."""

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        """Store a status: `status` gives it from now on."""

    async def tell(self, ref: Ref, events: Sequence[Event]) -> None:
        """Tell people what has happened. Nothing depends on it: it never fails."""


class UrlUnknown(Exception):
    """The URL of a pool's database can't be had.

    Attributes:
        reason: in one word, for a condition.
        message: in one line, with what to do.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
