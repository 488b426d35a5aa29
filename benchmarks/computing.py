"""An app whose tasks compute, in threads and in processes."""

from __future__ import annotations

import joex
from benchmarks.work import pack, parse

app = joex.App()


@app.task("bench.noop.thread")
def noop_in_thread(ctx: joex.Context) -> None:
    """Do nothing, in a thread."""


@app.task("bench.noop.process", process=True)
def noop_in_process(ctx: joex.Context) -> None:
    """Do nothing, in a process."""


@app.task("bench.parse.thread")
def parse_in_thread(ctx: joex.Context, paths: list[str]) -> int:
    """Parse, in a thread."""
    return parse(paths)


@app.task("bench.parse.process", process=True)
def parse_in_process(ctx: joex.Context, paths: list[str]) -> int:
    """Parse, in a process."""
    return parse(paths)


@app.task("bench.pack.thread")
def pack_in_thread(ctx: joex.Context, paths: list[str]) -> str:
    """Parse, compress and hash, in a thread."""
    return pack(paths)


@app.task("bench.pack.process", process=True)
def pack_in_process(ctx: joex.Context, paths: list[str]) -> str:
    """Parse, compress and hash, in a process."""
    return pack(paths)
