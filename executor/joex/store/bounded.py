"""Lists of rows with payloads (arguments, results, texts), which may be large: a list reads only as many as fit.

The database adds up the sizes of the payloads as clients get them, row by row, and stops where the list is full: it
neither sends nor unpacks the others. (The size in the table would be cheaper, but says little: repetitive payloads
are compressed to a hundredth.) A caller that may not see payloads reads none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from joex.garbage import collection_paused
from joex.store.statement import planned_anew

T = TypeVar("T")
NOTHING = 0
"""Of payloads: none at all."""
UNLIMITED = 2**63 - 1
"""Of payloads: all, however large."""


def listing(heads: str, source: str, payloads: dict[str, str], at: int, key: Sequence[str] = ("id",)) -> str:
    """A statement that lists rows with their payloads; the first columns are ``nr``, and ``size``, of the payloads.

    Its last two parameters: how many bytes of payloads may come; and how many of the first rows (0 or 1) have theirs
    even if these alone are larger. Rows beyond have payloads of null.

    Args:
        heads: selects the rows in order, without payloads; with their ``key``.
        source: the table, or the view, of the payloads.
        payloads: the names and expressions of the payloads. The first is never null in the table.
        at: the number of the first of the last two parameters.
        key: the columns of the key of the table, or the view.
    """
    most, least = f"${at}::bigint", f"${at + 1}::integer"
    size = " + ".join(f"coalesce(octet_length({expression}), 0)" for expression in payloads.values())
    columns = ", ".join(f"{expression} AS {name}" for name, expression in payloads.items())
    keys = ", ".join(f"array_agg({name} ORDER BY nr) AS every_{name}" for name in key)
    is_next = " AND ".join(f"{name} = given.every_{name}[f.nr + 1]" for name in key)
    is_of_head = " AND ".join(f"{name} = h.{name}" for name in key)
    return planned_anew(f"""
        WITH RECURSIVE head AS MATERIALIZED (SELECT row_number() OVER () AS nr, h.* FROM ({heads}) h),
        given AS MATERIALIZED (SELECT {keys} FROM head),
        fitting AS (
            SELECT 0 AS nr, 0::bigint AS bytes, 0::bigint AS size
            UNION ALL
            SELECT f.nr + 1, f.bytes + s.size, s.size FROM fitting f CROSS JOIN given CROSS JOIN LATERAL (
                SELECT ({size})::bigint AS size FROM {source} WHERE {is_next}) s
            WHERE f.bytes < {most} AND {most} < {UNLIMITED}
        )
        SELECT h.*, f.size, p.* FROM head h
        LEFT JOIN fitting f ON f.nr = h.nr AND (f.nr <= {least} OR f.bytes <= {most})
        LEFT JOIN LATERAL (
            SELECT {columns} FROM {source} WHERE {is_of_head} AND (f.nr IS NOT NULL OR {most} = {UNLIMITED}) OFFSET 0
        ) p ON true
        ORDER BY h.nr
    """)  # noqa: S608 - put together of constants


def fitting(rows: Sequence[Any], most_bytes: int, first: str) -> tuple[int, int]:
    """How many of these rows, from the first on, a list takes, but one at least; and how many bytes it then has left.

    Args:
        rows: of statements of `listing`.
        most_bytes: of payloads in the list.
        first: the payload that is never null in the table.
    """
    if most_bytes in (NOTHING, UNLIMITED):
        return len(rows), most_bytes
    left = most_bytes
    for nr, row in enumerate(rows):
        if row[first] is None or (nr and row["size"] > left):
            return nr, 1
        left = max(left - row["size"], 1)  # (0 would mean: no payloads. None has a single byte.)
    return len(rows), left


def read_each(read: Callable[[Any], T], rows: Iterable[Any]) -> list[T]:
    """Read the rows of a list, without the collector of garbage: together their values may be large."""
    with collection_paused():
        return [read(row) for row in rows]
