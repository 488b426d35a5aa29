"""The lease of an executor: heartbeats, and the end of trust, in a thread of their own.

A thread, because a task may block the executor's loop for longer than any lease; its jobs still run, and the executor
must not count as dead. The thread has a loop and three connections. On the first, the executor holds its session lock
and sends heartbeats: nothing else, so that nothing delays a heartbeat. On the second, it does its chores
(`joex.runtime.chores`), and on the third, it receives notifications (`joex.runtime.wakeups`).

::

            renewed                    no answer for trusted_for         outage_patience and a lease
    TRUSTED ---------> TRUSTED ... ------------------------> DISTRUSTED -----------------------------> all runs are
       ^                                                     no jobs are taken,                        interrupted
       |               renewed                               exclusive runs are interrupted
       +---------------------------------------------------------+
       |               refused: declared dead by another executor
       +-----------------------------------------------------> ENDED (the executor starts over)

If the code of an interrupted run still runs when the rest of `Lease.fatal_after` has passed, the process exits.

The executor can't tell an outage of the database, in which all keep their jobs, from the loss of its own link, after
which others run its jobs. So runs that are not exclusive go on for a while in both cases, fenced by their lock ids.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from joex.core.lease import Lease, Observation
from joex.errors import DatabaseUnavailable, JoexError
from joex.exits import exit_at_once
from joex.notifications.listener import Listener
from joex.runtime.chores import Chores
from joex.runtime.clock import clock
from joex.runtime.lease_callbacks import LeaseCallbacks, Notifier
from joex.runtime.text import error_trace
from joex.runtime.waits import until, wait_for
from joex.runtime.wakeups import Wakeups
from joex.store import executors
from joex.store.database import connect
from joex.trouble import Trouble

if TYPE_CHECKING:
    from joex.runtime.watchdog import Watchdog

_RECONNECT_IN = 0.2
_GRACE = (
    0.25  # seconds for interrupted runs to end, even where fatal_after has passed already (a process that was stopped)
)
_LOOP_WITHIN = 3.0  # seconds for the executor's loop to end its runs, from the report that the lease has ended
EXIT_CODE = 75
"""The exit code if the lease is over and task code can't be stopped (EX_TEMPFAIL: restart the executor)."""


