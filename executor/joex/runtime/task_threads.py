"""The threads of ``asyncio.to_thread`` in an executor, which its groups share as they share connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from joex.places import Places, leaves_some

P = ParamSpec("P")
T = TypeVar("T")

OWN, _UNKNOWN = ("", "joex"), ("", "unknown")  # (no queue has an empty name)
TENANT: ContextVar[tuple[str, str]] = ContextVar("joex_tenant", default=_UNKNOWN)
"""The queue and the group of the run whose code this is; of Joex's own code, OWN. It is unknown in a thread that a task
has started without its context."""
CALLS: ContextVar[set[Future[Any]] | None] = ContextVar("joex_calls", default=None)
"""Where the calls are that the code of this run has in threads; None: it may leave them behind."""
_MORE = 32  # threads beside one for each slot
_OF_GROUP = min(32, (os.cpu_count() or 1) + 4)
"""The most threads of a group: as many as Python's default gives to all. Where more of them compute, they keep Python's
lock from the event loop."""
_OWN = 16  # for Joex itself


class TaskThreads(ThreadPoolExecutor):
    """The default executor of an event loop. The loop does not wait for its end: tasks may occupy threads for ever.

    Args:
        slots: runs at a time.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots + _MORE + _OWN, thread_name_prefix="asyncio")
        self._places: Places[tuple[str, str]] = Places(slots + _MORE, _may)
        self._lock = threading.Lock()  # of the places: a call ends in its thread

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread, in the turn of the group whose code submits it.

        All calls of which that is not known have the turns of one group.
        """
        tenant = TENANT.get()
        if tenant == OWN:
            return super().submit(fn, *args, **kwargs)
        calls = CALLS.get()
        call = _Call(lambda: fn(*args, **kwargs), lambda: self._given_back(tenant), super().submit)
        if calls is not None:
            calls.add(call.future)
            call.future.add_done_callback(calls.discard)
        with self._lock:
            has_begun = self._places.ask(tenant, call)
        if not has_begun:
            call.future.add_done_callback(lambda future: self._left(tenant, call) if future.cancelled() else None)
        elif call.refusal is not None and call.future.cancel():
            raise call.refusal
        return call.future

    def _left(self, tenant: tuple[str, str], call: _Call) -> None:
        with self._lock:
            self._places.leave(tenant, call)

    def _given_back(self, tenant: tuple[str, str]) -> None:
        with self._lock:
            self._places.give_back(tenant)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as there
        """Begin no more calls."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def _may(tenant: tuple[str, str], has: int, free: int) -> bool:
    return has < _OF_GROUP and leaves_some(tenant, has, free)


class _Call:
    """A call, and its turn."""

    def __init__(self, call: Callable[[], Any], ended: Callable[[], None], submit: Callable[..., Any]) -> None:
        self.future: Future[Any] = Future()
        self.refusal: RuntimeError | None = None
        self._call = call
        self._ended = ended
        self._submit = submit

    def done(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.cancelled()

    def set_result(self, _: None) -> None:
        """It has its turn."""
        try:
            self._submit(self._run)
        except RuntimeError as error:
            # The system has no room for another thread, or the loop closes. (The pool keeps the call for its next free
            # thread all the same, which may even have begun it: where one has just given its place, that one is next.)
            self.refusal = error

    def _run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            self._ended()
            return
        try:
            result = self._call()
        except StopIteration as error:  # no future of asyncio carries it (before Python 3.12 its caller would hang)
            self._ended()
            self.future.set_exception(RuntimeError(f"the call raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - as in the pool itself
            self._ended()  # before its caller goes on, which may ask for the next one
            self.future.set_exception(error)
        else:
            self._ended()
            self.future.set_result(result)
