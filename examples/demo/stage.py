"""The output of the demo: live tables on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.ledger import Snapshot, TenantNow
from examples.demo.pool import MOST, slot

_LINE_EVERY = 1.0


class Stage(Protocol):
    """The output of the demo."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, whatever happened."""

    def tell(self, message: str) -> None:
        """Print a message about an event."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state."""


def make_stage(console: Console) -> Stage:
    """Make the stage that fits the console."""
    return Screen(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


def counted(number: int, word: str) -> str:
    """Write a number with its word.

    >>> counted(1, "job"), counted(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


class _Clock:
    """Seconds since the demo began, to begin a line with."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def stamp(self, message: str) -> Text:
        return Text(f"{time.monotonic() - self._begin:5.1f} s  {message}")


class Screen:
    """A terminal: messages scroll up, and the tables stay below them."""

    def __init__(self, console: Console) -> None:
        self._clock = _Clock()
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def tell(self, message: str) -> None:
        """Print a line above the tables."""
        self._live.console.print(self._clock.stamp(message))

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the tables."""
        self._live.update(_tables(snapshot), refresh=True)


class Lines:
    """No terminal: a line for each message, and about every second a line with the present state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._clock = _Clock()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def tell(self, message: str) -> None:
        """Print a line."""
        self._console.print(self._clock.stamp(message), soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Print a line, if the last one is old enough."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_EVERY
            self.tell(_line(snapshot))


def _line(snapshot: Snapshot) -> str:
    tenants = (f"{t.name} {t.ended}/{t.submitted}{_stuck(t)}" for t in snapshot.tenants if t.submitted)
    return f"  done: {', '.join(tenants) or 'nothing'}; {_pool(snapshot)}"


def _pool(snapshot: Snapshot) -> str:
    size = len(snapshot.living)
    return f"{'●' * size}{'○' * (MOST - size)} {size} of at most {MOST} executors"


def _stuck(tenant: TenantNow) -> str:
    return f" ({tenant.stuck} stuck)" if tenant.stuck else ""


def _tables(snapshot: Snapshot) -> RenderableType:
    return Group("", _tenants(snapshot), "", Text(_pool(snapshot)), "", _executors(snapshot))


def _tenants(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("TENANT")
    for name in ("WAITING", "RUNNING", "STUCK", "DONE", "FAILED", "MEAN WAIT"):
        table.add_column(name, justify="right")
    table.add_column("")
    for tenant in snapshot.tenants:
        counts = (tenant.waiting, tenant.running, tenant.stuck, tenant.done, tenant.failed)
        wait = "-" if tenant.mean_wait is None else f"{tenant.mean_wait:.1f} s"
        bar = ProgressBar(
            total=max(tenant.submitted, 1),
            completed=tenant.ended,
            width=20,
            complete_style="cyan",
            finished_style="green",
        )
        table.add_row(tenant.name, *map(str, counts), wait, bar)
    return table


def _executors(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("EXECUTOR")
    table.add_column("PROCESS", justify="right")
    table.add_column("STATE")
    table.add_column("JOBS", justify="right")
    table.add_column("LAST HEARTBEAT", justify="right")
    for executor in snapshot.executors:
        heard = "-" if executor.left_at else f"{executor.silent_seconds:.1f} s ago"
        table.add_row(slot(executor.app_id), str(executor.pid), executor.state, str(executor.held), heard)
    return table
