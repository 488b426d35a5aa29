"""The audit log of the local cluster's API server: the requests of service accounts and the answers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

_WITHOUT_CONTENTS = "Metadata"
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": _WITHOUT_CONTENTS, "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


class Right(NamedTuple):
    """The right that a request needs."""

    verb: str
    group: str
    resource: str
    """With its part, such as ``joexpools/status``."""


@dataclass(frozen=True)
class Request:
    """A request, with the code of its answer."""

    right: Right
    namespace: str
    """Empty: in all of them."""
    name: str
    code: int

    @classmethod
    def of(cls, event: dict[str, Any]) -> Self:
        """The request of an event of the log; a request without an object has its path as resource."""
        about = event.get("objectRef", {})
        resource = about.get("resource", event["requestURI"])
        part = f"/{about['subresource']}" if about.get("subresource") else ""
        right = Right(event["verb"], about.get("apiGroup", ""), f"{resource}{part}")
        return cls(right, about.get("namespace", ""), about.get("name", ""), event["responseStatus"]["code"])


class AuditLog:
    """The log of a cluster in a folder. The server writes a request before it sends the answer."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log" / "audit.json"
        self._policy = folder / "audit-policy.json"
        self._policy.write_text(json.dumps(_POLICY))

    @property
    def arguments(self) -> list[str]:
        """The arguments of the API server."""
        return [f"--audit-log-path={self._path}", f"--audit-policy-file={self._policy}"]

    def requests(self, account: str, namespace: str) -> list[Request]:
        """The requests of a service account of a namespace."""
        user = f"system:serviceaccount:{namespace}:{account}"
        events = map(json.loads, self._path.read_text().splitlines())
        return [Request.of(event) for event in events if event["user"]["username"] == user]
