"""``joex tokens``: the tokens of programs that call the HTTP interface."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.database import with_connection
from joex.cli.options import AsJson, DatabaseUrl, is_alone
from joex.cli.output import note, print_json, print_table, say
from joex.core.access import Scope
from joex.core.duration import parse_duration
from joex.core.job import check_name
from joex.errors import ConfigError, JoexError
from joex.store.tokens import Token, create, list_tokens, revoke

if TYPE_CHECKING:
    from joex.store.statement import Connection

_COLUMNS = ("NAME", "SCOPES", "GROUPS", "QUEUES", "CREATED", "EXPIRES", "LAST USED")
_MOST_BOUNDS = 100
_SCOPES = ", ".join(Scope)

tokens_app = typer.Typer()


@tokens_app.callback(invoke_without_command=True)
def tokens(context: typer.Context, *, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the tokens of programs that call the HTTP interface; create or revoke them."""
    if is_alone(context, as_json, database_url):
        list_command(as_json=as_json, database_url=database_url)


@tokens_app.command("list")
def list_command(*, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """List the tokens: what they may do, and when a call used them last.

    The tokens themselves are shown only when they are created. LAST USED is at most a minute late.
    """
    found = with_connection(database_url, list_tokens)
    if as_json:
        print_json(found)
    elif found:
        print_table(_COLUMNS, map(_row, found))
    else:
        say("there are no tokens")


@tokens_app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, for the list and to revoke it.")],
    *,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="SCOPE", help=f"What it may do: {_SCOPES}. Repeatable.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", metavar="NAME", help="Bind it to this group. Repeatable.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="NAME", help="Bind it to this queue. Repeatable.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it is valid ('90d'); default: until you revoke it.")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create a token, and print it, this once.

    A bound token reaches only jobs of its groups and queues, and can't tell whether there are others.
    """
    _check_name("NAME", name)
    scopes = _scopes(scope or [])
    groups, queues = _bounds("--group", group or []), _bounds("--queue", queue or [])
    if groups is not None and Scope.WORK in scopes:
        raise ConfigError("--group: a worker accepts jobs of all groups of a queue: bind the scope work with --queue")
    valid_for = _duration(expires)

    async def work(connection: Connection) -> str | None:
        return await create(connection, name, scopes, groups=groups, queues=queues, expires=valid_for)

    token = with_connection(database_url, work)
    if token is None:
        raise ConfigError(f"NAME: there is a token {name!r} already: choose another name, or revoke that one first")
    say(token)
    note("this is the only time that the token is shown: only its hash is stored")


@tokens_app.command("revoke")
def revoke_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token.")],
    *,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a token. Executors refuse it within two seconds."""
    _check_name("NAME", name)
    if not with_connection(database_url, lambda connection: revoke(connection, name)):
        raise JoexError(f"there is no token {name!r}")
    say(f"token {name} is revoked")


def _scopes(given: list[str]) -> list[str]:
    """Check the scopes, and return each once, in the order of `Scope`."""
    for scope in given:
        if scope not in list(Scope):  # (a StrEnum itself takes no text here before Python 3.12)
            raise ConfigError(f"--scope: expected some of {_SCOPES}; got {scope!r}")
    if not given:
        raise ConfigError(f"--scope: say what the token may do: some of {_SCOPES}")
    if Scope.PAYLOADS in given and not {Scope.VIEW, Scope.SUBMIT} & set(given):
        raise ConfigError("--scope: payloads adds arguments, results and logs to what view or submit shows: add one")
    return [str(scope) for scope in Scope if scope in given]


def _bounds(option: str, given: list[str]) -> list[str] | None:
    for name in given:
        _check_name(option, name)
    names = list(dict.fromkeys(given))
    if len(names) > _MOST_BOUNDS:
        raise ConfigError(f"{option}: at most {_MOST_BOUNDS}; got {len(names)}")
    return names or None


def _duration(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--expires: {error}") from error
    if not duration:
        raise ConfigError(f"--expires: expected more than 0; got {text!r}")
    return duration


def _check_name(option: str, name: str) -> None:
    try:
        check_name(option, name)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _row(token: Token) -> tuple[object, ...]:
    return (
        token.name, token.scopes, token.groups or "all", token.queues or "all",
        token.created_at, token.expires_at or "never", token.last_used_at or "never",
    )  # fmt: skip
