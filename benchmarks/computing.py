"""An app whose tasks compute, in threads and in processes."""

from __future__ import annotations

import hashlib
import io
import tokenize
import zlib
from pathlib import Path

import joex

app = joex.App()


def parse(paths: list[str]) -> int:
    """Parse Python files: the interpreter's lock is held all the time."""
    tokens = 0
    for path in paths:
        source = Path(path).read_bytes()
        tokens += sum(1 for _ in tokenize.tokenize(io.BytesIO(source).readline))
        compile(source, path, "exec")
    return tokens


def pack(paths: list[str]) -> str:
    """Parse, compress and hash Python files: zlib and hashlib release the interpreter's lock."""
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
