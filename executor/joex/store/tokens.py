"""API tokens. The database has only their hashes, so that nobody who reads it can use one."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from joex.errors import ConfigError, JoexError
from joex.store import audit
from joex.store.errors import translated
from joex.store.statement import Connection, columns, statement

PREFIX = "joex_"
"""Each token begins with it, so that scanners of source code find tokens."""
_RANDOM_BYTES = 32

OWNER = "owner"
"""The name of the caller with JOEX_API_TOKEN, and of programs on the executor's machine that need none."""

_CREATE = statement("""
    INSERT INTO joex_private.api_token (name, digest, scopes, groups, queues, expires_at)
    VALUES ($1::text, $2::bytea, $3::text[], $4::text[], $5::text[], clock_timestamp() + $6::interval)
    ON CONFLICT (name) DO NOTHING RETURNING id
""")
_REVOKE = statement("DELETE FROM joex_private.api_token WHERE name = $1::text")
_FIND = statement("""
    SELECT id, name, scopes, groups, queues, extract(epoch FROM expires_at - clock_timestamp())::float8 AS seconds_left,
           coalesce(last_used_at < clock_timestamp() - interval '1 minute', true) AS is_to_be_marked
    FROM joex_private.api_token
    WHERE digest = $1::bytea AND (expires_at IS NULL OR expires_at > clock_timestamp())
""")
# (A session that has locked the row must not hold up the calls of the token.)
_MARK_USED = statement("""
    UPDATE joex_private.api_token SET last_used_at = clock_timestamp() WHERE id = (
        SELECT id FROM joex_private.api_token WHERE id = $1::bigint FOR NO KEY UPDATE SKIP LOCKED)
""")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is listed. ``groups``, ``queues``: None: all. ``expires_at``: None: never. Used at: to a minute."""

    name: str
    scopes: list[str]
    groups: list[str] | None
    queues: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Found:
    """A token that a call has carried, and that is valid for ``seconds_left``; None: without an end."""

    name: str
    scopes: list[str]
    groups: list[str] | None
    queues: list[str] | None
    seconds_left: float | None


_LIST = statement(f"SELECT {columns(Token)} FROM joex_private.api_token ORDER BY name")  # noqa: S608 - put together of constants


def digest_of(token: str) -> bytes:
    """The hash that is stored of a token: of one round, because a token is random, not a password to guess."""
    return hashlib.sha256(token.encode()).digest()


async def create(
    connection: Connection,
    name: str,
    scopes: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    queues: Sequence[str] | None = None,
    expires: timedelta | None = None,
) -> str | None:
    """Create a token.

    Args:
        connection: creates it in this connection's transaction.
        name: its name, 1 to 254 bytes of printable characters.
        scopes: what it may do (see `joex.core.access.Scope`).
        groups: the groups that it is bound to; None: all.
        queues: the queues that it is bound to; None: all.
        expires: how long it is valid; None: until it is revoked.

    Returns:
        The token, which this shows once; None: there is a token of this name.
    """
    if name == OWNER:
        raise ConfigError(
            f"NAME: {OWNER!r} is the name of the caller with JOEX_API_TOKEN in the audit: choose another one"
        )
    if name != name.strip() or not name.isprintable():
        raise ConfigError(
            f"NAME: expected printable characters without spaces around them, as the list shows them; got {name!r}"
        )
    token = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    with translated():
        async with connection.transaction():
            created = await connection.fetchval(_CREATE, name, digest_of(token), scopes, groups, queues, expires)
            if created is None:
                return None
            await audit.note(
                connection, "create_token", name, {"scopes": list(scopes), "groups": groups, "queues": queues}
            )
    return token


async def revoke(connection: Connection, name: str) -> bool:
    """Revoke a token; False: there is none of this name."""
    with translated():
        async with connection.transaction():
            is_revoked = await connection.execute(_REVOKE, name) != "DELETE 0"
            if is_revoked:
                await audit.note(connection, "revoke_token", name)
    return is_revoked


async def list_tokens(connection: Connection) -> list[Token]:
    """All tokens, the expired ones too, in the order of their names."""
    with translated():
        return [Token(*row) for row in await connection.fetch(_LIST)]


async def find(connection: Connection, digest: bytes) -> Found | None:
    """The token with this digest, unless it has expired; notes, once a minute, that it was used."""
    with translated():
        row: Any = await connection.fetchrow(_FIND, digest)
    if row is None:
        return None
    if row["is_to_be_marked"]:
        with suppress(JoexError), translated():  # a standby still serves reads
            await connection.execute(_MARK_USED, row["id"])
    return Found(row["name"], row["scopes"], row["groups"], row["queues"], row["seconds_left"])
