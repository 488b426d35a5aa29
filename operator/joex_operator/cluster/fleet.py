"""Executors as Deployments."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from joex_operator.api.names import FIELD_MANAGER, MOST_REPLICAS, POOL_LABEL, REPLICA_LABEL, home_of, replica_index
from joex_operator.api.objects import Pool, Ref
from joex_operator.cluster.cache import Body, Cache, Key, version
from joex_operator.cluster.event_recorder import EventRecorder
from joex_operator.cluster.kubernetes_api import Conflict, Forbidden, Invalid, KubernetesApi, NotFound, path_of
from joex_operator.cluster.secrets import Secrets
from joex_operator.control.fleet import FleetError
from joex_operator.decide import manifests, observed
from joex_operator.decide.events import Event
from joex_operator.decide.replicas import Replica
from joex_operator.decide.rollout import surge

_POOL = "JoexPool"
_PATHS = {_POOL: "joexpools", "PeriodicTask": "periodictasks"}
_STRICT = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
"""Without this the API server drops a field that it does not know, such as a misspelt one."""
_NO_DRY_RUN = "does not support dry run"
"""What the API server says where a webhook of the cluster wants to see changes only if they are made."""
_QUOTA = "exceeded quota"
"""What it says where a ResourceQuota has no room, which it asks last: nothing else is wrong with the object."""
_FOREIGN_FOR = 600.0
"""Seconds for which no replica is created under a name that a Deployment of another owner has."""
_GONE = (NotFound, Conflict)
"""The errors when the object is gone, or another one has its name: each change names the uid that it is meant for."""


class ClusterFleet:
    """A `joex_operator.control.fleet.Fleet` on Kubernetes.

    Args:
        api: with the operator's credentials.
        image: of executors whose pool names none.
        identity: of this operator.
        uid_of: the UID of a namespace; raises `FleetError` where this operator does not act.
    """

    def __init__(self, api: KubernetesApi, *, image: str, identity: str, uid_of: Callable[[str], str]) -> None:
        self.cache = Cache()
        self._api = api
        self._image = image
        self._uid_of = uid_of
        self._secrets = Secrets(api)
        self._recorder = EventRecorder(api, identity)
        self._checked: dict[Key, str] = {}
        self._templates: dict[Key, tuple[Pool, tuple[str, str], str]] = {}
        self._foreign: dict[tuple[str, str], float] = {}
        self._statuses: dict[tuple[str, str, str], tuple[int, Mapping[str, Any] | None]] = {}  # None: it is gone

    def home(self, namespace: str) -> str:
        """See `Fleet.home`: two clusters have namespaces of one name, but not of one UID."""
        return home_of(namespace, self._uid_of(namespace))

    def now(self) -> datetime:
        """See `Fleet.now`: the clock of the API server."""
        return self._api.now()

    def template(self, pool: Pool) -> str:
        """See `Fleet.template`."""
        read = (self.home(pool.namespace), self._secrets.digest(pool))
        key = (pool.namespace, pool.name)
        known = self._templates.get(key)
        if known is None or known[0] is not pool or known[1] != read:
            known = (pool, read, manifests.template_hash(pool, self._image, *read))
            if self._statuses.get((_POOL, *key), (0, {}))[1] is not None:  # it may have gone during its reconcile
                self._templates[key] = known
        return known[2]

    def replicas(self, pool: Pool) -> list[Replica]:
        """See `Fleet.replicas`."""
        return self.cache.replicas(pool.namespace, pool.name, pool.uid)

    async def check(self, pool: Pool) -> None:
        """See `Fleet.check`: a dry run, once for each template."""
        template = self.template(pool)
        if self._checked.get((pool.namespace, pool.name)) == template:
            return
        # A name that no replica has.
        manifest = manifests.replica_deployment(pool, MOST_REPLICAS, self._image, self.home(pool.namespace))
        try:
            await self._api.create(path_of(pool.namespace, "deployments"), manifest, **_STRICT, dryRun="All")
        except Invalid as error:
            if _NO_DRY_RUN not in str(error):
                raise
        except Forbidden as error:
            if _QUOTA not in str(error) or surge(pool.spec.rollout, 1):
                raise
        if (pool.namespace, pool.name) in self._templates:  # it may have gone meanwhile
            self._checked[pool.namespace, pool.name] = template

    async def create(self, pool: Pool, index: int) -> None:
        """See `Fleet.create`."""
        read = {"secret": self._secrets.digest(pool), "database": self._secrets.database(pool)}
        manifest = manifests.replica_deployment(pool, index, self._image, self.home(pool.namespace), **read)
        try:
            made: Body = await self._api.create(path_of(pool.namespace, "deployments"), manifest, **_STRICT)
        except Conflict:
            made = await self._find_own(pool, manifest["metadata"]["name"])
        self.cache.deployments.put(made)

    async def _find_own(self, pool: Pool, name: str) -> Body:
        """The existing Deployment of a replica, which an earlier reconcile created."""
        there = await self._api.get(path_of(pool.namespace, "deployments", name))
        owners = [owner["uid"] for owner in there["metadata"].get("ownerReferences") or []]
        if pool.uid not in owners:
            wrong = "belongs to another owner"
        elif (there["metadata"].get("labels") or {}).get(POOL_LABEL) != pool.name:  # so no watch shows it
            wrong = f"has no label {POOL_LABEL}={pool.name}"
        else:
            return there
        self._foreign[pool.namespace, name] = time.monotonic() + _FOREIGN_FOR
        raise FleetError(f"Deployment {name!r} exists in namespace {pool.namespace!r} and {wrong}")

    def taken(self, pool: Pool) -> frozenset[int]:
        """See `Fleet.taken`."""
        now = time.monotonic()
        self._foreign = {key: until for key, until in self._foreign.items() if until > now}
        names = [name for namespace, name in self._foreign if namespace == pool.namespace]
        return frozenset(index for name in names if (index := replica_index(pool.name, name)) is not None)

    async def delete(self, pool: Pool, replica: str, uid: str) -> None:
        """See `Fleet.delete`. In the foreground: the Deployment goes after its pods."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Foreground"}
        with suppress(*_GONE):
            left = await self._api.delete(path_of(pool.namespace, "deployments", replica), options)
            if left.get("kind") == "Deployment":
                self.cache.deployments.put(left)

    async def update(self, pool: Pool, replica: str, uid: str) -> None:
        """See `Fleet.update`."""
        body = {"metadata": {"uid": uid}, "spec": {"replicas": 1}}
        path = path_of(pool.namespace, "deployments", replica)
        with suppress(*_GONE):
            self.cache.deployments.put(await self._api.patch(path, body, fieldManager=FIELD_MANAGER))

    async def is_clear(self, pool: Pool, replica: str) -> bool:
        """See `Fleet.is_clear`."""
        with suppress(NotFound):
            await self._api.get(path_of(pool.namespace, "deployments", replica))
            return False
        pods = self._api.pages(path_of(pool.namespace, "pods"), labelSelector=f"{REPLICA_LABEL}={replica}")
        return all([observed.pod(body).has_ended async for page in pods for body in page["items"]])

    async def database_url(self, pool: Pool) -> str:
        """See `Fleet.database_url`."""
        return await self._secrets.database_url(pool)

    def recheck_url(self, pool: Pool) -> None:
        """See `Fleet.recheck_url`."""
        self._secrets.recheck(pool)

    def status(self, ref: Ref) -> Mapping[str, Any]:
        """See `Fleet.status`."""
        return self._statuses.get((ref.kind, ref.namespace, ref.name), (0, {}))[1] or {}

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        """See `Fleet.set_status`."""
        body = {"metadata": {"uid": ref.uid}, "status": _merge_patch(self.status(ref), status)}
        path = f"{path_of(ref.namespace, _PATHS[ref.kind], ref.name)}/status"
        with suppress(*_GONE):
            self.keep_status(await self._api.patch(path, body, fieldManager=FIELD_MANAGER))

    def keep_status(self, body: Body) -> bool:
        """Cache the status of an object from the API server; False: the cache has a newer version."""
        return self._keep(body, body.get("status") or {})

    def _keep(self, body: Body, status: Mapping[str, Any] | None) -> bool:
        metadata = body["metadata"]
        key = (body["kind"], metadata["namespace"], metadata["name"])
        if version(body) < self._statuses.get(key, (0, {}))[0]:
            return False
        self._statuses[key] = (version(body), status)
        return True

    def mark_deleted(self, body: Body) -> bool:
        """Remember the deletion of an object, so that an older list result can't revive it.

        False: another one has its name by now. A deletion is told late where a watch was cut.
        """
        if not self._keep(body, None):
            return False
        if body["kind"] == _POOL:
            self._forget_pool(body["metadata"]["namespace"], body["metadata"]["name"])
        return True

    def forget_absent(self, kind: str, there: Collection[Key], listed_at: int, namespace: str) -> list[Key]:
        """Remove the objects that the list of a namespace ("": of all) at a version lacks; returns their keys."""
        absent = [
            key
            for (other, *key), (known, _) in self._statuses.items()
            if other == kind and known <= listed_at and namespace in ("", key[0]) and tuple(key) not in there
        ]
        for space, name in absent:
            del self._statuses[kind, space, name]
            if kind == _POOL:
                self._forget_pool(space, name)
        return [(space, name) for space, name in absent]

    def _forget_pool(self, namespace: str, name: str) -> None:
        """Forget what is known of a pool that is gone, which may be a large template."""
        self._checked.pop((namespace, name), None)
        self._templates.pop((namespace, name), None)
        self._secrets.forget(namespace, name)

    async def record_events(self, ref: Ref, events: Sequence[Event]) -> None:
        """See `Fleet.record_events`."""
        await self._recorder.record(ref, events)


def _merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch from the old object to the new one: null removes a field that the new one lacks."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        patch[key] = _merge_patch(before or {}, value) if both else value
    return patch
