"""The summary of the demo, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.demo.pool import slot
from examples.demo.stage import counted
from examples.demo.summary import PoolSize, Recovery, Summary, TenantSummary, Waits

_FIFO = (
    "FIFO is computed from this run: the same jobs with the same durations, in the order of submission, on the same "
    "slots. (FIFO is spared the kill: jobs that ran at that time may finish.)"
)


def print_summary(console: Console, summary: Summary) -> None:
    """Print the table, then the other results."""
    console.print(
        Text("\nSeconds that jobs waited for their first start, with Joex and with first-in-first-out (FIFO):\n")
    )
    console.print(_table(summary.tenants))
    for line in _lines(summary):
        console.print(Text(f"\n{line}"))


def _table(tenants: list[TenantSummary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("\nTENANT")
    for title in ("\nJOBS", "FIRST\nJOEX", "FIRST\nFIFO", "MEAN\nJOEX", "MEAN\nFIFO", "P95\nJOEX", "P95\nFIFO"):
        table.add_column(title, justify="right")
    for title in ("\nDONE", "\nRETRIED", "\nFAILED"):
        table.add_column(title, justify="right")
    for tenant in tenants:
        counts = map(str, (tenant.done, tenant.retried, tenant.failed))
        table.add_row(tenant.name, str(tenant.jobs), *_waits(tenant.joex, tenant.fifo), *counts)
    return table


def _waits(joex: Waits, fifo: Waits) -> list[str]:
    pairs = (
        (joex.first_start, fifo.first_start),
        (joex.mean_wait, fifo.mean_wait),
        (joex.p95_wait, fifo.p95_wait),
    )
    return [f"{seconds:.1f}" for pair in pairs for seconds in pair]


def _lines(summary: Summary) -> list[str]:
    counted = ", ".join(f"{number:,} {name}" for name, number in summary.counted.items())
    return [
        _FIFO,
        _pool(summary.pool),
        "No executor was killed." if summary.recovery is None else _recovery(summary.recovery),
        "\n  ".join([f"Retried: {summary.retried}. Failed for good, after retries: {summary.failed}", *summary.errors]),
        f"Counted in the library: {counted}.",
        f"Jobs lost: {summary.lost} of {summary.jobs}, in {summary.seconds:.1f} s.",
    ]


def _pool(sizes: list[PoolSize]) -> str:
    first, *changes = sizes
    return f"Executors: {first.executors}, " + ", ".join(f"{now.executors} at {now.seconds:.1f} s" for now in changes)


def _recovery(recovery: Recovery) -> str:
    victim = f"{slot(recovery.app_id)} (process {recovery.pid}, killed with -9)"
    when = f"waiting again {recovery.in_line_after:.1f} s after the kill, ended {recovery.ended_after:.1f} s after it"
    return f"Recovered from {victim}: {counted(recovery.jobs, 'job')}, {when}."
