"""``joex roles``: what roles of the database may do."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from joex.cli.database import with_connection
from joex.cli.options import AsJson, DatabaseUrl, is_alone
from joex.cli.output import print_json, print_table, say
from joex.store.roles import RoleScopes, set_scopes
from joex.store.roles import roles as read_roles

Role: TypeAlias = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the database server.")]

roles_app = typer.Typer()


@roles_app.callback(invoke_without_command=True)
def roles(context: typer.Context, *, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List what roles of the database may do, or change it.

    The role that has migrated the database may do everything. All others need a grant.
    """
    if is_alone(context, as_json, database_url):
        list_command(as_json=as_json, database_url=database_url)


@roles_app.command("list")
def list_command(*, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the roles that have scopes."""
    found = with_connection(database_url, read_roles)
    if as_json:
        print_json(found)
    elif found:
        print_table(("ROLE", "SCOPES", "GROUPS", "QUEUES"), map(_row, found))
    else:
        say("no role has scopes: only the owner of the schema may use it")


@roles_app.command("grant")
def grant_command(
    role: Role,
    *,
    scope: Annotated[
        list[str],
        typer.Option(metavar="SCOPE", help="view, payloads, submit, work, operate or executor. Repeat it for more."),
    ],
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only in this group. Repeat it for more.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only in this queue. Repeat it for more.")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Grant a role these scopes, instead of those that it has.

    Only the owner of the schema can do this. A role that is bound to groups or queues does not see anything else.
    """
    wanted = RoleScopes(role, sorted(set(scope)), sorted(set(group or ())) or None, sorted(set(queue or ())) or None)
    with_connection(database_url, lambda connection: set_scopes(connection, wanted))
    say(f"{role}: {', '.join(wanted.scopes)}{_bounds(wanted)}")


@roles_app.command("revoke")
def revoke_command(role: Role, *, database_url: DatabaseUrl = None) -> None:
    """Revoke all scopes of a role."""
    with_connection(database_url, lambda connection: set_scopes(connection, RoleScopes(role, [], None, None)))
    say(f"{role}: no scopes")


def _row(one: RoleScopes) -> tuple[object, ...]:
    return (one.role, *(", ".join(names) if names else None for names in (one.scopes, one.groups, one.queues)))


def _bounds(one: RoleScopes) -> str:
    parts = [f"{what} {', '.join(names)}" for what, names in (("groups", one.groups), ("queues", one.queues)) if names]
    return f", only in {' and '.join(parts)}" if parts else ""
