"""How an executor gets its registration: it waits while another takes jobs under its app-id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from joex.app import App
from joex.config import Settings
from joex.core import events
from joex.core.events import Emit
from joex.core.lease import Lease, Observation
from joex.errors import JoexError, SchemaError
from joex.runtime.clock import clock
from joex.runtime.identity import is_certainly_gone, this_process
from joex.runtime.waits import unless, wait_for
from joex.store import executors
from joex.store.database import borrowed
from joex.store.executors import NewExecutor, Other, Registered
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

_RETRY_IN = 0.5


class Newcomer:
    """Registers an executor, as often as it needs a new registration.

    Args:
        app: the tasks.
        settings: of the executor.
        pool: connections.
        locks: the lease holds a lock of its session too (not behind a pooler).
        asked_to_drain: then it stops to wait.
        emit: receives events.
        on_wait: called whenever another executor keeps it from registering, or the app-id is retired.

    `register` raises SchemaError if a migration has made the schema too new for this version.
    """

    def __init__(
        self,
        app: App,
        settings: Settings,
        pool: asyncpg.Pool[Any],
        *,
        locks: bool,
        asked_to_drain: asyncio.Event,
        emit: Emit,
        on_wait: Callable[[], None],
    ) -> None:
        self._app = app
        self._settings = settings
        self._pool = pool
        self._locks = locks
        self._asked_to_drain = asked_to_drain
        self._emit = emit
        self._on_wait = on_wait

    async def register(self) -> tuple[int, float] | None:
        """Register; wait while another executor takes jobs under the app-id.

        Returns the registration, and the time when this executor sent it; None if it was asked to drain first.

        An executor that drains takes no jobs, so this one starts beside it: a drain may take as long as a job, and the
        cluster that evicted the pod wants a successor at once.

        No executor registers under a retired app-id. This one waits then, too: the operator that retired the app-id is
        about to stop this process, and if the process exited by itself, it would only be restarted.
        """
        me, gone, told = self._described(), None, None
        beside: set[int] = set()
        reclaimed = 0
        observed = Observation(Lease(self._settings.lease).heartbeat_every)
        trouble = Trouble("registration", self._emit)
        while not self._asked_to_drain.is_set():
            sent = clock()
            try:
                # (Don't cancel the registration itself: that would leave the row of an executor that does not exist.)
                if not await unless(self._asked_to_drain, _reach(self._pool)):
                    return None
                async with borrowed(self._pool) as connection:
                    answer = await executors.register(connection, me, gone, beside=list(beside), marks=observed.marks)
            except (JoexError, OSError) as error:
                if isinstance(error, SchemaError) and error.reason == "SchemaTooNew":
                    raise
                observed.break_off()
                retry_in = trouble.failed(error)
            else:
                trouble.over()
                reclaimed += answer.reclaimed
                if answer.id is not None:
                    self._emit(events.Registered(me.app_id, answer.id, reclaimed))
                    return answer.id, sent
                observed.answered(sent, clock(), answer.beat)
                if answer.other is not None and answer.other.id != gone and _is_gone(answer.other, me):
                    gone = answer.other.id
                    continue
                if answer.other is not None and answer.other.draining and answer.other.id not in beside:
                    beside.add(answer.other.id)
                    continue
                self._on_wait()
                told = self._tell_of_waiting(me.app_id, answer, told)
                retry_in = _RETRY_IN
            await wait_for(self._asked_to_drain, retry_in)
        return None

    def _tell_of_waiting(self, app_id: str, answer: Registered, told: int | None) -> int | None:
        """Report once why it waits; returns the executor that it waits for (0: its app-id is retired)."""
        why = answer.other.id if answer.other is not None else 0
        if why != told:
            in_use = None if answer.other is None else events.AppIdInUse(app_id, _describe(answer.other))
            self._emit(in_use or events.AppIdRetired(app_id))
        return why

    def _described(self) -> NewExecutor:
        process, settings = this_process(), self._settings
        return NewExecutor(
            app_id=settings.effective_app_id,
            pod_uid=settings.pod_uid or None,
            host=process.host,
            boot_id=process.boot,
            pid=process.pid,
            process_start=process.start,
            version=version("joex"),
            queues=settings.queues,
            tasks=self._app.names,
            pool_size=settings.pool_size,
            most_losses=settings.most_losses,
            http_address=settings.http_address or None,
            lease=settings.lease,
            locks=self._locks,
        )


async def _reach(pool: asyncpg.Pool[Any]) -> Literal[True]:
    """Open a connection of the pool."""
    async with borrowed(pool):
        return True


def _is_gone(other: Other, me: NewExecutor) -> bool:
    """Whether another executor is over.

    In a pod one process at a time is an executor, and it has ended its runs when it registers again.
    """
    return is_certainly_gone(other) or (me.pod_uid is not None and other.pod_uid == me.pod_uid)


def _describe(other: Other) -> str:
    heard = "no heartbeat" if other.silent is None else f"last heartbeat {other.silent:.1f} s ago"
    return f"executor {other.id} (process {other.pid} on {other.host}, {heard})"
