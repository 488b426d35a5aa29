"""``joex executor``: one process with the runtime, the HTTP interface, logs and metrics."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from joex import tracing
from joex.app import App
from joex.cli.database import database
from joex.cli.flags import with_settings
from joex.cli.load import load_app
from joex.cli.signals import have_handlers, reacting_to_signals
from joex.client.client import Client
from joex.config import Settings, load_settings
from joex.core.lease import Lease
from joex.errors import ConfigError, JoexError
from joex.event_loop import new_event_loop
from joex.exits import left_tasks
from joex.http.certificate import Certificate, certificate_of
from joex.http.connection_shares import MOST, SharingClient
from joex.http.listening import address_of, listen
from joex.log_stream import unblocked
from joex.runtime.task_threads import OWN, TENANT, TaskThreads
from joex.store.database import create_pool

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from joex.observe.metrics import Metrics
    from joex.runtime.executor import Executor
    from joex.runtime.watchdog import Watchdog

_log = logging.getLogger("joex")
_MOST_NAMED = 5
_LEAVE_THE_LOOP = (SystemExit, KeyboardInterrupt)
_CLOSE_WITHIN = 2.0
_TASKS_END_WITHIN = 3.0  # seconds
_HTTP_WITHIN = 30.0  # seconds for a statement, as a client has by default
_COLLECT_AFTER = 5_000  # objects created and not yet freed: seven times Python's default, and still little memory
_OF_A_RUN = 25  # objects


@with_settings
def executor(
    *,
    app: Annotated[str, typer.Option(metavar="MODULE:APP", help="The joex.App with the tasks, e.g. shop.tasks:app.")],
    flags: dict[str, str | None],
) -> None:
    """Run jobs.

    On SIGTERM or Ctrl-C it takes no more jobs, finishes the running ones, and exits. On a second signal it gives the
    running jobs back at once.
    """
    import structlog  # noqa: F401, PLC0415 - if its extra is missing, the command ends before it has started anything

    settings = load_settings(flags)
    # Each run creates some twenty objects, none of them in a cycle, and frees them once its end is written. Searching
    # them for cycles as often as Python does by default takes a quarter of the time of short jobs. All slots may create
    # theirs at once, hence a threshold by slots. (Set before the app is loaded, because the app may know a better one.)
    gc.set_threshold(max(_COLLECT_AFTER, _OF_A_RUN * settings.pool_size))
    tasks = load_app(app)
    process_server = [sys.executable, "-m", "joex.cli.process_server", app]
    with unblocked(sys.stderr) as stream, database(settings.url) as url:
        _run_on_a_loop(_run(tasks, settings, url, process_server, stream), settings.pool_size)


def _run_on_a_loop(running: Coroutine[Any, Any, None], slots: int) -> None:
    """Run this on an event loop. What tasks have left there gets a few seconds to end."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        loop = runner.get_loop()
        loop.set_default_executor(TaskThreads(slots))
        own = copy_context()
        own.run(TENANT.set, OWN)
        main = loop.create_task(running, context=own)
        end = loop.create_task(asyncio.wait([main]))
        while not main.done():
            try:
                loop.run_until_complete(end)
            except _LEAVE_THE_LOOP:
                # Of an asyncio task that a run has started: that run fails, but the exception leaves the loop, too.
                # Before the signals have handlers, there is no run yet, and one of them has come: Ctrl-C, or SIGTERM.
                if not have_handlers():
                    raise
        left = asyncio.all_tasks(loop)
        loop.call_later(_TASKS_END_WITHIN, loop.stop)
        with suppress(RuntimeError, *_LEAVE_THE_LOOP):  # the loop has stopped before they had ended; one has raised
            runner.close()
        left_tasks.extend(task for task in left if not task.done())
    main.result()


