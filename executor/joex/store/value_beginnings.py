"""The beginnings of a job's large values, to show them to people: the values themselves stay in the database."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from uuid import UUID

from joex.store.errors import translated
from joex.store.statement import Connection, statement

_BEGINNINGS = statement("""
    SELECT nr, left(text, $2::integer), length(text), is_json FROM joex.jobs CROSS JOIN LATERAL (
        SELECT nr, value #>> '{}' AS text, jsonb_typeof(value) <> 'string' AS is_json
        FROM (VALUES (1, args), (2, result)) v(nr, value) OFFSET 0) shown
    WHERE id = $1::uuid
""")


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a value: of its JSON text, or of a text that is the value. ``length``: of all, in characters."""

    text: str
    length: int
    is_json: bool = False


async def beginnings(connection: Connection, job_id: UUID, most: int) -> list[Beginning | None]:
    """The first ``most`` characters of the arguments of a job, and of its result: None: it has none."""
    with translated():
        rows = await connection.fetch(_BEGINNINGS, job_id, most)
    return [None if row[1] is None else Beginning(*row[1:]) for row in sorted(rows, key=itemgetter(0))]
