"""The end of a process that must not wait for anything."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from joex.log_stream import write_at_once

if TYPE_CHECKING:
    import asyncio

_SAY_WITHIN = 0.5  # seconds

left_tasks: list[asyncio.Task[Any]] = []
"""The asyncio tasks that did not end with their loop. (Kept, because their code may go on when Python frees them.)"""


def exit_at_once(code: int, why: str) -> NoReturn:
    """Exit without any cleanup; say why, unless standard error takes nothing: a full pipe would block for ever."""

    def say() -> None:
        with suppress(Exception):
            write_at_once(f"joex: {why}\n")

    with suppress(Exception):  # there may be no room for another thread
        speaker = threading.Thread(target=say, daemon=True)
        speaker.start()
        speaker.join(_SAY_WITHIN)
    os._exit(code)
