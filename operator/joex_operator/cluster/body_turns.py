"""Turns to have a large part of an answer of the API server in memory: few answers have one at a time.

The API server writes "<", ">" and "&" as six bytes of JSON. So a Deployment of 1.4 MB is 8.4 MB in an answer, and a
page of a list has several. The watches and lists of all namespaces begin at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from joex.places import Places

PART = 2**16
"""Bytes that are read at once."""
SMALL = 2**18
"""Bytes that an answer may have without a turn. aiohttp itself holds twice as many of an answer that is not read."""
_AT_ONCE = 2
"""Each event loop has its own turns. In the operator these are two: its own, and kopf's."""
_WITHIN = 10.0
"""Seconds of a turn. What has not come by then is an error: others wait for the memory that it has."""
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")


class BodyTurns:
    """The turns of one event loop. A namespace has one at a time: its answers may stall one after the other."""

    def __init__(self) -> None:
        self._places: Places[str] = Places(_AT_ONCE, _is_first)

    @asynccontextmanager
    async def turn(self, path: str) -> AsyncIterator[None]:
        """Held while a large part of an answer from this path is in memory.

        Raises:
            TimeoutError: it has taken too long.
        """
        found = _NAMESPACE.search(path)
        async with self._places.one_of(found[1] if found else ""), asyncio.timeout(_WITHIN):
            yield

    @asynccontextmanager
    async def body(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytearray]:
        """The body of an answer, which is gone afterwards.

        Raises:
            TimeoutError: it has taken too long.
        """
        text = bytearray()
        try:
            while len(text) <= SMALL:
                part = await answer.content.read(PART)
                if not part:
                    yield text
                    return
                text += part
            async with self.turn(answer.url.path):
                while part := await answer.content.read(PART):
                    text += part
                    await asyncio.sleep(0)  # a little that is compressed may be all of it, and comes without a pause
                yield text
        except BaseException:
            answer.close()
            raise
        finally:
            text.clear()


def _is_first(_: str, has: int, _free: int) -> bool:
    return not has
