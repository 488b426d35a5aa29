"""The register of all statements, so that a test can prepare each one against the migrated schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from asyncpg import Connection as AsyncpgConnection
    from asyncpg.pool import PoolConnectionProxy

    Connection: TypeAlias = AsyncpgConnection[Any] | PoolConnectionProxy[Any]
else:
    Connection = Any
"""An asyncpg connection, the caller's own or one of a pool."""

STATEMENTS: list[str] = []


def statement(sql: str) -> str:
    """Register a statement."""
    STATEMENTS.append(sql)
    return sql
