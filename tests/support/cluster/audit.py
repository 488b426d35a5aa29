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
    """What a request wants to be allowed to."""

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
        """What an event of the log tells of; a request for no object has its path for a resource."""
        about = event.get("objectRef", {})
        resource = about.get("resource", event["requestURI"])
        part = f"/{about['subresource']}" if about.get("subresource") else ""
        right = Right(event["verb"], about.get("apiGroup", ""), f"{resource}{part}")
        return cls(right, about.get("namespace", ""), about.get("name", ""), event["responseStatus"]["code"])


class AuditLog:
    """The log of a cluster in a folder. A request is in it before its answer is sent."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log" / "audit.json"
        self._policy = folder / "audit-policy.json"
        self._policy.write_text(json.dumps(_POLICY))

    @property
    def arguments(self) -> list[str]:
        """For the API server."""
        return [f"--audit-log-path={self._path}", f"--audit-policy-file={self._policy}"]

    def requests(self, account: str, namespace: str) -> list[Request]:
        """The requests of a service account of a namespace."""
        user = f"system:serviceaccount:{namespace}:{account}"
        events = map(json.loads, self._path.read_text().splitlines())
        return [Request.of(event) for event in events if event["user"]["username"] == user]
