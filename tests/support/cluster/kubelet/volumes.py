"""Volumes as folders: the volumes of a pod's manifest, written once, when the pod starts."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.cluster.kubelet.environment import ConfigProblem, Fetch, Json, pod_field, read

Token = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Makes the service-account token of a projected source."""


class Volumes:
    """Writes the volumes of a pod below a folder."""

    def __init__(self, pod: Json, folder: Path, fetch: Fetch, token: Token) -> None:
        self._pod = pod
        self._folder = folder
        self._fetch = fetch
        self._token = token

    async def write(self) -> dict[str, Path]:
        """Write all; returns the folder of each.

        Raises:
            ConfigProblem: an object that they refer to is missing, or the kind of a volume is unknown here.
        """
        made = {}
        for volume in self._pod["spec"].get("volumes", []):
            if "hostPath" in volume:
                made[volume["name"]] = Path(volume["hostPath"]["path"])
                continue
            folder = self._folder / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for path, data in (await self._files(volume)).items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            if "emptyDir" in volume:
                folder.chmod(0o777)
            made[volume["name"]] = folder
        return made

    async def _files(self, volume: Json) -> dict[str, bytes]:
        if "emptyDir" in volume:
            return {}
        if "projected" in volume:
            files: dict[str, bytes] = {}
            for source in volume["projected"]["sources"]:
                files |= await self._source(source)
            return files
        return await self._source(volume)

    async def _source(self, source: Json) -> dict[str, bytes]:
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            return {wanted["path"]: (await self._token(wanted)).encode()}
        if "downwardAPI" in source:
            items = source["downwardAPI"].get("items", [])
            return {item["path"]: pod_field(self._pod, item["fieldRef"]["fieldPath"]).encode() for item in items}
        for kind, plural in (("secret", "secrets"), ("configMap", "configmaps")):
            if kind in source:
                return _chosen(await read(self._fetch, plural, source[kind]) or {}, source[kind])
        kinds = ", ".join(key for key in source if key != "name")
        raise ConfigProblem(f"this kubelet has no volumes of the kind {kinds}")


def _chosen(entries: Mapping[str, bytes], reference: Mapping[str, Any]) -> dict[str, bytes]:
    if "items" not in reference:
        return dict(entries)
    missing = [item["key"] for item in reference["items"] if item["key"] not in entries]
    if missing and not reference.get("optional"):
        raise ConfigProblem(f"references non-existent secret or config key: {', '.join(missing)}")
    return {item["path"]: entries[item["key"]] for item in reference["items"] if item["key"] in entries}


def mounts(container: Json, volumes: Mapping[str, Path]) -> dict[str, Path]:
    """The folders of a container's mounts, by their paths in it."""
    return {
        mount["mountPath"].rstrip("/") or "/": volumes[mount["name"]] / mount.get("subPath", "")
        for mount in container.get("volumeMounts", [])
    }
