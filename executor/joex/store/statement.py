"""The register of all statements, so that a test can prepare each one against the migrated schema; their arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from asyncpg import Connection as AsyncpgConnection
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = AsyncpgConnection[Any] | PoolConnectionProxy[Any]
else:
    Connection = Any
"""An asyncpg connection, the caller's own or one of a pool."""

T = TypeVar("T")
STATEMENTS: list[str] = []
PLANNED_ANEW: set[str] = set()
"""Those of `planned_anew`."""


def statement(sql: str) -> str:
    """Register a statement."""
    STATEMENTS.append(sql)
    return sql


def planned_anew(sql: str) -> str:
    """Register a statement whose best plan depends on its arguments, such as a filter that may be left out.

    The server would keep one plan for all arguments, once those of a few calls have made it seem as cheap: then a list
    of one tenant takes a hundred times as long because of another's.
    """
    PLANNED_ANEW.add(sql)
    return statement(sql)


def columns(of: type[Any], leave_out: Collection[str] = (), **expressions: str) -> str:
    """The columns of a dataclass or a named tuple: its fields in their order, or these expressions instead."""
    names = [name for name in of.__match_args__ if name not in leave_out]
    return ", ".join(f'{expressions[name]} AS "{name}"' if name in expressions else name for name in names)


def id_of(value: Any) -> Any:
    """An id that a statement gave, or None, as a UUID: a connection of the caller may load ids as text."""
    return value if value is None or isinstance(value, UUID) else UUID(str(value))


def column(values: list[T | None] | None) -> list[T | None] | None:
    """A field of many rows, for an array that SQL unnests beside others; None (the same in SQL) if no row has it."""
    return None if values is None or values.count(None) == len(values) else values
