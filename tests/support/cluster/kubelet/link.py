"""The kubelet's connection to the API, which can be made silent: as if the network between them were cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tests.support.cluster.connection import Connection, Object


class Link(Connection):
    """A connection with a switch. While it is silent, nothing is sent, and nothing that arrives is seen."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._open = asyncio.Event()
        self._open.set()

    def silence(self) -> None:
        """Say nothing more, and hear nothing more."""
        self._open.clear()

    def resume(self) -> None:
        """Speak and listen again."""
        self._open.set()

    async def request(self, method: str, path: str, *arguments: Any, **options: Any) -> Object:
        """Send a request, when the link is open."""
        await self._open.wait()
        return await super().request(method, path, *arguments, **options)

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[Object, None]:
        """The events that arrive, seen when the link is open."""
        async with aclosing(super().watch(path, version, **parameters)) as events:
            async for event in events:
                await self._open.wait()
                yield event
