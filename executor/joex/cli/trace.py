"""``joex stats --trace``: finished jobs as a trace, for ``joex simulate``."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from joex.cli.database import with_connection
from joex.cli.options import read_since
from joex.cli.output import print_json_lines
from joex.store.trace import traced

if TYPE_CHECKING:
    from joex.store.statement import Connection

_EVER = datetime(1970, 1, 1, tzinfo=UTC)


def print_trace(database_url: str | None, *, since: str | None, queue: str | None, anonymous: bool) -> None:
    """Stream a line for each job that has run and finished since then."""
    begin = _EVER if since is None else read_since(since, datetime.now(UTC), "how long ago, such as '24h'")
    name_of = _anonymous() if anonymous else None

    async def work(connection: Connection) -> None:
        async with aclosing(traced(connection, begin, queue)) as batches:
            async for jobs in batches:
                print_json_lines(jobs if name_of is None else [replace(j, group=name_of(j.group)) for j in jobs])

    with_connection(database_url, work)


def _anonymous() -> Callable[[str], str]:
    """Replace names by a hash with a random key, so that a list of your customers doesn't reveal the names."""
    key = secrets.token_bytes(16)

    @cache
    def name_of(group: str) -> str:
        return hashlib.blake2b(group.encode(), key=key, digest_size=8).hexdigest()

    return name_of
