"""The scrapes of metrics that wait share one rendering: of executors and of operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Scrapes:
    """Renders the metrics once for all scrapes that wait: any caller may send hundreds at a time.

    Args:
        render: returns the page, and its content type.
    """

    def __init__(self, render: Callable[[], tuple[bytes, str]]) -> None:
        self._render = render
        self._next: asyncio.Task[tuple[bytes, str]] | None = None

    async def page(self) -> tuple[bytes, str]:
        """What ``render`` returns, of a rendering that begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._render_next(), name="joex metrics")
        return await asyncio.shield(self._next)  # others may wait for it

    async def _render_next(self) -> tuple[bytes, str]:
        self._next = None
        return self._render()
