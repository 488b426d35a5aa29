"""What the API server has, as far as it matters: kept by events, and put right by listing anew now and then.

A watch can stall in silence, and what is deleted while it is cut is never told. So everything is listed again every few
minutes: what is not in the list, and is not newer than the list, is gone.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from joex_operator.decide import observed
from joex_operator.decide.observed import ObservedDeployment, ObservedPod
from joex_operator.decide.slots import Slot

_REMEMBERED_FOR = 600.0
_MOST_REMEMBERED = 10_000

Body = Mapping[str, Any]
Place = tuple[str, str]
"""Namespace and name."""


class _OfPool(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def pool(self) -> str: ...


Observed = TypeVar("Observed", bound=_OfPool)


def version(body: Body) -> int:
    """The resource version, a number that grows with each change in the cluster; 0: it is none."""
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


class Indexer(Generic[Observed]):
    """Objects of one kind, by place; and by the pool they belong to."""

    def __init__(self, read: Callable[[Body], Observed]) -> None:
        self._read = read
        self._things: dict[Place, tuple[int, Observed]] = {}
        self._of_pool: dict[Place, dict[Place, Observed]] = {}
        self._dropped: OrderedDict[str, float] = OrderedDict()

    def put(self, body: Body) -> Observed | None:
        """Take an object as it is; None: something newer is known already."""
        place = _place(body)
        known = self._things.get(place)
        if (known is not None and version(body) < known[0]) or body["metadata"]["uid"] in self._dropped:
            return None
        thing = self._read(body)
        self._things[place] = (version(body), thing)
        self._of_pool.setdefault((thing.namespace, thing.pool), {})[place] = thing
        return thing

    def drop(self, body: Body) -> Observed:
        """Take it that an object is gone; returns it as it was last."""
        now = time.monotonic()
        self._dropped[body["metadata"]["uid"]] = now
        while len(self._dropped) > _MOST_REMEMBERED or next(iter(self._dropped.values())) < now - _REMEMBERED_FOR:
            self._dropped.popitem(last=False)
        self._forget(_place(body))
        return self._read(body)

    def of(self, namespace: str, pool: str) -> Iterable[Observed]:
        """The objects of a pool."""
        return self._of_pool.get((namespace, pool), {}).values()

    def replace(self, bodies: Iterable[Body], listed_at: int, namespace: str) -> set[Place]:
        """Take a list of all objects of a namespace ("": of all), of this version; returns pools that have changed."""
        changed, there = set(), set()
        for body in bodies:
            place = _place(body)
            there.add(place)
            before = self._things.get(place)
            thing = self.put(body)
            if thing is not None and (before is None or before[1] != thing):
                changed.add((thing.namespace, thing.pool))
        for place, (known, thing) in list(self._things.items()):
            if place not in there and known <= listed_at and namespace in ("", place[0]):
                self._forget(place)
                changed.add((thing.namespace, thing.pool))
        return changed

    def _forget(self, place: Place) -> None:
        known = self._things.pop(place, None)
        if known is not None:
            pool = (known[1].namespace, known[1].pool)
            self._of_pool[pool].pop(place, None)
            if not self._of_pool[pool]:
                del self._of_pool[pool]


class Cache:
    """Deployments and pods of all pools."""

    def __init__(self) -> None:
        self.deployments: Indexer[ObservedDeployment] = Indexer(observed.deployment)
        self.pods: Indexer[ObservedPod] = Indexer(observed.pod)
        self._gone: dict[Place, dict[str, tuple[float, ObservedPod]]] = {}

    def pod_deleted(self, body: Body) -> ObservedPod:
        """A pod is gone. One that had ended before is remembered: its executor's jobs can move on at once."""
        pod = self.pods.drop(body)
        if pod.has_ended:
            self._gone.setdefault((pod.namespace, pod.pool), {})[pod.uid] = (time.monotonic(), pod)
        return pod

    def slots(self, namespace: str, pool: str, uid: str) -> list[Slot]:
        """The slots of a pool that have something here."""
        since = time.monotonic() - _REMEMBERED_FOR
        gone = {key: one for key, one in self._gone.pop((namespace, pool), {}).items() if one[0] > since}
        if gone:
            self._gone[namespace, pool] = gone
        return observed.slots(
            pool,
            uid,
            self.deployments.of(namespace, pool),
            self.pods.of(namespace, pool),
            [pod for _, pod in gone.values()],
        )


def _place(body: Body) -> Place:
    return body["metadata"]["namespace"], body["metadata"]["name"]
