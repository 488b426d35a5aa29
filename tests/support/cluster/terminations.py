"""Watches how the pods of executors end: no deletion may end an executor that takes or runs jobs."""

import asyncio
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self

from tests.support.cluster.connection import Object
from tests.support.cluster.system import System

_EXECUTOR = """
    SELECT e.app_id, e.draining, (SELECT count(*) FROM joex_private.job j WHERE j.executor_id = e.id) AS held
    FROM joex_private.executor e WHERE e.pod_uid = $1 AND e.left_at IS NULL
"""


class Terminations:
    """The pods whose deletion began while this was open: ``async with Terminations(system) as terminations``.

    An executor that has drained has left, according to the database, before the API server gets the deletion of its
    pod. So the database just after that shows the executors that were ended too early.

    Attributes:
        pods: names of these pods.
        too_early: the rows of their executors that had not left.
    """

    def __init__(self, system: System) -> None:
        self.pods: list[str] = []
        self.too_early: list[dict[str, Any]] = []
        self._system = system
        self._seen: set[str] = set()

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.cancel()
        with suppress(asyncio.CancelledError):
            await self._watching

    async def _watch(self) -> None:
        path = f"/api/v1/namespaces/{self._system.namespace}/pods"
        async with aclosing(self._system.api.states(path)) as states:
            async for pods in states:
                for pod in pods:
                    await self._look(pod)

    async def _look(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if "deletionTimestamp" not in metadata or metadata["uid"] in self._seen:
            return
        self._seen.add(metadata["uid"])
        self.pods.append(metadata["name"])
        self.too_early += map(dict, await self._system.db.fetch(_EXECUTOR, metadata["uid"]))
