"""``joex audit``: who has changed what, and when."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from joex.cli.database import with_connection
from joex.cli.options import AsJson, DatabaseUrl, Limit, read_since
from joex.cli.output import note, print_json, print_table, say
from joex.store.audit import Act, list_acts

_COLUMNS = ("AT", "ROLE", "CALLER", "ACT", "SUBJECT", "QUEUE", "GROUP", "DETAIL")


def audit(
    *,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only what was done since a time, or in the last duration ('1d')."),
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List who has changed what, the latest first.

    Joex keeps this for 90 days. CALLER is on whose behalf the role acted, as it says: for the HTTP interface, the
    name of the token.
    """
    begin = None if since is None else read_since(since, datetime.now(UTC), "a duration, such as 1d")
    found = with_connection(database_url, lambda connection: list_acts(connection, begin, limit + 1))
    if as_json:
        print_json(found[:limit])
    elif found:
        print_table(_COLUMNS, map(_row, found[:limit]))
    else:
        say("nothing was changed")
    if len(found) > limit:
        note("there are more: raise --limit")


def _row(act: Act) -> tuple[object, ...]:
    detail = None if act.detail is None else json.dumps(act.detail, ensure_ascii=False)
    return (act.at, act.role, act.caller, act.act, act.subject, act.queue, act.group, detail)
