"""What all calls share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from joex.core.duration import parse_duration
from joex.core.job import check_retries
from joex.core.json_values import shown
from joex.errors import ConfigError
from joex.store import keyed
from joex.store.statement import Connection
from joex.typed.job import name_of, pack

if TYPE_CHECKING:
    from joex.client import Client


class Face:
    """Calls through a client."""

    def __init__(
        self,
        client: Client,
        *,
        retries: int = 5,
        retry_delay: timedelta | float | str = timedelta(minutes=1),
        retry_jitter: float = 0.1,
    ) -> None:
        try:
            check_retries("retries", retries)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        try:
            self._retry_delay = parse_duration(retry_delay)
        except ValueError as error:
            raise ConfigError(f"retry_delay: {error}") from error
        if not isinstance(retry_jitter, int | float) or not 0 <= retry_jitter <= 1:  # type: ignore[redundant-expr] # a caller
            raise ConfigError(f"retry_jitter: expected 0 to 1; got {shown(retry_jitter)}")
        self._client = client
        self._retries = retries
        self._retry_jitter = retry_jitter

    @asynccontextmanager
    async def _found(
        self, job_type: Any, job_id: Any, connection: Connection | None
    ) -> AsyncIterator[tuple[Connection, UUID | None]]:
        name, key = name_of("type", job_type), pack("id", job_id)
        async with self._client.using(connection) as used:
            yield used, await keyed.find(used, name, key)