class LeaseKeeper:
    """Keeps the lease of one registration.

    Args:
        url: the database.
        executor: the id of the registration.
        queues: the queues that it serves.
        lease: the times of the lease.
        pooled: the connections lead through a transaction pooler: no session lock, no notifications.
        outage_patience: the longest outage, in seconds, that interrupts no run that is not exclusive.
        held: the runs at this moment; called from the thread.
        executing: how many runs have code running at this moment; called from the thread.
        executing_exclusively: how many of these are exclusive.
        since: when the registration was sent, on `clock`; trust counts from there until the first heartbeat.
        watchdog: watches the process; None: no watchdog.
        callbacks: called when something happens.
    """

    def __init__(
        self,
        url: str,
        *,
        executor: int,
        queues: Collection[str],
        lease: Lease,
        outage_patience: float,
        pooled: bool,
        held: Callable[[], list[tuple[UUID, UUID]]],
        executing: Callable[[], int],
        executing_exclusively: Callable[[], int],
        since: float,
        watchdog: Watchdog | None,
        callbacks: LeaseCallbacks,
    ) -> None:
        self._url = url
        self._executor = executor
        self._lease = lease
        self._patience = lease.patience(outage_patience)
        self._pooled = pooled
        self._executing = executing
        self._executing_exclusively = executing_exclusively
        self._watchdog = watchdog
        self._callbacks = callbacks
        self._trusted_until = since + lease.trusted_for
        self._observed = Observation(lease.heartbeat_every)
        self._notifier = Notifier(callbacks)
        self._trouble = Trouble("lease", self._notifier.emit)
        self._chores = Chores(
            url,
            executor=executor,
            queues=queues,
            lease=lease,
            pooled=pooled,
            held=held,
            observed=self._observed,
            notifier=self._notifier,
        )
        self._wakeups = Wakeups(
            url,
            executor=executor,
            queues=queues,
            check_every=lease.heartbeat_every,
            notifier=self._notifier,
            check_soon=self._chores.check_soon,
        )
        self._is_trusted = True
        self._is_out_of_patience = False
        self._is_over = False
        self._was_cut_off = False  # from the server of the last heartbeat that was answered
        self._is_started = False
        self._failures = 0  # of sessions, since the last heartbeat that was answered
        self._reconnect_in = _RECONNECT_IN
        self._thread = threading.Thread(target=self._run_thread, name="joex lease", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()  # of the thread's loop

    @property
    def is_trusted(self) -> bool:
        """Whether the lease is renewed, and valid at this moment."""
        return self._is_trusted and clock() < self._trusted_until

    @property
    def is_alive(self) -> bool:
        """Whether its thread works."""
        return self._thread.is_alive() or not self._is_started

    async def until_over(self) -> None:
        """Return when the lease has expired without a renewal, and runs have gone on for as long as they may."""
        beyond_trust = self._lease.duration.total_seconds() - self._lease.trusted_for + self._patience
        await self._sleep_until(lambda: self._trusted_until + beyond_trust)

    def start(self) -> None:
        """Start the thread."""
        self._is_started = True
        self._thread.start()

    async def stop(self) -> None:
        """Stop keeping the lease, and close the connection (which frees the lock)."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        await until(lambda: not self._thread.is_alive())

    def _run_thread(self) -> None:
        try:
            # (Python's own loop: uvloop reads a flood of notifications for seconds before it looks at anything else.)
            with asyncio.Runner() as runner:
                runner.run(self._keep())
        except Exception as error:  # noqa: BLE001 - without this thread nothing keeps the lease: start over
            self._trouble.failed(f"failed: {error_trace(error)}", 0)
            self._notifier.notify_executor(self._callbacks.on_ended)
        finally:
            if self._watchdog is not None:
                self._watchdog.rest()

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        beside = [
            asyncio.create_task(self._watch(0, self._distrust, self._executing_exclusively)),
            asyncio.create_task(self._watch(self._patience, self._lose_patience, self._executing)),
            asyncio.create_task(self._show_life()),
            asyncio.create_task(self._chores.do()),
        ]
        if not self._pooled:
            beside.append(asyncio.create_task(self._wakeups.receive()))
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set() and not self._is_over:
                session = asyncio.create_task(self._session())
                await asyncio.wait({session, stopped, *beside}, return_when=asyncio.FIRST_COMPLETED)
                session.cancel()
                with suppress(asyncio.CancelledError):
                    await session
                for task in beside:
                    if task.done():  # because of a bug
                        task.result()
                if not self._stop.is_set():
                    await wait_for(self._stop, self._reconnect_in)
            if self._is_over:
                # The executor's loop knows by now, but the very task that must stop may block it.
                await wait_for(self._stop, _LOOP_WITHIN)
                if not self._stop.is_set() and self._executing():
                    self._exit()
        finally:
            for one in (*beside, stopped):
                one.cancel()

    async def _session(self) -> None:
        """Keep the lease on one connection, until it breaks."""
        connection = None
        try:
            # A heartbeat that is lost in a crash of the server does no harm, so it need not wait for the disk.
            # (Behind a pooler it waits: a setting of the session there would apply to other clients.)
            connection = await connect(
                self._url,
                pooled=self._pooled,
                name=f"joex lease {self._executor}",
                within=self._lease.heartbeat_every,
                connect_within=self._lease.connect_within,
                synchronous_commit="off",
            )
            await self._use(connection)
        except (JoexError, OSError) as error:
            # The first retry comes soon, in case only this session has ended. Later ones come less and less often, at
            # random times so that hundreds of executors don't come together, but with time left in the lease for
            # another.
            if self._failures:
                most = min(_RECONNECT_IN * 2.0 ** min(self._failures, 10), self._lease.heartbeat_every)
                self._reconnect_in = most * random.uniform(0.5, 1)  # noqa: S311 - no secret
            self._failures += 1
            self._trouble.failed(error, self._reconnect_in)
        finally:
            self._observed.break_off()
            self._was_cut_off = True
            if connection is not None:
                connection.terminate()

    async def _use(self, connection: Any) -> None:
        listener = Listener(connection, asyncio.Event())
        await listener.start()
        has_lock = listener.is_pooled
        while not listener.is_lost and not self._is_over:
            # An earlier session of this executor may not have ended on the server yet, and holds the lock until then.
            has_lock = has_lock or await executors.hold_lock(connection, self._executor)
            await self._beat(connection)
            with suppress(DatabaseUnavailable):  # a session that has ended without an error is no trouble yet
                await listener.woken(asyncio.get_running_loop().time() + self._lease.heartbeat_every)

    async def _beat(self, connection: Any) -> None:
        sent = clock()
        beat = await executors.heartbeat(connection, self._executor)
        if beat is None:
            self._distrust()
            self._notifier.notify_executor(self._callbacks.on_ended)
            self._is_over = True
            return
        self._trouble.over()
        self._failures, self._reconnect_in = 0, _RECONNECT_IN
        # (Behind a pooler this session outlives the server, and another one may answer than before.)
        self._was_cut_off |= self._observed.answered(sent, clock(), beat)
        self._chores.has_beaten()
        self._trusted_until = sent + self._lease.trusted_for
        self._is_out_of_patience = False
        if self._was_cut_off:
            self._was_cut_off = False
            self._notifier.notify_executor(self._callbacks.on_reconnect)
        if not self._is_trusted:
            self._is_trusted = True
            self._notifier.notify_executor(self._callbacks.on_trust)

    async def _watch(self, patience: float, interrupt: Callable[[], None], executing: Callable[[], int]) -> None:
        """Interrupt runs in time, this many seconds after the end of trust; and exit if their code does not stop."""
        while True:
            await self._sleep_until(lambda: self._trusted_until + patience)
            interrupt()
            fatal_at = self._trusted_until + patience + self._lease.fatal_after - self._lease.trusted_for
            await asyncio.sleep(_GRACE)
            await self._sleep_until(lambda: fatal_at)  # noqa: B023 - it ends within this turn
            if not self._is_trusted and executing():
                self._exit()

    async def _sleep_until(self, end: Callable[[], float]) -> None:
        """Sleep until a time on `clock`, which heartbeats move."""
        while (left := end() - clock()) > 0:  # noqa: ASYNC110 - time passes
            # (In parts: a timer of the loop stands still while the machine is suspended, and other executors go on.)
            await asyncio.sleep(min(left, self._lease.show_life_every))

    async def _show_life(self) -> None:
        # (Even if no run executes: one that begins could hold the GIL before this thread could report it.)
        while self._watchdog is not None:
            self._watchdog.show_life()
            await asyncio.sleep(self._watchdog.show_every)
        await self._stop.wait()

    def _distrust(self) -> None:
        if self._is_trusted:
            self._is_trusted = False
            self._notifier.notify_executor(self._callbacks.on_distrust)

    def _lose_patience(self) -> None:
        if not self._is_out_of_patience:
            self._is_out_of_patience = True
            self._notifier.notify_executor(self._callbacks.on_patience_end)

    def _exit(self) -> NoReturn:
        """Exit at once: the lease is over, other executors may run the jobs, and the code of a task does not stop."""
        exit_at_once(
            EXIT_CODE,
            "the lease could not be renewed, and a task does not react to being interrupted; "
            "exiting, so that no job runs twice",
        )
