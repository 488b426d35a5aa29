"""The pods that are bound to this node: a worker for each, even while the API is down."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from itertools import cycle

from tests.support.cluster.connection import Connection
from tests.support.cluster.kubelet.environment import Json
from tests.support.cluster.kubelet.pod import PodWorker
from tests.support.cluster.kubelet.settings import Settings

_MOST = 250


class Pods:
    """Follows the API, level-triggered: it runs bound pods, ends pods in deletion, and kills pods that are gone."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = cycle(range(1, _MOST))

    def __getitem__(self, uid: str) -> PodWorker:
        if uid not in self._workers:
            raise LookupError(f"no pod {uid} on the node {self._settings.node}")
        return self._workers[uid]

    async def follow(self) -> None:
        """Follow the API, for ever."""
        selector = f"spec.nodeName={self._settings.node}"
        async with aclosing(self._connection.states("/api/v1/pods", fieldSelector=selector)) as states:
            async for pods in states:
                self._see({pod["metadata"]["uid"]: pod for pod in pods})

    def _see(self, pods: dict[str, Json]) -> None:
        for uid, pod in pods.items():
            if uid not in self._workers:
                self._see_new(uid, pod)
            elif not self._workers[uid].is_done:
                self._workers[uid].update(pod)
            elif pod["metadata"].get("deletionTimestamp"):
                self._in_background(self._workers[uid].remove())
        for uid in self._workers.keys() - pods.keys():
            worker = self._workers[uid]
            if worker.is_done:
                del self._workers[uid]
            else:
                worker.removed()

    def _see_new(self, uid: str, pod: Json) -> None:
        has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        is_deleted = bool(pod["metadata"].get("deletionTimestamp"))
        if has_ended and not is_deleted:
            return
        worker = PodWorker(self._settings, self._connection, pod, self._address(pod))
        if is_deleted:  # no process of it runs here
            worker.is_done = True
            self._in_background(worker.remove())
        else:
            self._in_background(worker.run())
        self._workers[uid] = worker

    def _address(self, pod: Json) -> str:
        if pod["spec"].get("hostNetwork"):
            return self._settings.address
        taken = {worker.address for worker in self._workers.values() if not worker.is_done}
        for number in self._numbers:
            address = f"{self._settings.network}.{number}"
            if address not in taken:
                return address
        raise AssertionError

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise SystemExit(f"a pod's worker failed: {task.exception()!r}") from task.exception()
