"""Where executors run: on a cluster (`cluster.fleet`), or on this machine (`local.fleet`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from joex_operator.api.objects import Pool, Ref
from joex_operator.decide.events import Event
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.replicas import Replica


class FleetError(Exception):
    """An operation failed, with a message of one line. The controller tries it again."""


class Fleet(Protocol):
    """Observes and changes the executors of pools. Each change is idempotent."""

    def home(self, namespace: str) -> str:
        """The first part of the app-ids of the executors in a namespace; no other fleet on the database has it.

        Raises:
            FleetError: this fleet does not act in the namespace any more.
        """

    def now(self) -> datetime:
        """The time by the clock from which the fleet has the times of its objects; that of this host may be another."""

    def template(self, pool: Pool) -> str:
        """The hash of the template of which new replicas of the pool are made.

        Raises:
            SpecError: spec.template can't be used; the message names the field.
        """

    def replicas(self, pool: Pool) -> list[Replica]:
        """The replicas of a pool that have a Deployment, a pod or a process. Their ``executor`` is None.

        Raises:
            FleetError: not all of them can be read.
        """

    def taken(self, pool: Pool) -> frozenset[int]:
        """The indices that no replica of a pool can have, because another owner has something of that name."""

    async def check(self, pool: Pool) -> None:
        """Check that a replica can be created, before another one makes room for it.

        Raises:
            FleetError: the fleet would refuse it.
        """

    async def create(self, pool: Pool, index: int) -> None:
        """Create a replica, unless one of this name exists.

        Raises:
            FleetError: the fleet could not create it. The methods below raise it likewise.
        """

    async def delete(self, pool: Pool, replica: str, uid: str) -> None:
        """Delete a replica, if its uid still is this one."""

    async def update(self, pool: Pool, replica: str, uid: str) -> None:
        """Scale a replica back to one executor, if its uid still is this one."""

    async def is_clear(self, pool: Pool, replica: str) -> bool:
        """Whether nothing of a replica is left, by a fresh read: no executor can come back under its name."""

    async def database_url(self, pool: Pool) -> str:
        """The URL of a pool's database.

        Raises:
            UrlUnknown: the URL is not known.
        """

    def recheck_url(self, pool: Pool) -> None:
        """Read the URL again soon: the database has failed, or an executor takes no jobs; the URL may have changed."""

    def status(self, ref: Ref) -> Mapping[str, Any]:
        """The stored status of an object."""

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        """Store a status, which `status` returns from then on."""

    async def record_events(self, ref: Ref, events: Sequence[Event]) -> None:
        """Record Events on an object, for people. Nothing depends on them: this never raises."""


class UrlUnknown(Exception):
    """The URL of a pool's database is not known; ``problem`` says why, and its message what to do.

    ``is_withdrawn``: whoever decides about the URL has taken it away, so that nobody may log in by it any more.
    """

    def __init__(self, reason: str, message: str, *, is_refusal: bool = False, is_withdrawn: bool = False) -> None:
        super().__init__(message)
        self.is_withdrawn = is_withdrawn
        self.problem = DatabaseProblem(reason, message, is_refusal=is_refusal)
