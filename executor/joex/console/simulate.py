"""The page Simulate: what another pool, or another weight, would have made of the jobs that have ended lately.

The command ``joex simulate`` does it, in a process of its own: another package brings this command
(`joex.cli.commands`), and a simulation must not hold up the pages of other viewers. For the same reason the event loop
never has all jobs or groups of a simulation at once: it reads the jobs a batch at a time, the next one when the command
has taken the one before, and the command reports the groups of the page alone. One simulation runs at a time, and each
viewer has one at a time, so that no viewer keeps the others waiting for long.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, HTTPException, Query, Request, status
from pydantic_core import from_json, to_json
from starlette.responses import PlainTextResponse, Response

from joex.console.calls import Console, Storable, TheConsole
from joex.console.views import params
from joex.core.access import Scope
from joex.core.trace import TracedJob
from joex.http.caller import TheCaller, needs, refuse_if_revoked
from joex.http.disconnect import unless_disconnected
from joex.store import stats
from joex.store.trace import traced

routes = APIRouter()

MOST_JOBS = 100_000
"""In a simulation."""
_WITHIN = 60.0
"""Seconds for a simulation, from when it begins to read the jobs."""
_ENDS_WITHIN = 1.0
"""Seconds in which a simulation ends whose page is closed, or loaded again."""
_MOST_GROUPS = 20
"""On the page: those that wait the longest."""
_POOL = """\
apiVersion: joex.dev/v1alpha1
kind: JoexPool
metadata: {{name: simulated}}
spec:
  app: your.tasks:app             # module:attribute, the joex.App with your tasks
  queues: {queues}
  database: {{secretName: joex-db}}
  poolSize: {pool_size}
  scaling:
    minReplicas: {least}
    maxReplicas: {most}
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to simulate: the jobs of the last ``hours``, on a pool, with a weight for a group (None: as it is)."""

    hours: int
    queue: str
    pool_size: int
    least: int
    most: int
    price: float | None
    group: str
    weight: int | None

    @property
    def query(self) -> str:
        """What the pool is made of, as the query of a link."""
        return params({"queue": self.queue, "pool_size": self.pool_size, "least": self.least, "most": self.most})

    @property
    def pool(self) -> str:
        """The pool, as a file for ``joex up`` and Kubernetes."""
        queues = to_json([self.queue]).decode()
        return _POOL.format(queues=queues, pool_size=self.pool_size, least=self.least, most=self.most)


async def _wish(  # noqa: PLR0917 - the fields of the form
    hours: Annotated[int, Query(ge=1, le=168)] = 24,
    queue: Annotated[str, Query(min_length=1, max_length=254), Storable] = "default",
    pool_size: Annotated[int, Query(ge=1, le=1000)] = 2,
    least: Annotated[int, Query(ge=0, le=1000)] = 0,
    most: Annotated[int, Query(ge=1, le=1000)] = 4,
    price: Annotated[str, Query(pattern=r"^(\d{1,6}(\.\d{1,6})?)?$")] = "",
    group: Annotated[str, Query(max_length=254)] = "",
    weight: Annotated[str, Query(pattern=r"^([1-9]\d?|100)?$")] = "",
) -> Wish:
    if least > most:
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "least: expected no more executors than at most.")
    return Wish(
        hours, queue, pool_size, least, most, float(price) if price else None, group, int(weight) if weight else None
    )


TheWish = Annotated[Wish, Depends(_wish)]


@routes.get("/simulate", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def simulate(console: TheConsole, caller: TheCaller, request: Request, wish: TheWish) -> Response:
    """Simulate a pool on the jobs that have ended lately, if the form was sent."""
    snapshot = await console.snapshots.get()
    report, problem, jobs = None, None, 0
    if not entry_points(group="joex.commands", name="simulate"):
        problem = "The command joex simulate is not installed beside this console."
    elif "hours" in request.query_params:
        turn = console.simulating.setdefault(caller.key, asyncio.Lock())
        try:
            async with asyncio.timeout(_ENDS_WITHIN):
                await turn.acquire()
        except TimeoutError as error:
            detail = f"A simulation of {caller.name} goes on: wait until it has ended."
            raise HTTPException(status.HTTP_409_CONFLICT, detail) from error
        try:
            done = await unless_disconnected(request, _simulated(console, wish))
        finally:
            turn.release()
        await refuse_if_revoked(request)  # it may have waited for the simulations of many others
        report, problem, jobs = done or (None, None, 0)  # (None: the caller has gone)
    return console.views.page(
        request, "simulate.html", wish=wish, report=report, problem=problem, jobs=jobs,
        names=sorted({*snapshot.queues, wish.queue}), query=wish.query,
        chart=None if report is None else _chart(report["over_time"]),
    )  # fmt: skip


@routes.get("/simulate/pool.yaml", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def pool_file(wish: TheWish) -> Response:
    """The simulated pool, as a file."""
    return PlainTextResponse(wish.pool, headers={"Content-Disposition": 'attachment; filename="pool.yaml"'})


async def _simulated(console: Console, wish: Wish) -> tuple[dict[str, Any] | None, str | None, int]:
    """The report, or why there is none; and the number of jobs."""
    async with console.simulation:
        try:
            async with asyncio.timeout(_WITHIN):
                return await _run(console, wish)
        except TimeoutError:
            return None, f"The simulation took more than {_WITHIN:.0f} seconds: choose a shorter time.", 0


async def _run(console: Console, wish: Wish) -> tuple[dict[str, Any] | None, str | None, int]:
    """The report of ``joex simulate --json``, to which the jobs are written while they are read."""
    async with aclosing(_trace(console, wish)) as batches:
        batch, jobs = await anext(batches, None), 0
        if batch is None:
            return None, f"No job of the queue {wish.queue!r} has run and ended in this time.", 0
        async with _command(wish) as (process, stdin):
            while batch is not None:
                jobs += len(batch)
                if jobs > MOST_JOBS:
                    return None, f"More than {MOST_JOBS:,} jobs ended in this time: choose a shorter one.", jobs
                lines = await asyncio.to_thread(_lines, batch, wish)
                try:
                    stdin.write(lines)
                    await stdin.drain()
                except (BrokenPipeError, ConnectionResetError, RuntimeError):  # (RuntimeError: uvloop's)
                    break  # the command has ended, and says why
                batch = await anext(batches, None)
            stdin.close()
            said, complaint = await process.communicate()
    if process.returncode:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        return None, last or f"The simulation ended with status {process.returncode}: it may lack memory.", jobs
    return from_json(said)["policies"][0], None, jobs


async def _trace(console: Console, wish: Wish) -> AsyncGenerator[list[TracedJob], None]:
    """The jobs that have ended lately, a batch at a time."""
    async with console.client.using() as connection:
        since = await stats.now(connection) - timedelta(hours=wish.hours)
        async with aclosing(traced(connection, since, wish.queue)) as batches:
            async for batch in batches:
                yield batch


def _lines(batch: Sequence[TracedJob], wish: Wish) -> bytes:
    """Some jobs as lines of a trace, with the wished weight."""
    if wish.weight:
        batch = [replace(job, weight=wish.weight) if job.group == wish.group else job for job in batch]
    return b"".join(to_json(job) + b"\n" for job in batch)


@asynccontextmanager
async def _command(wish: Wish) -> AsyncGenerator[tuple[Process, asyncio.StreamWriter], None]:
    """The process of ``joex simulate --json``, which reads a trace; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="joex-console-") as folder:
        file = Path(folder) / "pool.yaml"
        file.write_text(wish.pool)
        arguments = ["simulate", "-", "--file", str(file), "--json", "--limit", str(_MOST_GROUPS)]
        arguments += [] if wish.price is None else ["--price", str(wish.price)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "joex", *arguments, cwd=folder,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process, cast("asyncio.StreamWriter", process.stdin)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _chart(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lines of executors and of waits over time, as points of SVG, 0 to 400 wide and 0 to 80 high."""
    most = max([1, *(step["executors"] for step in steps)])
    longest = max([1.0, *(step["wait_p95"] or 0 for step in steps)])
    width = 400 / max(len(steps) - 1, 1)
    sizes = [(nr * width, 80 - step["executors"] / most * 78) for nr, step in enumerate(steps)]
    waits = [(nr * width, step["wait_p95"] / longest * 78) for nr, step in enumerate(steps) if step["wait_p95"]]
    return {
        "most": most,
        "longest": longest,
        "executors": " ".join(f"{x:.1f},{y:.1f}" for x, y in sizes),
        "waits": [(f"{x:.1f}", f"{80 - height:.1f}", f"{height:.1f}") for x, height in waits],
    }
