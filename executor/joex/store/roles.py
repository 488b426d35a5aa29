"""The scopes of roles of the database: see sql/15_access.sql and sql/16_rights.sql."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from joex.errors import DatabaseUnavailable
from joex.store import in_the_way, refused_migrations
from joex.store.errors import translated
from joex.store.statement import Connection, statement

_PATIENCE = 5.0
_PAUSE = 0.5
_SET_SCOPES = statement("SELECT joex_private.set_scopes($1::text, $2::text[], $3::text[], $4::text[], $5::boolean)")
_ROLES = statement(
    "SELECT pg_get_userbyid(role) AS role, scopes, groups, queues FROM joex_private.role_scope ORDER BY role::text"
)


@dataclass(frozen=True, slots=True)
class RoleScopes:
    """What a role may do, and in which groups and queues; None: in all."""

    role: str
    scopes: list[str]
    groups: list[str] | None
    queues: list[str] | None


async def set_scopes(connection: Connection, role: RoleScopes, *, patience: float = _PATIENCE) -> None:
    """Grant a role these scopes instead of those that it has; none: revoke all. A role that was dropped: as listed.

    Transactions that begin later have the new scopes; those that are open have them, too, if a role was ever bound
    (REPEATABLE READ and SERIALIZABLE ones are refused then).
    The rights on functions and views may take ``patience`` seconds, because other transactions may have written them.

    Raises:
        InvalidJob: there is no such role or scope, or an executor would be bound.
        DatabaseUnavailable: other transactions have written some rights all the time; the scopes are set.
    """
    until, again = time.monotonic() + patience, False
    with translated():
        while held := await connection.fetchval(_SET_SCOPES, role.role, role.scopes, role.groups, role.queues, again):
            if time.monotonic() >= until:
                line = refused_migrations.named(await in_the_way.writers_of_rights(connection))
                raise DatabaseUnavailable(refused_migrations.rights_in_use(role.role, held, line))
            again = True
            await asyncio.sleep(_PAUSE)


async def roles(connection: Connection) -> list[RoleScopes]:
    """The roles that have scopes. One that was dropped is ``unknown (OID=...)``."""
    with translated():
        return [RoleScopes(*row) for row in await connection.fetch(_ROLES)]
