"""Pages of lists of keyed jobs, which take much of the event loop to write: their ids are packed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Response

from joex.http.caller import TheCaller
from joex.http.turns import held
from joex.http.visible import MOST_BYTES

MOST_PACKED = MOST_BYTES // 10
"""Bytes of packed types, ids and priorities in one list, which take ten times as long as those of payloads."""
PIECE, _REST = 900, 3
"""A list writes so many of these bytes at a time, and then rests for so many times as long: a tenant, which has one
list written at a time, leaves the event loop most of its time."""
_Row = TypeVar("_Row")


async def _only_page(request: Request, caller: TheCaller) -> AbstractAsyncContextManager[None]:
    return held(request.app.state.turns.of((caller.tenant, "page"), 1), request.app.state.closing)


TheOnlyPage = Annotated[AbstractAsyncContextManager[None], Depends(_only_page)]
"""Held from when a page is read until it is written, which takes longest, and for which others' lists do not wait."""


async def page(
    name: str, rows: Sequence[_Row], packed: Callable[[_Row], int], written: Callable[[_Row], bytes], *, more: bool
) -> Response:
    """Answer with these rows, or as many of them as the limit allows, but one at least.

    They are made piece by piece: in between, the event loop serves other calls and runs.

    Args:
        name: of the rows in the answer.
        rows: of the database.
        packed: the bytes of a row that count.
        written: the JSON of a row.
        more: whether there are others than these.
    """
    texts: list[bytes] = []
    left, piece, time = MOST_PACKED, 0, asyncio.get_running_loop().time
    began = time()
    for row in rows:
        size = packed(row)
        left -= size
        if texts and left < 0:
            more = True
            break
        texts.append(written(row))
        piece += size
        if piece >= PIECE:
            await asyncio.sleep((time() - began) * _REST)
            piece, began = 0, time()
    content = b'{"%b":[%b],"more":%b}' % (name.encode(), b",".join(texts), b"true" if more else b"false")
    return Response(content, media_type="application/json")
