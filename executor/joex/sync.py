"""A synchronous client, for programs without an event loop, such as those with Django or Flask.

>>> import joex.sync  # doctest: +SKIP
>>> with joex.sync.Client("postgresql://localhost/shop") as client:  # doctest: +SKIP
...     client.submit("mail.send", {"to": "a@example.org"}, group="acme")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from joex.client import calls, groups, periodic, queues
from joex.client.blocking import blocking
from joex.client.options import FINAL, seconds_of, states_of, time_limit
from joex.client.submissions import Options, Submits
from joex.extras import needs
from joex.notifications import watcher
from joex.store.drivers import SyncConnection
from joex.store.jobs import Job

with needs("sync", "the synchronous client needs"):
    from joex.client.sync_connections import SyncConnections

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["Client", "Groups", "PeriodicTasks", "Queues"]

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class _Blocking(Generic[C]):
    """Calls of which each blocks until it is done."""

    def __init__(self, calls: C) -> None:
        self._calls = calls


def _blocking(
    call: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[[Callable[..., None]], Callable[Concatenate[_Blocking[C], P], T]]:
    """Make a method that makes this call, and returns what it returns. The function only names the method.

    (An assignment to a name would do, but for it pyright infers no types in an installed package.)
    """

    def decorator(_: Callable[..., None]) -> Callable[Concatenate[_Blocking[C], P], T]:
        @wraps(call)
        def method(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
            return blocking(call(self._calls, *args, **kwargs))

        return method

    return decorator


class Client(_Blocking[calls.Calls], Submits[UUID, UUID | None]):
    """Submits, manages and reads jobs, as `joex.Client` does, without ``await``.

    Each method takes an optional ``connection``: it then runs in the transaction of that connection, so that a job
    exists if and only if the transaction commits. The connection is one of psycopg, a connection or a session of
    SQLAlchemy, or a connection of Django.

    Threads may share a client that has a URL or a pool. After a fork, a client that has a URL makes connections of its
    own in the new process.

    Args:
        database: a PostgreSQL URL (the client makes at most ten connections, when it needs them, and closes them), your
            ``psycopg_pool.ConnectionPool``, or a connection, in which all calls then run: Django's ``connection``, or
            the ``scoped_session`` of an application with SQLAlchemy, which give each thread its own one.
        timeout: the longest a statement may take, on the client's own connections; the call then raises
            `DatabaseUnavailable`. When the link goes silent, it does so after 20 seconds. None: no limit.
        patience: as for `joex.Client`. Not with a connection.

    Raises:
        ConfigError: the URL, the timeout or the patience is wrong.
        MissingExtra: psycopg is missing; the extra `sync` brings it.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any] | SyncConnection,
        *,
        timeout: timedelta | float | str | None = "30s",
        patience: timedelta | float | str = 0,
    ) -> None:
        self._connections = SyncConnections(database, time_limit(timeout), seconds_of("patience", patience))
        super().__init__(calls.Calls(self._connections))

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic tasks, which create jobs when their timers are due."""
        return PeriodicTasks(periodic.PeriodicTasks(self._connections))

    @property
    def groups(self) -> Groups:
        """The groups: their settings, and their unfinished jobs."""
        return Groups(groups.Groups(self._connections))

    @property
    def queues(self) -> Queues:
        """The queues: to pause and resume them."""
        return Queues(queues.Queues(self._connections))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that the client has opened."""
        self._connections.close()

    @overload
    def submit(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        tracker: None = None,
        connection: SyncConnection | None = None,
        **options: Unpack[Options],
    ) -> UUID: ...
    @overload
    def submit(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        tracker: str | None,
        connection: SyncConnection | None = None,
        **options: Unpack[Options],
    ) -> UUID | None: ...
    @wraps(calls.Calls.submit)
    def submit(self, *args: Any, **fields: Any) -> Any:
        return blocking(self._calls.submit(*args, **fields))

    @_blocking(calls.Calls.submit_many)
    def submit_many(self) -> None: ...

    @_blocking(calls.Calls.cancel)
    def cancel(self) -> None: ...

    @_blocking(calls.Calls.set_priority)
    def set_priority(self) -> None: ...

    @_blocking(calls.Calls.set_args)
    def set_args(self) -> None: ...

    @_blocking(calls.Calls.remove)
    def remove(self) -> None: ...

    @_blocking(calls.Calls.retry)
    def retry(self) -> None: ...

    @_blocking(calls.Calls.retry_failed)
    def retry_failed(self) -> None: ...

    @_blocking(calls.Calls.notify)
    def notify(self) -> None: ...

    @_blocking(calls.Calls.get)
    def get(self) -> None: ...

    @_blocking(calls.Calls.why)
    def why(self) -> None: ...

    @_blocking(calls.Calls.log)
    def log(self) -> None: ...

    @_blocking(calls.Calls.attempts)
    def attempts(self) -> None: ...

    def wait(
        self, job_id: UUID, *, states: Collection[str] = FINAL, timeout: timedelta | float | str | None = None
    ) -> Job | None:
        """Wait until a job is in one of these states; by default, until it is finished.

        The call polls the job: twenty times a second at first, then ever less often, down to once a second. So it
        returns when the job has been in that state for at most a quarter of the whole wait, and a second. Each poll is
        one statement, which looks up the job by its id; between polls the call holds no connection.

        Returns None if the job is gone, or the transaction of its submission has not committed. The wait may miss a
        state that the job passes through quickly, so wait for the final states too. While the database is away, the
        wait goes on, unless the client has a connection.

        Args:
            job_id: the job.
            states: the states to wait for.
            timeout: the longest time (``"30s"``).

        Raises:
            TimeoutError: the job did not reach any of these states in time.
            ConfigError: the states, the timeout, or the database's URL is wrong.
        """
        [job] = self.wait_many([job_id], states=states, timeout=timeout)
        return job

    def wait_many(
        self,
        job_ids: Iterable[UUID],
        *,
        states: Collection[str] = FINAL,
        timeout: timedelta | float | str | None = None,
    ) -> list[Job | None]:
        """Wait until each of these jobs is, or was meanwhile, in one of these states; as `wait`, in the order given."""
        ids = list(job_ids)
        found = blocking(self._connections.wait(ids, states_of(states), watcher.time_limit(timeout)))
        return [found[job_id] for job_id in ids]


