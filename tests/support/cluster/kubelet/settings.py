"""The settings of a kubelet."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

TERMINATION_LOG = "/dev/termination-log"
TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True)
class Settings:
    """All settings of a kubelet; it reads the rest from the API."""

    node: str
    kubeconfig: str
    folder: str
    """The folder of the pods' folders: ``<folder>/<uid of the pod>/``, each with the logs ``<container>.log``."""
    network: str
    """The first three numbers of the pods' addresses."""
    images: str
    """The file of `images.py`."""
    path: str
    """PATH of the containers."""
    marks: dict[str, str]
    """Set for all containers, so that the tests can find and end them."""
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of the node."""
    address: str = "127.0.0.1"
    lease_seconds: float = 2.0
    restart_delay: float = 0.5
    most_restart_delay: float = 5.0

    @classmethod
    def load(cls, text: str) -> Self:
        """Read what `dump` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)

    def dump(self) -> str:
        """These settings as text."""
        return json.dumps(dataclasses.asdict(self))

    def pod_folder(self, uid: str) -> Path:
        """The folder of a pod's files."""
        return Path(self.folder) / uid
