"""How groups share the threads of ``asyncio.to_thread``."""

import asyncio
import contextvars
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from joex.event_loop import new_event_loop
from joex.runtime import task_threads
from joex.runtime.task_threads import OWN, TENANT, TaskThreads
from tests.support.waiting import PATIENCE, eventually


class Threads:
    """Threads of an executor with four slots, and calls of groups."""

    def __init__(self) -> None:
        self.pool = TaskThreads(4)
        self.over = threading.Event()
        self.begun: list[str] = []

    def of(self, group: str, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """The code of a run of this group."""
        return self._of(("default", group), work)

    def of_joex(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Joex's own code."""
        return self._of(OWN, work)

    def _of(self, tenant: tuple[str, str], work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        variables = contextvars.copy_context()
        variables.run(TENANT.set, tenant)
        return asyncio.get_running_loop().create_task(work, context=variables)

    def call(self, group: str, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """A call by the code of a run of this group."""
        return self.of(group, asyncio.to_thread(function))

    def hold(self, group: str) -> asyncio.Future[Any]:
        """A call that keeps its thread."""

        def wait() -> None:
            self.begun.append(group)
            self.over.wait()

        return self.call(group, wait)


@pytest.fixture(autouse=True)
def most_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_threads, "_OF_GROUP", 6)


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    threads = Threads()
    asyncio.get_running_loop().set_default_executor(threads.pool)
    yield threads
    threads.over.set()


async def test_calls_of_a_group_that_take_for_ever_leave_threads_to_others(threads: Threads) -> None:
    held = [threads.hold("many") for _ in range(100)]
    for _ in range(50):
        assert await asyncio.wait_for(threads.call("few", lambda: "done"), PATIENCE) == "done"
    await eventually(lambda: len(threads.begun) == 6, why="they have as many as a group may have")
    threads.over.set()
    await asyncio.gather(*held)
    assert len(threads.begun) == 100


async def test_calls_from_threads_without_a_context_share_as_those_of_a_group(threads: Threads) -> None:
    """A client of a broker, say, calls back in a thread of its own, and its handler goes to the loop from there."""
    loop = asyncio.get_running_loop()

    handlers: list[Future[None]] = []

    async def handle() -> None:
        await asyncio.to_thread(threads.over.wait)

    def call_back() -> None:
        handlers.extend(asyncio.run_coroutine_threadsafe(handle(), loop) for _ in range(100))

    thread = threading.Thread(target=call_back)
    thread.start()
    await eventually(lambda: not thread.is_alive())
    held = [threads.hold("many") for _ in range(100)]
    assert await asyncio.wait_for(threads.call("few", lambda: "done"), PATIENCE) == "done"
    assert await asyncio.wait_for(threads.of_joex(asyncio.to_thread(lambda: "done")), PATIENCE) == "done"
    threads.over.set()
    ends = asyncio.gather(*held, *map(asyncio.wrap_future, handlers))
    await asyncio.wait_for(ends, PATIENCE)


async def test_a_call_that_was_cancelled_while_it_waited_keeps_no_thread(threads: Threads) -> None:
    held = [threads.hold("many") for _ in range(6)]
    cancelled = [threads.hold("many") for _ in range(10)]
    await asyncio.wait_for(threads.call("few", lambda: None), PATIENCE)
    for call in cancelled:
        call.cancel()
    await asyncio.wait(cancelled)
    following = threads.call("many", threads.over.is_set)
    threads.over.set()
    assert await asyncio.wait_for(following, PATIENCE)
    await asyncio.gather(*held)
    assert len(threads.begun) == 6


async def test_groups_that_come_one_after_the_other_leave_threads_to_further_ones(threads: Threads) -> None:
    held = [threads.hold(f"group {nr}") for nr in range(5) for _ in range(100)]
    assert await asyncio.wait_for(threads.call("few", lambda: "done"), PATIENCE) == "done"
    await eventually(lambda: len(threads.begun) == 30, why="five groups have six each")
    threads.over.set()
    await asyncio.gather(*held)


async def test_a_call_that_raises_stop_iteration_has_an_end(threads: Threads) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(threads.call("many", lambda: next(iter(()))), PATIENCE)


async def test_an_error_of_a_call_reaches_its_caller_and_frees_its_thread(threads: Threads) -> None:
    for _ in range(50):
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(threads.call("many", lambda: 1 / 0), PATIENCE)


async def test_a_call_for_which_the_system_has_no_thread_fails(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await threads.call("many", lambda: None)
    assert await threads.call("many", lambda: "done") == "done"


@pytest.mark.parametrize("how", ["look-ups", "streams"])
def test_look_ups_of_names_that_take_for_ever_leave_threads_to_others(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A submitter may choose the host, and so its name server, of a webhook, say."""

    async def connect(name: str, port: int) -> None:
        if how == "look-ups":
            await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        else:
            _, writer = await asyncio.open_connection(name, port)
            writer.close()

    async def main() -> None:
        threads = Threads()
        asyncio.get_running_loop().set_default_executor(threads.pool)
        look_up = socket.getaddrinfo

        def look_up_slowly(host: str, *args: Any, **more: Any) -> Any:
            if host == "slow" and not more.get("flags"):
                threads.over.wait()
                raise socket.gaierror
            return look_up(host, *args, **more)

        monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        slow = [threads.of("many", connect("slow", port)) for _ in range(100)]
        try:
            await asyncio.wait_for(threads.of("few", connect("localhost", port)), PATIENCE)
            assert not any(one.done() for one in slow)
        finally:
            threads.over.set()
            await asyncio.wait(slow)
            server.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
