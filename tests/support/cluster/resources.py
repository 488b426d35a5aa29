"""The kinds that an API serves, and their paths by name."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

_TRIES = 50
_PAUSE = 0.1

Request = Callable[..., Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Resource:
    """A kind, as the API serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    def path(self, namespace: str | None = None, name: str = "", part: str = "") -> str:
        """The path of the objects of the kind, of one object, or of a part of it."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"namespaces/{namespace}/" if namespace and self.namespaced else ""
        return "/".join(step for step in (f"{base}/{place}{self.plural}", name, part) if step)


@dataclass
class Resources:
    """The kinds known so far; shared by the clients of a cluster.

    A client asks again for an unknown kind, for some seconds: the API needs a moment to serve new custom resources.
    """

    _known: dict[str, Resource] = field(default_factory=dict)

    async def find(self, name: str, request: Request) -> Resource:
        """The resource with a name: kind or plural, with the group after a dot if needed.

        Raises:
            LookupError: the API does not serve it.
        """
        tries = 0
        while name.lower() not in self._known:
            if tries == _TRIES:
                raise LookupError(f"the API serves no {name}")
            if tries:
                await asyncio.sleep(_PAUSE)
            tries += 1
            for root in ("/apis", "/api"):  # the core group last, so that its names win
                for group in (await request("GET", root, accept=_DISCOVERY))["items"]:
                    self._learn(group)
        return self._known[name.lower()]

    def _learn(self, group: dict[str, Any]) -> None:
        name = group["metadata"].get("name", "")
        # The preferred version comes first.
        for version in reversed(group["versions"]):
            for found in version["resources"]:
                kind = found["responseKind"]["kind"]
                namespaced = found["scope"] == "Namespaced"
                resource = Resource(name, version["version"], found["resource"], kind, namespaced)
                for alias in (resource.plural, resource.kind.lower()):
                    self._known[alias] = resource
                    if name:
                        self._known[f"{alias}.{name}"] = resource
