"""The scopes of roles of the database: see sql/15_access.sql."""

from __future__ import annotations

from dataclasses import dataclass

from joex.store.errors import translated
from joex.store.statement import Connection, statement

_SET_SCOPES = statement("SELECT joex_private.set_scopes($1::text, $2::text[], $3::text[], $4::text[])")
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


async def set_scopes(connection: Connection, role: RoleScopes) -> None:
    """Grant a role these scopes instead of those that it has; none: revoke all. A role that was dropped: as listed.

    Raises:
        InvalidJob: there is no such role or scope, or an executor would be bound.
    """
    with translated():
        await connection.execute(_SET_SCOPES, role.role, role.scopes, role.groups, role.queues)


async def roles(connection: Connection) -> list[RoleScopes]:
    """The roles that have scopes. One that was dropped is ``unknown (OID=...)``."""
    with translated():
        return [RoleScopes(*row) for row in await connection.fetch(_ROLES)]
