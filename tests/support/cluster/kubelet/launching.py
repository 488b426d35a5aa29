"""From a pod's manifest to processes: volumes written, variables resolved, paths and addresses rewritten."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.cluster import kubeconfig
from tests.support.cluster.connection import ApiError, Connection
from tests.support.cluster.kubeconfig import Access
from tests.support.cluster.kubelet import images
from tests.support.cluster.kubelet.environment import ConfigProblem, ImageProblem, Json, resolve
from tests.support.cluster.kubelet.images import Image
from tests.support.cluster.kubelet.process import Launch
from tests.support.cluster.kubelet.rewriting import Rewriting, expand, services
from tests.support.cluster.kubelet.settings import TERMINATION_LOG, TOKEN_MOUNT, Settings
from tests.support.cluster.kubelet.volumes import Volumes, mounts

_TOKEN_SECONDS = 3600


class Launcher:
    """Prepares the containers of one pod."""

    def __init__(self, settings: Settings, connection: Connection, pod: Json, address: str) -> None:
        self._settings = settings
        self._connection = connection
        # As containers see their pod: with the addresses that the API learns a moment later.
        status = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": settings.address}
        self._pod = {**pod, "status": {**status, "hostIPs": [{"ip": settings.address}]}}
        self._address = address
        self._folder = settings.pod_folder(pod["metadata"]["uid"])
        self._volumes: dict[str, Path] = {}

    async def write_volumes(self) -> None:
        """Write the pod's volumes.

        Raises:
            ConfigProblem: an object that they refer to is missing.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        writer = Volumes(self._pod, self._folder / "volumes", self._fetch, self._token)
        self._volumes = await writer.write()

    def message_path(self, container: str) -> Path:
        """The file into which a container writes its termination message."""
        return self._folder / f"{container}.message"

    async def launch(self, container: Json) -> Launch:
        """How to start a container.

        Raises:
            ConfigProblem: an object that it refers to is missing.
        """
        image = images.find(Path(self._settings.images), container["image"])
        message = {container.get("terminationMessagePath", TERMINATION_LOG): self.message_path(container["name"])}
        rewriting = Rewriting(self._address, {**mounts(container, self._volumes), **message})
        variables = await resolve(container, self._pod, self._fetch, self._variables(image, rewriting))
        texts = "\n".join([*image.argv(container), *variables.values()])
        rewriting = replace(rewriting, services={one: await self._service(*one) for one in services(texts)})
        argv = [rewriting(expand(word, variables)) for word in image.argv(container)]
        if not argv:
            raise ImageProblem(f"there is no entrypoint for the image {container['image']}, and no command")
        rewritten = {name: rewriting(value) for name, value in variables.items()}
        folder = Path(container.get("workingDir") or image.folder or self._folder)
        mark = f"{self._pod['metadata']['uid']}/{container['name']}"
        return Launch(
            [*image.before, *argv],
            {**rewritten, **self._settings.marks},
            folder,
            rewriting,
            mark,
            bool(image.before),
            image.forked,
        )

    def _variables(self, image: Image, rewriting: Rewriting) -> dict[str, str]:
        api = urlsplit(self._connection.server)
        made = {
            "PATH": self._settings.path,
            "HOME": str(self._folder),
            "HOSTNAME": self._pod["metadata"]["name"],
            "LANG": "C.UTF-8",
            **rewriting.variables(),
            **image.environment,
            "KUBERNETES_SERVICE_HOST": str(api.hostname),
            "KUBERNETES_SERVICE_PORT": str(api.port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port),
        }
        if TOKEN_MOUNT in rewriting.mounts:
            made["KUBECONFIG"] = str(self._kubeconfig(rewriting.mounts[TOKEN_MOUNT]))
        return made

    def _kubeconfig(self, token: Path) -> Path:
        access = Access(
            self._connection.server,
            {"certificate-authority": str(token / "ca.crt")},
            {"tokenFile": str(token / "token")},
        )
        document = kubeconfig.document(access)
        document["contexts"][0]["context"]["namespace"] = self._pod["metadata"]["namespace"]
        path = self._folder / "kubeconfig"
        path.write_text(json.dumps(document))
        return path

    async def _fetch(self, plural: str, name: str) -> Json | None:
        return await self._asked("GET", f"{self._namespace}/{plural}/{name}")

    async def _service(self, name: str, namespace: str) -> str:
        """The address of a service; its name if it has no address, which resolves to nothing here."""
        found = await self._asked("GET", f"/api/v1/namespaces/{namespace}/services/{name}")
        if found is None:
            raise ConfigProblem(f"no service {name} in {namespace}, which the container names")
        address = str(found["spec"].get("clusterIP", "None"))
        return f"{name}.{namespace}.svc" if address == "None" else address

    async def _token(self, wanted: Mapping[str, Any]) -> str:
        metadata = self._pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        seconds = wanted.get("expirationSeconds", _TOKEN_SECONDS)
        spec: Json = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if "audience" in wanted:
            spec["audiences"] = [wanted["audience"]]
        account = self._pod["spec"].get("serviceAccountName", "default")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self._asked("POST", f"{self._namespace}/serviceaccounts/{account}/token", body)
        if made is None:
            raise ConfigProblem(f'serviceaccount "{account}" not found')
        return str(made["status"]["token"])

    @property
    def _namespace(self) -> str:
        return f"/api/v1/namespaces/{self._pod['metadata']['namespace']}"

    async def _asked(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """An answer of the API; None: not found. All other errors are reasons to retry later.

        A node may read the objects of its pods only a moment after a pod was bound to it.
        """
        try:
            return await self._connection.request(method, path, body)
        except ApiError as error:
            if error.code == httpx.codes.NOT_FOUND:
                return None
            raise ConfigProblem(str(error)) from error
        except httpx.TransportError as error:
            raise ConfigProblem(repr(error)) from error
