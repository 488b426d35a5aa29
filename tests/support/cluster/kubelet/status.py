"""The status of a pod, derived from its containers. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class ContainerState:
    """The reported state of a container."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: waiting("ContainerCreating"))
    last_state: Json = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    process: str = ""
    ended: bool = False
    """It terminated, and will not start again."""

    @property
    def succeeded(self) -> bool:
        """Whether it terminated without an error."""
        return bool(self.state.get("terminated", {}).get("exitCode") == 0)

    def report(self) -> Json:
        """As the API wants it."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"process:{self.image}",
            "containerID": self.process,
            "state": self.state,
            "lastState": self.last_state,
            "restartCount": self.restarts,
            "ready": self.ready,
            "started": self.started,
        }


@dataclass
class PodState:
    """The state from which the status of a pod is derived."""

    address: str
    host: str
    start: str
    init: list[ContainerState]
    containers: list[ContainerState]
    failure: Json = field(default_factory=dict)
    """Reason and message if the kubelet itself has ended the pod."""

    def phase(self) -> str:
        """The phase of the pod."""
        if self.failure and self._all_ended():
            return "Failed"
        if any(container.ended and not container.succeeded for container in self.init):
            return "Failed"
        if any("waiting" in container.state and not container.last_state for container in self.containers):
            return "Pending"
        if self._all_ended():
            return "Succeeded" if all(container.succeeded for container in self.containers) else "Failed"
        return "Running"

    def report(self, pod: Mapping[str, Any], now: str) -> Json:
        """As the API wants it: a change of the pod's status, by a strategic patch."""
        addresses = {"podIP": self.address, "podIPs": [{"ip": self.address}]} if self.address else {}
        return {
            "phase": self.phase(),
            "conditions": conditions(self._truths(pod), self.phase(), pod.get("status", {}).get("conditions", []), now),
            "hostIP": self.host,
            "hostIPs": [{"ip": self.host}],
            "startTime": self.start,
            **addresses,
            **self.failure,
            "initContainerStatuses": [container.report() for container in self.init],
            "containerStatuses": [container.report() for container in self.containers],
        }

    def is_told(self, pod: Mapping[str, Any]) -> bool:
        """Whether the API has the readiness of the pod.

        The node controller marks pods of a silent node as not ready.
        """
        told = {found["type"]: found["status"] for found in pod.get("status", {}).get("conditions", [])}
        return (told.get("Ready") == "True") == self._truths(pod)["Ready"]

    def _all_ended(self) -> bool:
        return all(container.ended for container in [*self.init, *self.containers])

    def _truths(self, pod: Mapping[str, Any]) -> dict[str, bool]:
        ready = bool(self.containers) and all(container.ready for container in self.containers)
        gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])]
        fulfilled = {
            found["type"] for found in pod.get("status", {}).get("conditions", []) if found["status"] == "True"
        }
        truths = {
            "PodReadyToStartContainers": not self._all_ended(),
            "Initialized": all(container.succeeded for container in self.init),
            "ContainersReady": ready,
            "Ready": ready and all(gate in fulfilled for gate in gates),
            "PodScheduled": True,
        }
        if self.failure:
            truths["DisruptionTarget"] = True
        return truths


def conditions(truths: Mapping[str, bool], phase: str, before: Iterable[Mapping[str, Any]], now: str) -> list[Json]:
    """Conditions of a pod; the time of one changes only with its status."""
    old = {found["type"]: found for found in before}
    made = []
    for kind, truth in truths.items():
        status = "True" if truth else "False"
        same = old.get(kind, {}).get("status") == status
        entry = {"type": kind, "status": status, "lastTransitionTime": old[kind]["lastTransitionTime"] if same else now}
        entry |= _reason(kind, truth, phase)
        made.append(entry)
    return made


def _reason(kind: str, truth: bool, phase: str) -> Json:  # noqa: FBT001 - the status of a condition
    if kind == "DisruptionTarget":
        return {"reason": "TerminationByKubelet"}
    if truth or kind not in ("Ready", "ContainersReady"):
        return {"reason": None, "message": None}
    ends = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
    return {"reason": ends.get(phase, "ContainersNotReady"), "message": None}


def waiting(reason: str, message: str = "") -> Json:
    """The state of a container that does not run (yet)."""
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running(since: str) -> Json:
    """The state of a container that runs."""
    return {"running": {"startedAt": since}}


def terminated(code: int, reason: str, since: str, until: str, *, process: str = "", message: str = "") -> Json:
    """The state of a container that has ended."""
    signal = {"signal": code - 128} if reason != "StartError" and code > 128 else {}
    return {
        "terminated": {
            "exitCode": code,
            **signal,
            **({"message": message} if message else {}),
            "reason": reason,
            "startedAt": since,
            "finishedAt": until,
            "containerID": process,
        }
    }
