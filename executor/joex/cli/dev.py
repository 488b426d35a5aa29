"""``joex dev``: an executor that starts again whenever code changes, and its database, in one terminal.

The executor is a process of its own, so that it loads all code anew, and no code can take this command down. When a
file changes, its runs have two seconds (JOEX_SIGNAL_TIMEOUT) to end; then it gives their jobs back, and the next
executor runs them, with the new code. A process that has not exited ten seconds later is killed: the next executor
takes its jobs over, because it has the same app-id.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from joex.cli.database import database
from joex.cli.flags import with_settings
from joex.cli.output import note
from joex.cli.parent_watch import ParentWatch
from joex.cli.signals import reacting_to_signals
from joex.config import load_settings
from joex.errors import ConfigError

_RUNS_END_WITHIN = "2s"
_EXITS_WITHIN = 10.0


@with_settings
def dev(
    *,
    app: Annotated[str, typer.Option(metavar="MODULE:APP", help="The joex.App with the tasks, e.g. shop.tasks:app.")],
    flags: dict[str, str | None],
) -> None:
    """Run jobs while you write their code.

    Starts an executor, and starts it again when a Python file or joex.toml changes in the current folder or below it.
    Without a database URL it also runs the embedded database. Ctrl-C ends all of it.
    """
    if sys.platform == "win32":
        raise ConfigError("joex dev does not run on Windows: start joex executor there, and again after a change")
    import watchfiles  # noqa: F401, PLC0415 - if its extra is missing, the command ends before it has started anything

    settings = load_settings(flags)
    if settings.signal_timeout is None:
        flags = flags | {"signal_timeout": _RUNS_END_WITHIN}
    given = {f"JOEX_{name.upper()}": value for name, value in flags.items() if value is not None}
    parent = ParentWatch()
    try:
        with database(settings.url) as url:
            environment = {**os.environ, **given, "JOEX_DATABASE_URL": url}
            # Of two versions of a file that were written in one second, Python takes the first, if it has cached that.
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
            environment.pop("JOEX_DATABASE_URL_FILE", None)
            limit = load_settings(flags).signal_timeout
            runs_end_within = 0.0 if limit is None else limit.total_seconds()
            asyncio.run(_Loop(app, parent, environment, runs_end_within + _EXITS_WITHIN).run_until_told())
    finally:
        parent.close()


class _Loop:
    """Runs one executor after the other.

    Args:
        app: the app, as ``--app`` names it.
        parent: lets an executor exit when this process has.
        environment: of the executors.
        exits_within: seconds from the request to exit until a process is killed.
    """

    def __init__(self, app: str, parent: ParentWatch, environment: Mapping[str, str], exits_within: float) -> None:
        self._command = parent.command("executor", "--app", app)
        self._end = parent.end
        self._environment = environment
        self._exits_within = exits_within
        self._news = asyncio.Event()  # a file has changed, the executor has exited, or this command is to end
        self._is_changed = self._is_leaving = False
        self._executor: asyncio.subprocess.Process | None = None

    async def run_until_told(self) -> None:
        """Run executors until SIGTERM or Ctrl-C."""
        with reacting_to_signals(self._leave):
            await self._run()

    async def _run(self) -> None:
        watching = asyncio.create_task(self._watch())
        await asyncio.sleep(0)  # it watches from here on: no change after the executor's start is missed
        try:
            while not self._is_leaving:
                self._is_changed = False
                await self._run_one()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _run_one(self) -> None:
        """Run an executor until a change; if it exits before that, wait for the change."""
        self._executor = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            pass_fds=[self._end],
            start_new_session=True,  # Ctrl-C goes to this process alone, which passes it on
        )
        exited = asyncio.create_task(self._executor.wait())
        exited.add_done_callback(lambda _: self._news.set())
        while not (self._is_changed or self._is_leaving or exited.done()):
            await self._next_news()
        if not exited.done():
            if self._is_changed:
                note("a file has changed: the executor starts again")
            self._ask_to_exit()
            try:
                await asyncio.wait_for(asyncio.shield(exited), self._exits_within)
            except TimeoutError:
                note("the executor has not exited: killing it")
                self._executor.kill()
                await exited
        elif not self._is_leaving:
            note(f"the executor has exited with code {exited.result()}: it starts again when a file changes")
            while not (self._is_changed or self._is_leaving):
                await self._next_news()

    async def _next_news(self) -> None:
        await self._news.wait()
        self._news.clear()

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - as above

        try:
            async for _ in awatch(Path.cwd(), watch_filter=PythonFilter(extra_extensions=(".toml",))):
                self._is_changed = True
                self._news.set()
        except Exception as error:  # the system has no watch left, or forbids it
            raise ConfigError(
                f"can't watch the current folder: {_said(error)} (WATCHFILES_FORCE_POLLING=1 polls it instead)"
            ) from error
        finally:
            self._is_leaving = True
            self._news.set()

    def _leave(self, _name: str) -> None:
        """Let the executor drain; at a second signal, give its runs back at once."""
        if self._is_leaving:
            self._ask_to_exit()
        self._is_leaving = True
        self._news.set()

    def _ask_to_exit(self) -> None:
        if self._executor is not None and self._executor.returncode is None:
            with suppress(ProcessLookupError):
                self._executor.terminate()


def _said(error: BaseException) -> str:
    """An error in one line; watchfiles raises some in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split())
