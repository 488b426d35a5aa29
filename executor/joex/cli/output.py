"""What commands print: lines and tables for people, JSON for programs.

Texts of jobs are untrusted input: control characters could take over a terminal, so they are printed as escapes, and no
text is read as markup.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from joex.core.duration import format_duration, span
from joex.core.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_WIDEST_CELL = 60
_WIDEST_TABLE = 10_000
_MOST_LEVELS = 8
_LONG = 10_000


def note(message: str) -> None:
    """Print a remark on stderr, apart from the answer."""
    sys.stderr.write(f"joex: {printable(message)}\n")


def say(line: str = "") -> None:
    """Print a line."""
    sys.stdout.write(f"{printable(line)}\n")


def print_json(value: object) -> None:
    """Print a JSON value: dataclasses become objects, times are ISO 8601 in UTC, durations as in settings."""
    sys.stdout.write(_readable(_indented(value)) + "\n")


def print_json_line(value: object) -> None:
    """Print a JSON value as one line, at once: for streams."""
    print_json_lines([value])


def print_json_lines(values: Iterable[object]) -> None:
    """Print JSON values, a line each, and all of them at once."""
    sys.stdout.writelines(_readable(_compact(value)) + "\n" for value in values)
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[str] = ()) -> None:
    """Print a table; the columns named in ``numbers`` are flush right."""
    print_block(make_table(columns, rows, numbers=numbers))


def print_block(block: RenderableType) -> None:
    """Print a table in its full width, in a terminal too, because users could not copy an id that is cut."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and --json does not need it

    Console(width=_WIDEST_TABLE).print(block)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[str] = ()) -> Table:
    """Return a table as `print_table` prints it."""
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_number = name in numbers
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cut(shown(cell))) for cell in row))
    return table


def shown(cell: object) -> str:
    """Return a value as one line of readable text."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, datetime):
        return iso(cell)
    if isinstance(cell, list | tuple):
        return ",".join(shown(part) for part in cell)
    return " ".join(printable(str(cell)).split("\n"))


def iso(moment: datetime) -> str:
    """Return a time in ISO 8601, in UTC.

    >>> iso(datetime(2026, 1, 31, 3, 0, tzinfo=UTC))
    '2026-01-31T03:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def ago(moment: datetime | None) -> str:
    """Return how long ago a time was, in whole seconds of the local clock."""
    return span(None if moment is None else (datetime.now(UTC) - moment) // timedelta(seconds=1))


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST_CELL else f"{text[: _WIDEST_CELL - 1]}…"


def _compact(value: object) -> str:
    return json.dumps(value, default=_json_value, ensure_ascii=False, allow_nan=False)


def _indented(value: object, level: int = 0) -> str:
    """JSON, a line for each part; but those of a part that is long, or lies deep, are in its line.

    The arguments of a job may have 200 levels. With the margins of each, a megabyte would become a hundred.
    """
    parts = value if isinstance(value, dict | list | tuple) else _fields(value)
    if not parts or (level and (level == _MOST_LEVELS or _is_long(parts))):
        return _compact(value)
    begin, margin, end = "\n" + "  " * (level + 1), ",\n" + "  " * (level + 1), "\n" + "  " * level
    if isinstance(parts, dict):
        lines = [f"{_compact(str(name))}: {_indented(each, level + 1)}" for name, each in parts.items()]
        return "{" + begin + margin.join(lines) + end + "}"
    return "[" + begin + margin.join(_indented(each, level + 1) for each in parts) + end + "]"


def _is_long(parts: dict[str, object] | list[object] | tuple[object, ...]) -> bool:
    # (A list of jobs, or of the lines of a log, has a line for each field.)
    is_of_ours = not isinstance(parts, dict) and bool(_fields(parts[0]))
    return not is_of_ours and len(_compact(parts)) > _LONG


def _readable(text: str) -> str:
    """JSON for programs, which may end in a terminal all the same: in strings, what can't be printed is escaped."""
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def _fields(value: object) -> dict[str, object]:
    """The fields of a dataclass; of any other value, none."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _json_value(value: object) -> object:
    if fields := _fields(value):
        return fields
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
