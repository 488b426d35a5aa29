"""Objects that tests make, and questions about objects."""

from collections.abc import Callable
from typing import Any

from tests.support.cluster.connection import Object

FOR_POOLS = {"joex.dev/pools": "allowed"}
"""The label of a secret that pools may use."""

STATE = {"name": "state", "emptyDir": {}}
AT_STATE = {"name": "state", "mountPath": "/state"}
IS_UP = {"exec": {"command": ["test", "-e", "/state/up"]}, "periodSeconds": 1, "failureThreshold": 1}

FOREVER = "import signal; signal.pause()"
POLITE = """
import signal, sys
def end(number, frame):
    open("/dev/termination-log", "w").write("asked to end")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open("/state/up", "w")
while True:
    signal.pause()
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("/state/up", "w")
while True:
    signal.pause()
"""


def python(code: str, **more: Any) -> Object:
    """A container that runs Python."""
    return {"name": "main", "image": "joex:test", "command": ["python", "-c", code], **more}


def up(code: str, **more: Any) -> Object:
    """A container that runs Python, and is ready while the file ``/state/up`` exists."""
    return python(code, volumeMounts=[AT_STATE], readinessProbe=IS_UP, **more)


def pod(name: str, *containers: Object, **spec: Any) -> Object:
    """A pod with a volume ``state``."""
    spec = {"terminationGracePeriodSeconds": 5, "volumes": [STATE], "containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, container: Object, replicas: int = 1, **spec: Any) -> Object:
    """A deployment of such pods, with the label ``app``."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod(name, container, **spec)["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def is_ready(found: Object | None) -> bool:
    """Whether an object has the condition Ready."""
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_available(replicas: int) -> Callable[[Object | None], bool]:
    """Whether this many pods of a deployment are available."""
    return lambda found: bool((found or {}).get("status", {}).get("availableReplicas", 0) == replicas)


def is_in(*phases: str) -> Callable[[Object | None], bool]:
    """Whether a pod is in one of these phases."""
    return lambda found: (found or {}).get("status", {}).get("phase") in phases


def container_status(found: Object | None) -> Object:
    """The status of a pod's first container."""
    statuses: list[Object] = (found or {}).get("status", {}).get("containerStatuses") or []
    return statuses[0] if statuses else {"state": {}, "lastState": {}, "restartCount": 0}


def terminated(found: Object | None) -> Object | None:
    """How a pod's first container has ended."""
    ended: Object | None = container_status(found)["state"].get("terminated")
    return ended


def waits(reason: str) -> Callable[[Object | None], bool]:
    """Whether a pod's first container waits for a reason."""
    return lambda found: bool(container_status(found)["state"].get("waiting", {}).get("reason") == reason)


def restarted(times: int) -> Callable[[Object | None], bool]:
    """Whether a pod is ready after this many restarts of its first container."""
    return lambda found: is_ready(found) and bool(container_status(found)["restartCount"] == times)
