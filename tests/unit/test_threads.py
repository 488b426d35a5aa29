"""Runs in threads, where the system has no room for another thread."""

import asyncio
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from joex.runtime.calling import Caller
from joex.runtime.run import Defaults
from tests.support.waiting import PATIENCE


class Threads:
    """Two slots, of which a run occupies one until `go`; and another run that would need a second thread."""

    def __init__(self) -> None:
        nothing: Any = None
        self.caller = Caller(2, Defaults(0, timedelta(), None), nothing, None, 1000)
        self.first_begun, self.go, self.begun = threading.Event(), threading.Event(), threading.Event()
        self._run: Any = SimpleNamespace(context=None)

    async def occupy(self) -> asyncio.Task[Any]:
        def first() -> None:
            self.first_begun.set()
            self.go.wait(PATIENCE)

        occupied = asyncio.create_task(self.caller._in_thread(first, self._run))
        await asyncio.to_thread(self.first_begun.wait, PATIENCE)
        return occupied

    async def call(self) -> str:
        def second() -> str:
            self.begun.set()
            return "done"

        result: str = await self.caller._in_thread(second, self._run)
        return result


async def test_code_whose_run_has_failed_for_want_of_a_thread_does_not_run_later(monkeypatch):
    threads = Threads()
    occupied = await threads.occupy()

    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            await threads.call()
    threads.go.set()
    await occupied
    await asyncio.to_thread(threads.caller._threads.shutdown)  # runs what is queued
    assert not threads.begun.is_set()


async def test_code_that_a_thread_has_begun_goes_on_though_there_is_no_room_for_another_thread(monkeypatch):
    threads = Threads()
    occupied = await threads.occupy()

    def start(_):
        threads.go.set()  # the thread of the first run takes the next one at once
        threads.begun.wait(PATIENCE)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert await threads.call() == "done"
    await occupied
    threads.caller.close()
