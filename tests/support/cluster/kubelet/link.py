"""The kubelet's connection to the API, with a switch that makes it silent, as a cut network does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tests.support.cluster.connection import Connection, Object


class Link(Connection):
    """A connection with a switch. While it is silent, it sends nothing, and holds back arriving data."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._open = asyncio.Event()
        self._open.set()

    def silence(self) -> None:
        """Stop sending and receiving."""
        self._open.clear()

    def resume(self) -> None:
        """Send and receive again."""
        self._open.set()

    async def request(self, method: str, path: str, *arguments: Any, **options: Any) -> Object:
        """Send a request when the link is open."""
        await self._open.wait()
        return await super().request(method, path, *arguments, **options)

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[Object, None]:
        """The arriving events, passed on when the link is open."""
        async with aclosing(super().watch(path, version, **parameters)) as events:
            async for event in events:
                await self._open.wait()
                yield event
