"""A pod on this node, from its binding to its end: init containers, containers, status, deletion."""

import asyncio
import contextlib
from typing import Any

import httpx

from tests.support.cluster.connection import STRATEGIC_PATCH, ApiError, Connection
from tests.support.cluster.kubelet.container import Container, Surroundings, now
from tests.support.cluster.kubelet.environment import ConfigProblem, Json
from tests.support.cluster.kubelet.launching import Launcher
from tests.support.cluster.kubelet.process import Backoff
from tests.support.cluster.kubelet.settings import Settings
from tests.support.cluster.kubelet.status import ContainerState, PodState, terminated, waiting
from tests.support.cluster.kubelet.stop import Stop

_AGAIN = 0.2
_DEFAULT_GRACE = 30
_LOST = 137


class PodWorker:
    """Runs one pod.

    `run` ends with the pod's containers; if the object in the API is being deleted, it is removed then.
    """

    def __init__(self, settings: Settings, connection: Connection, pod: Json, address: str) -> None:
        self.pod = pod
        self.address = address
        self.is_done = False
        self._settings = settings
        self._connection = connection
        self._stop = Stop()
        self._dirty = asyncio.Event()
        self._launcher = Launcher(settings, connection, pod, address)
        spec = pod["spec"]
        self._grace = float(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE))
        self._init = [
            self._container(one, "initContainerStatuses", is_init=True) for one in spec.get("initContainers", [])
        ]
        self._main = [self._container(one, "containerStatuses") for one in spec["containers"]]
        self.state = PodState(
            address,
            settings.address,
            pod.get("status", {}).get("startTime") or now(),
            [container.state for container in self._init],
            [container.state for container in self._main],
        )

    async def run(self) -> None:
        """Run the pod to its end, and keep the API informed."""
        reporter = asyncio.ensure_future(self._keep_reporting())
        try:
            self._dirty.set()
            if await self._write_volumes() and await self._run_init():
                await asyncio.gather(*(container.run() for container in self._main))
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)
        for container in [*self._init, *self._main]:
            if not container.state.ended:
                container.end()
        await self._report()
        self.is_done = True
        if self.pod["metadata"].get("deletionTimestamp"):
            await self.remove()

    def update(self, pod: Json) -> None:
        """Apply a change of the pod in the API."""
        self.pod = pod
        if not self.state.is_told(pod):
            self._dirty.set()
        if pod["metadata"].get("deletionTimestamp"):
            self.terminate(pod["metadata"].get("deletionGracePeriodSeconds", self._grace))

    def terminate(self, grace: float) -> None:
        """End all containers. A process gets one second in any case."""
        self._stop.request(max(grace, 1.0))

    def removed(self) -> None:
        """Apply the forced deletion of the pod from the API: its processes end as soon as they can."""
        self.terminate(1.0)

    def evict(self, message: str, grace: float) -> None:
        """Evict the pod; its object stays, as failed."""
        self.state.failure = {"reason": "Evicted", "message": message}
        self._stop.request(grace)

    def container(self, name: str) -> Container:
        """A container by its name, the first if the name is empty."""
        for container in [*self._main, *self._init]:
            if name in ("", container.state.name):
                return container
        raise LookupError(f"the pod has no container {name}")

    async def remove(self) -> None:
        """Remove the object from the API, which ends the deletion of a pod."""
        uid = self.pod["metadata"]["uid"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self._until_accepted("DELETE", self._path, body)

    def _container(self, spec: Json, kept: str, *, is_init: bool = False) -> Container:
        state = ContainerState(spec["name"], spec["image"])
        _remember(state, self.pod.get("status", {}).get(kept) or [])
        if not is_init and self.pod["spec"].get("initContainers"):
            state.state = waiting("PodInitializing")
        policy = self.pod["spec"].get("restartPolicy", "Always")
        around = Surroundings(
            self.address,
            "OnFailure" if is_init and policy == "Always" else policy,
            self._grace,
            self._stop,
            self._dirty.set,
            self._launcher.launch,
            lambda: Backoff(self._settings.restart_delay, self._settings.most_restart_delay),
        )
        log = self._settings.pod_folder(self.pod["metadata"]["uid"]) / f"{spec['name']}.log"
        return Container(spec, state, around, log, self._launcher.message_path(spec["name"]))

    async def _write_volumes(self) -> bool:
        while not self._stop.requested:
            try:
                await self._launcher.write_volumes()
            except ConfigProblem as problem:
                for container in self._main:
                    container.state.state = waiting("ContainerCreating", str(problem))
                self._dirty.set()
                await self._stop.within(_AGAIN)
            else:
                return True
        return False

    async def _run_init(self) -> bool:
        for container in self._init:
            await container.run()
            if not container.state.succeeded or self._stop.requested:
                return False
        return True

    async def _keep_reporting(self) -> None:
        while True:
            await self._dirty.wait()
            await self._report()

    async def _report(self) -> None:
        self._dirty.clear()
        await self._until_accepted("PATCH", f"{self._path}/status", self._status)

    def _status(self) -> Json:
        return {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": self.state.report(self.pod, now())}

    async def _until_accepted(self, method: str, path: str, body: Any) -> None:
        """Send a request until the API accepts it, or reports that the pod is gone."""
        media = STRATEGIC_PATCH if method == "PATCH" else "application/json"
        while True:
            with contextlib.suppress(httpx.TransportError):
                try:
                    answer = await self._connection.request(
                        method, path, body() if callable(body) else body, media=media
                    )
                except ApiError as error:
                    if _is_gone(error):
                        return
                else:
                    self._remember_conditions(answer)
                    return
            await asyncio.sleep(_AGAIN)

    def _remember_conditions(self, answer: Json) -> None:
        if answer.get("kind") == "Pod":
            conditions = answer.get("status", {}).get("conditions", [])
            self.pod = {**self.pod, "status": {**self.pod.get("status", {}), "conditions": conditions}}

    @property
    def _path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _is_gone(error: ApiError) -> bool:
    """Whether the pod is gone, or another one has its name."""
    is_another = error.code == httpx.codes.CONFLICT and "UID" in error.message
    return is_another or error.code == httpx.codes.NOT_FOUND


def _remember(state: ContainerState, before: list[Json]) -> None:
    """Continue the count of restarts if the API has an earlier state of this container, which the node has lost."""
    for found in before:
        if found["name"] == state.name and ("running" in found["state"] or found["restartCount"]):
            state.restarts = found["restartCount"] + 1
            since = found["state"].get("running", {}).get("startedAt") or now()
            state.last_state = terminated(
                _LOST, "ContainerStatusUnknown", since, now(), process=found.get("containerID", "")
            )