async def _run(app: App, settings: Settings, url: str, process_server: list[str], stream: TextIO) -> None:
    from joex.observe.log_lines import (  # noqa: PLC0415 - as above
        LogLines,
        bind_run,
        capture_logging,
        capture_structlog,
        fan_out,
    )
    from joex.observe.metrics import Metrics  # noqa: PLC0415
    from joex.observe.spans import Spans  # noqa: PLC0415
    from joex.runtime.executor import Executor  # noqa: PLC0415

    capture_logging(settings, stream)
    capture_structlog(settings, stream)
    if not app.names:
        _log.warning("the app has no tasks: each job that this executor takes gets stuck, and fails after its retries")
    async with AsyncExitStack() as stack:
        certificate = certificate_of(settings.http_tls_certificate, settings.http_tls_key, "JOEX_")
        listener = stack.enter_context(listen(settings.http_address)) if settings.http_address else None
        if listener is not None:
            settings = settings.model_copy(update={"http_address": address_of(listener)})
        metrics = Metrics(slots=settings.pool_size, busy=lambda: len(running.running()), tasks=app)
        watchdog = _watchdog(settings)
        if watchdog is not None:
            stack.callback(watchdog.close)
        spans = [Spans(settings.effective_app_id)] if tracing.is_on() else []
        emit = fan_out(metrics, LogLines(settings, stream), bind_run, *spans)
        running = Executor(app, settings, url, emit=emit, watchdog=watchdog, process_server=process_server)
        services: list[Callable[[], Awaitable[None]]] = [partial(_say_what_it_runs, settings, running)]
        if listener is not None:
            client = await stack.enter_async_context(_client(settings, url))
            services.append(partial(_serve_http, settings, client, running, metrics, listener, certificate=certificate))
        stack.enter_context(reacting_to_signals(_draining(running, settings)))
        with _one_error():
            await running.run(services)


async def _say_what_it_runs(settings: Settings, executor: Executor) -> None:
    """Log it, once the database is there: a start that fails says why, and nothing else."""
    _log.info("%s runs up to %d jobs of %s", executor.app_id, settings.pool_size, ", ".join(settings.queues))


@asynccontextmanager
async def _client(settings: Settings, url: str) -> AsyncIterator[Client]:
    pool = await create_pool(
        url,
        most=MOST,
        pooled=settings.poll_interval is not None,
        name="joex http",
        within=_HTTP_WITHIN,
    )
    client = SharingClient(pool)
    try:
        yield client
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN):
                await client.close()
        pool.terminate()  # calls have had their time to end; a call that is still open must not delay the exit


async def _serve_http(
    settings: Settings,
    client: Client,
    executor: Executor,
    metrics: Metrics,
    listener: socket.socket,
    *,
    certificate: Certificate | None,
) -> None:
    # Importing FastAPI takes longer than the rest of the start. Jobs don't wait for it; calls wait at the open port.
    try:
        create_api, serve = await asyncio.to_thread(_import_http)
    except Exception as error:
        # Runs may have started: give them back, because an executor that simply exits counts as a loss for them.
        executor.stop()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"JOEX_HTTP_ADDRESS: the HTTP interface can't be loaded: {reason}; "
            "reinstall joex, or set the address to an empty string to run without HTTP"
        ) from error
    api = create_api(settings, client, executor, metrics.render)
    _log.info("HTTP on %s://%s", "http" if certificate is None else "https", settings.http_address)
    await serve(api, listener, certificate)


def _watchdog(settings: Settings) -> Watchdog | None:
    if sys.platform == "win32":
        _log.warning("no watchdog on Windows: a job may run twice if its code holds Python's lock beyond the lease")
        return None
    from joex.runtime.watchdog import Watchdog  # noqa: PLC0415 - as above

    return Watchdog(Lease(settings.lease))


def _import_http() -> tuple[
    Callable[..., FastAPI], Callable[[FastAPI, socket.socket, Certificate | None], Awaitable[None]]
]:
    from joex.http.api import create_api  # noqa: PLC0415
    from joex.http.server import serve  # noqa: PLC0415

    return create_api, serve


def _draining(executor: Executor, settings: Settings) -> Callable[[str], None]:
    """Drain at the first signal, even during a drain by other means; stop at the second, or when its time is over."""
    received = 0

    def on_signal(name: str) -> None:
        nonlocal received
        received += 1
        if received == 1:
            executor.drain()
            _log.info("%s: waiting for the runs: %s; a further signal gives them back at once", name, _runs(executor))
            if settings.signal_timeout is not None:
                asyncio.get_running_loop().call_later(settings.signal_timeout.total_seconds(), executor.stop)
        else:
            _log.warning("%s again: giving back the runs: %s", name, _runs(executor))
            executor.stop()

    return on_signal


def _runs(executor: Executor) -> str:
    runs = executor.running()
    named = [f"{run.task} {run.id}" for run in runs[:_MOST_NAMED]]
    if len(runs) > len(named):
        named.append(f"and {len(runs) - len(named)} more")
    return ", ".join(named) or "none"


@contextmanager
def _one_error() -> Iterator[None]:
    """Unwrap a Joex error from the exception groups of the runtime's tasks, for its one line and its exit code."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group.subgroup(JoexError) or group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, JoexError):
            raise error from group
        raise
