"""The replicas of a pool, from its Deployments and pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from joex_operator.api.names import (
    DATABASE_ANNOTATION,
    FIELD_MANAGER,
    POOL_LABEL,
    REPLICA_LABEL,
    TEMPLATE_ANNOTATION,
    replica_index,
)
from joex_operator.decide.manifests.overlay import EXECUTOR
from joex_operator.decide.replicas import Replica

_TERMINAL = ("Succeeded", "Failed")
_GIVEN_UP = "DeletionByPodGC"
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")
_LONGEST = 300
_RESTARTS = 2  # from the second on, the kubelet waits before it restarts a container
_UNREADY_AFTER = timedelta(seconds=30)
_UNSCHEDULED_AFTER = timedelta(minutes=5)
"""Cluster autoscalers add a node within a few minutes."""
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ObservedDeployment:
    """The parts of a Deployment that matter.

    ``owner``: the uid of its pool; ``database``: the name of the database that it was made for; ``deleting``: it is
    being deleted; ``refused_since``: since when the API server refuses its pod, as for a quota or an admission webhook.
    """

    namespace: str
    pool: str
    replica: str
    uid: str
    owner: str
    template: str
    database: str
    replicas: int
    deleting: bool
    problem: str | None
    refused_since: datetime | None


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """The parts of a pod that matter.

    Attributes:
        has_ended: none of its containers runs or will run, as its node reports.
        deleting: it is being deleted.
        lost: its node does not answer.
        problem: why it does not start.
        crashing: its executor has ended again and again, and waits for its restart or to become ready.
        unready_since: since when its executor, which runs, says that it takes no jobs; None: it does not say so.
        ready_since: since when it is ready; None: it is not.
        unscheduled_since: since when no node has room for it; None: it has a node, or nobody has looked for one.
    """

    namespace: str
    pool: str
    replica: str
    uid: str
    has_ended: bool
    deleting: bool
    lost: bool
    problem: str | None
    crashing: bool
    unready_since: datetime | None
    ready_since: datetime | None
    unscheduled_since: datetime | None


def deployment(body: Mapping[str, Any]) -> ObservedDeployment:
    """The parts of a Deployment that matter."""
    metadata, spec = body["metadata"], body["spec"]
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]
    annotations = metadata.get("annotations") or {}
    failure = _conditions(body).get("ReplicaFailure", {})
    failed = failure.get("status") == "True"
    return ObservedDeployment(
        namespace=metadata["namespace"],
        pool=metadata["labels"][POOL_LABEL],
        replica=metadata["name"],
        uid=metadata["uid"],
        owner=owners[0] if owners else "",
        template="" if _was_changed(metadata) else annotations.get(TEMPLATE_ANNOTATION, ""),
        database=annotations.get(DATABASE_ANNOTATION, ""),
        replicas=spec.get("replicas", 1),
        deleting="deletionTimestamp" in metadata,
        problem=_said(failure) if failed else None,
        refused_since=_since(failure) if failed and failure.get("reason") == "FailedCreate" else None,
    )


def pod(body: Mapping[str, Any]) -> ObservedPod:
    """The parts of a pod that matter."""
    metadata, status = body["metadata"], body.get("status", {})
    return ObservedPod(
        namespace=metadata["namespace"],
        pool=metadata["labels"][POOL_LABEL],
        replica=metadata["labels"].get(REPLICA_LABEL, ""),
        uid=metadata["uid"],
        has_ended=_has_ended(body),
        deleting="deletionTimestamp" in metadata,
        lost=_is_lost(status),
        problem=next(_problems(status), None),
        crashing=_is_crashing(status),
        unready_since=_unready_since(status),
        ready_since=_ready_since(status),
        unscheduled_since=_unscheduled_since(status),
    )


def replicas(
    pool: str,
    uid: str,
    deployments: Iterable[ObservedDeployment],
    pods: Iterable[ObservedPod],
    gone: Iterable[ObservedPod],
) -> list[Replica]:
    """The replicas of a pool.

    Args:
        pool: the name of the pool.
        uid: the uid of the pool. A Deployment of an earlier pool of this name is being deleted.
        deployments: of the pool.
        pods: of the pool.
        gone: deleted pods that had ended before.
    """
    made = {one.replica: one for one in deployments}
    running: dict[str, list[ObservedPod]] = {}
    ended: dict[str, list[str]] = {}
    for one in pods:
        if one.has_ended:
            ended.setdefault(one.replica, []).append(one.uid)
        else:
            running.setdefault(one.replica, []).append(one)
    for one in gone:
        ended.setdefault(one.replica, []).append(one.uid)
    found = []
    for name in sorted(made.keys() | running.keys() | ended.keys()):
        index = replica_index(pool, name)
        if index is not None:
            replica = _replica(name, index, made.get(name), running.get(name, []), owner=uid)
            found.append(replace(replica, gone=tuple(ended.get(name, []))))
    return found


def judged(replica: Replica, worked: Collection[str], now: datetime, min_ready: timedelta) -> Replica:
    """The observed replica with what time and the database tell of it.

    It is crashing only if an executor ever registered in one of its pods (``worked``): else its template is at fault,
    as in a new one. It is unready only after a while, because each executor is so for a moment at its start. It is
    unscheduled only when a cluster autoscaler has had the time to add a node, or others to leave their quota.
    It is fresh until it has been ready for ``min_ready``.
    """
    unready, ready, unscheduled = replica.unready_since, replica.ready_since, replica.unscheduled_since
    return replace(
        replica,
        crashing=replica.crashing and any(pod in worked for pod in replica.pods),
        unready=unready is not None and now - unready >= _UNREADY_AFTER,
        fresh=bool(min_ready) and (ready is None or now - ready < min_ready),
        unscheduled=unscheduled is not None and now - unscheduled >= _UNSCHEDULED_AFTER,
    )


def _replica(name: str, index: int, made: ObservedDeployment | None, pods: list[ObservedPod], *, owner: str) -> Replica:
    there = tuple(pod.uid for pod in pods)
    staying = [pod for pod in pods if not pod.deleting]
    lost = any(pod.lost for pod in pods) and not any(not pod.lost for pod in staying)
    if made is None:
        return Replica(name, index, pods=there)
    if made.deleting or made.owner not in ("", owner):
        # It counts as a pod until it is gone: a deletion in the foreground removes its pods first.
        return Replica(name, index, database=made.database, lost=lost, pods=(*there, made.uid))
    refused_since = None if staying else made.refused_since
    return Replica(
        name,
        index,
        uid=made.uid,
        # An orphan of an earlier pool of this name, deleted with --cascade=orphan: its executor goes on, and the
        # operator replaces it as if its template were outdated.
        template=made.template if made.owner else "",
        database=made.database,
        pods_wanted=made.replicas,
        problem=next((pod.problem for pod in staying if pod.problem), made.problem),
        lost=lost,
        crashing=any(pod.crashing for pod in staying),
        unready_since=next((pod.unready_since for pod in staying if pod.unready_since), None),
        ready_since=next((pod.ready_since for pod in staying if pod.ready_since), None),
        unscheduled_since=next((pod.unscheduled_since for pod in staying if pod.unscheduled_since), refused_since),
        refused=refused_since is not None,
        pods=there,
        terminating=tuple(pod.uid for pod in pods if pod.deleting),
    )


def _was_changed(metadata: Mapping[str, Any]) -> bool:
    """Whether another client has changed the pod template of a Deployment (``kubectl edit``, ``rollout restart``).

    The API server notes which client has set which fields.
    """
    return any(
        one.get("manager") != FIELD_MANAGER and "f:template" in one.get("fieldsV1", {}).get("f:spec", {})
        for one in metadata.get("managedFields") or []
    )


def _has_ended(body: Mapping[str, Any]) -> bool:
    status = body.get("status", {})
    if status.get("phase") in _TERMINAL and not _is_written_off(status):
        return True
    if "deletionTimestamp" not in body["metadata"]:
        return False
    containers = status.get("containerStatuses") or []
    if not containers:  # deleted; if the scheduler had not placed it, nothing has ever run
        return not body["spec"].get("nodeName")
    return all("terminated" in one.get("state", {}) for one in containers)


def _is_written_off(status: Mapping[str, Any]) -> bool:
    """Whether another one than the pod's node may have set its phase, as the pod garbage collector does.

    That gives up the pods of a node whose object is gone; their containers may run, and start, on a machine that is
    only cut off. A kubelet sets the phase when it has ended all containers, and reports none as running then.
    """
    given_up = _conditions({"status": status}).get("DisruptionTarget", {}).get("reason") == _GIVEN_UP
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return given_up or any("running" in one.get("state", {}) for one in containers)


def _is_lost(status: Mapping[str, Any]) -> bool:
    """Whether the node is lost: then the control plane sets Ready to False, though the node had reported it ready."""
    containers = status.get("containerStatuses") or []
    said_ready = bool(containers) and all(one.get("ready") for one in containers)
    return said_ready and _conditions({"status": status}).get("Ready", {}).get("status") == "False"


def _is_crashing(status: Mapping[str, Any]) -> bool:
    executors = [one for one in status.get("containerStatuses") or [] if one.get("name") == EXECUTOR]
    return any(
        one.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"
        # Restarted after a back-off: it may crash again at once, and counts as crashing until it is ready.
        or (one.get("restartCount", 0) >= _RESTARTS and not one.get("ready"))
        for one in executors
    )


def _unready_since(status: Mapping[str, Any]) -> datetime | None:
    """Since when the readiness probe of its executor fails, after its start."""
    executors = [one for one in status.get("containerStatuses") or [] if one.get("name") == EXECUTOR]
    for one in executors:
        running = one.get("state", {}).get("running", {}).get("startedAt")
        changed = _conditions({"status": status}).get("Ready", {}).get("lastTransitionTime")
        if one.get("started") and not one.get("ready") and running and changed:
            # One that can't be read makes no executor ready.
            return max(_time(running) or _EVER, _time(changed) or _EVER)
    return None


def _ready_since(status: Mapping[str, Any]) -> datetime | None:
    ready = _conditions({"status": status}).get("Ready", {})
    return _since(ready) if ready.get("status") == "True" else None


def _unscheduled_since(status: Mapping[str, Any]) -> datetime | None:
    placed = _conditions({"status": status}).get("PodScheduled", {})
    return _since(placed) if placed.get("status") == "False" else None


def _since(condition: Mapping[str, Any]) -> datetime | None:
    return _time(condition.get("lastTransitionTime"))


def _time(text: str | None) -> datetime | None:
    """A time of the API server; None: there is none, or no `datetime` can have it, such as one of the year 0.

    Whoever may change the status of pods may write such a time.
    """
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def _problems(status: Mapping[str, Any]) -> Iterator[str]:
    placed = _conditions({"status": status}).get("PodScheduled", {})
    if placed.get("status") == "False":
        yield _said(placed)
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = one.get("state", {})
        ended = state.get("terminated") or one.get("lastState", {}).get("terminated") or {}
        # A container that fails again and again runs for a moment between its ends: it keeps its problem meanwhile.
        fails_again = one.get("restartCount", 0) >= _RESTARTS and one.get("started") is False
        if "running" in state and not fails_again:
            continue
        # While it waits for its restart, the reason of its end says more than that it waits.
        if ended.get("exitCode"):
            yield _end(ended)
        elif state.get("waiting", {}).get("reason") not in (None, *_ON_ITS_WAY):
            yield _said(state["waiting"])


def _end(ended: Mapping[str, Any]) -> str:
    words = str(ended.get("message") or "").strip().rpartition("\n")[2][:_LONGEST]
    said = f"{ended.get('reason', 'Error')}: exit code {ended['exitCode']}"
    return f"{said}: {words}" if words else said


def _said(condition: Mapping[str, Any]) -> str:
    message = " ".join(str(condition.get("message") or "").split())[:_LONGEST]
    return f"{condition.get('reason', '')}: {message}" if message else str(condition.get("reason", ""))


def _conditions(body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {one["type"]: one for one in body.get("status", {}).get("conditions") or []}