class PeriodicTasks(_Blocking[periodic.PeriodicTasks]):
    """The periodic tasks of a database: ``client.periodic``, as `joex.PeriodicTasks`, without ``await``."""

    @_blocking(periodic.PeriodicTasks.list)
    def list(self) -> None: ...

    @_blocking(periodic.PeriodicTasks.get)
    def get(self) -> None: ...

    @_blocking(periodic.PeriodicTasks.put)
    def put(self) -> None: ...

    @_blocking(periodic.PeriodicTasks.remove)
    def remove(self) -> None: ...

    @_blocking(periodic.PeriodicTasks.enable)
    def enable(self) -> None: ...

    @_blocking(periodic.PeriodicTasks.disable)
    def disable(self) -> None: ...

    @_blocking(periodic.PeriodicTasks.run_now)
    def run_now(self) -> None: ...


class Groups(_Blocking[groups.Groups]):
    """The groups of a database: ``client.groups``, as `joex.Groups`, without ``await``."""

    @_blocking(groups.Groups.list)
    def list(self) -> None: ...

    @_blocking(groups.Groups.settings)
    def settings(self) -> None: ...

    @_blocking(groups.Groups.set)
    def set(self) -> None: ...


class Queues(_Blocking[queues.Queues]):
    """The queues of a database: ``client.queues``, as `joex.Queues`, without ``await``."""

    @_blocking(queues.Queues.paused)
    def paused(self) -> None: ...

    @_blocking(queues.Queues.set)
    def set(self) -> None: ...
