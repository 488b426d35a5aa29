"""What all calls share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

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
        retry_delay: timedelta = timedelta(minutes=1),
        retry_jitter: float = 0.1,
    ) -> None:
        self._client = client
        self._retries = retries
        self._retry_delay = retry_delay
        self._retry_jitter = retry_jitter

    @asynccontextmanager
    async def _found(
        self, job_type: Any, job_id: Any, connection: Connection | None
    ) -> AsyncIterator[tuple[Connection, UUID | None]]:
        name, key = name_of("type", job_type), pack("id", job_id)
        async with self._client.using(connection) as used:
            yield used, await keyed.find(used, name, key)
