"""An app with one task: read a Python file, and count what it defines.

Run an executor with it, hand in a file for the tenant "acme", and look at the result::

    joex executor --app joex.examples.documents:app
    joex submit documents.count --arg path=/usr/lib/python3.11/json/decoder.py --group acme
    joex show ID

``make demo`` runs it on the standard library, for four tenants at once.
"""

from __future__ import annotations

import ast
import dis
import io
import symtable
import threading
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import joex

app: joex.App = joex.App()

# Python 3.11 counts the depth of syntax trees for all threads together, and raises a SystemError if a thread starts one
# while another thread's is half built: garbage collection in the middle of it lets other threads run.
_one_tree = threading.Lock()


@dataclass(frozen=True)
class Counts:
    """What a file defines: the result of the task, which Joex stores as JSON."""

    lines: int
    comments: int
    functions: int
    classes: int
    imports: int
    names: int
    instructions: int


# A plain function runs in a thread, so it may compute for long without holding up the executor. The arguments come by
# name and are checked against the annotations before it is called: a job without a path fails at once, saying so.
@app.task("documents.count", retries=2, retry_delay="2s")
def count(ctx: joex.Context, path: Path) -> Counts:
    """Count what a Python file defines."""
    ctx.log.info("reading %s for %s, try %d", path.name, ctx.group, ctx.attempt)
    try:
        with tokenize.open(path) as file:  # in the encoding that it declares
            source = file.read()
        with _one_tree:
            tree = ast.parse(source, filename=str(path))
    except FileNotFoundError:
        raise joex.Fail(f"there is no file {path}") from None  # final: no retry would help
    except (SyntaxError, ValueError) as error:
        # The file may have arrived only in part so far. Any other error that a task raises leads to a retry, too.
        raise joex.Retry(f"{path.name} is not Python, or not complete: {error}") from error
    ctx.check_cancelled()  # a good place to stop, if the job was cancelled
    ctx.progress(50, "parsed")
    return Counts(
        lines=source.count("\n"),
        comments=_comments(source),
        functions=_nodes(tree, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
        classes=_nodes(tree, ast.ClassDef),
        imports=_nodes(tree, ast.Import, ast.ImportFrom),
        names=_names(symtable.symtable(source, str(path), "exec")),
        instructions=_instructions(compile(tree, str(path), "exec")),
    )


def _nodes(tree: ast.AST, *kinds: type[ast.AST]) -> int:
    return sum(isinstance(node, kinds) for node in ast.walk(tree))


def _comments(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def _names(table: symtable.SymbolTable) -> int:
    return len(table.get_symbols()) + sum(map(_names, table.get_children()))


def _instructions(code: CodeType) -> int:
    return sum(1 for part in _code(code) for _ in dis.get_instructions(part))


def _code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
