"""An app whose tasks compute, in threads and in processes."""

from __future__ import annotations

import hashlib
import io
import tokenize
import zlib
from pathlib import Path

import joex

app = joex.App()


def work_on(paths: list[str]) -> str:
    """Parse, compress and hash Python files."""
    digest = hashlib.sha256()
    for path in paths:
        source = Path(path).read_bytes()
        tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
        compile(source, path, "exec")
        digest.update(b"%d" % len(tokens) + zlib.compress(source, 9))
    return digest.hexdigest()


@app.task("bench.noop.thread")
def noop_in_thread(ctx: joex.Context) -> None:
    """Do nothing, in a thread."""


@app.task("bench.noop.process", process=True)
def noop_in_process(ctx: joex.Context) -> None:
    """Do nothing, in a process."""


@app.task("bench.work.thread")
def work_in_thread(ctx: joex.Context, paths: list[str]) -> str:
    """Compute, in a thread."""
    return work_on(paths)


@app.task("bench.work.process", process=True)
def work_in_process(ctx: joex.Context, paths: list[str]) -> str:
    """Compute, in a process."""
    return work_on(paths)
