"""Work for processors: Python files are parsed, compressed and hashed. It imports nothing of Joex: peers do it too."""

from __future__ import annotations

import hashlib
import io
import tokenize
import zlib
from pathlib import Path


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
