"""The tests' client of a Kubernetes API: objects as JSON, any kind by its name, and waiting by watching.

Kinds are named as for kubectl: ``pods``, ``Pod``, ``deployments.apps``, ``joexpools.joex.dev``.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from tests.support.cluster.connection import APPLY_PATCH, MERGE_PATCH, ApiError, Connection, Object
from tests.support.cluster.resources import Resource, Resources
from tests.support.waiting import PATIENCE, NotInTime

MANAGER = "joex-tests"


class Api(Connection):
    """A client for one user of one cluster, in one event loop."""

    def __init__(self, path: Path, *, context: str | None = None, resources: Resources | None = None) -> None:
        super().__init__(path, context=context)
        self._resources = resources or Resources()

    async def create(self, manifest: Object, namespace: str | None = None) -> Object:
        """Create an object, in the namespace that it names itself, or in this one."""
        resource, namespace, _ = await self._placed(manifest, namespace)
        return await self.request("POST", resource.path(namespace), manifest, fieldManager=MANAGER)

    async def apply(self, manifest: Object, namespace: str | None = None, *, manager: str = MANAGER) -> Object:
        """Create or change an object by server-side apply. It takes over the fields of other owners."""
        resource, namespace, name = await self._placed(manifest, namespace)
        path = resource.path(namespace, name)
        return await self.request("PATCH", path, manifest, media=APPLY_PATCH, fieldManager=manager, force="true")

    async def patch(
        self,
        kind: str,
        name: str,
        change: Any,
        namespace: str | None = None,
        *,
        part: str = "",
        media: str = MERGE_PATCH,
    ) -> Object:
        """Change an object by a merge patch, or a part of it: ``status``, ``scale``."""
        path = (await self._resource(kind)).path(namespace, name, part)
        return await self.request("PATCH", path, change, media=media, fieldManager=MANAGER)

    async def get(self, kind: str, name: str, namespace: str | None = None, *, part: str = "") -> Object:
        """An object, or a part of it.

        Raises:
            ApiError: code 404: there is none.
        """
        return await self.request("GET", (await self._resource(kind)).path(namespace, name, part))

    async def get_all(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """Objects of a kind (namespace None: of all), by selectors such as ``a=1,b!=2`` and ``spec.nodeName=n``."""
        path = (await self._resource(kind)).path(namespace)
        items: list[Object] = (await self.request("GET", path, **_selectors(labels, fields)))["items"]
        return items

    async def delete(
        self,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        grace: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Delete an object, if it exists."""
        options = {"propagationPolicy": propagation, **({} if grace is None else {"gracePeriodSeconds": grace})}
        try:
            await self.request("DELETE", (await self._resource(kind)).path(namespace, name), options)
        except ApiError as error:
            if error.code != httpx.codes.NOT_FOUND:
                raise

    async def until(
        self,
        kind: str,
        name: str,
        predicate: Callable[[Any], Any],
        namespace: str | None = None,
        *,
        timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
        why: str = "",
    ) -> Any:
        """Watch an object until the predicate is true of it, and return it; None stands for a missing object.

        Raises:
            NotInTime: it did not become true in time; the message has the object as it was last.
        """
        found = await self.until_all(
            kind,
            lambda objects: predicate(objects[0] if objects else None),
            namespace,
            fields=f"metadata.name={name}",
            timeout=timeout,
            why=why or f"{kind} {name}",
        )
        return found[0] if found else None

    async def until_all(
        self,
        kind: str,
        predicate: Callable[[list[Object]], Any],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
        why: str = "",
    ) -> list[Object]:
        """Watch objects of a kind until the predicate is true of the list of all, and return them.

        Raises:
            NotInTime: it did not become true in time; the message has the objects as they were last.
        """
        path = (await self._resource(kind)).path(namespace)
        last: list[Object] = []
        try:
            async with asyncio.timeout(timeout), aclosing(self.states(path, **_selectors(labels, fields))) as states:
                async for objects in states:
                    last = objects
                    if predicate(objects):
                        return objects
        except TimeoutError:
            pass
        seen = "\n".join(json.dumps(_brief(item)) for item in last) or "(none)"
        raise NotInTime(
            f"not true within {timeout} seconds: {why or kind}; the last of them:\n{seen}\n{self.last_error}"
        )

    async def _resource(self, kind: str) -> Resource:
        return await self._resources.find(kind, self.request)

    async def _placed(self, manifest: Object, namespace: str | None) -> tuple[Resource, str | None, str]:
        group = manifest["apiVersion"].rpartition("/")[0]
        resource = await self._resource(f"{manifest['kind']}.{group}" if group else manifest["kind"])
        return resource, manifest["metadata"].get("namespace", namespace), manifest["metadata"].get("name", "")


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {**({"labelSelector": labels} if labels else {}), **({"fieldSelector": fields} if fields else {})}


def _brief(item: Mapping[str, Any]) -> dict[str, Any]:
    metadata = item["metadata"]
    return {"name": metadata["name"], "deleting": metadata.get("deletionTimestamp"), "status": item.get("status")}
