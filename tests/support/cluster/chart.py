"""The Helm chart, as tests render it."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster.connection import Object
from tests.support.cluster.helm import Helm

CHART = Path(__file__).parents[3] / "charts" / "joex"
OLDEST = "1.30.0"
"""The oldest Kubernetes that the chart supports."""

Key = tuple[str, str]
"""Kind and name."""


def sets(*pairs: str) -> list[str]:
    """Values as arguments of helm.

    >>> sets("a.b=1", "c={x}")
    ['--set', 'a.b=1', '--set', 'c={x}']
    """
    return [word for pair in pairs for word in ("--set", pair)]


async def manifests(helm: Helm, *pairs: str, release: str = "joex", namespace: str = "prod") -> str:
    """The manifests that the chart renders from these values, without reading the cluster.

    Raises:
        HelmError: it refuses them.
    """
    return await helm("template", release, CHART, "--kube-version", OLDEST, *sets(*pairs), namespace=namespace)


async def render(helm: Helm, *pairs: str, release: str = "joex", namespace: str = "prod") -> dict[Key, Object]:
    """The manifests as objects, by kind and name. Raises as `manifests`."""
    text = await manifests(helm, *pairs, release=release, namespace=namespace)
    objects: list[Any] = [found for found in yaml.safe_load_all(text) if found]
    keyed = {(found["kind"], found["metadata"]["name"]): found for found in objects}
    assert len(keyed) == len(objects), "two objects of one kind have the same name"
    return keyed


def pod_templates(objects: dict[Key, Object]) -> dict[str, Object]:
    """The pods that these objects make, or are, by their names."""
    made = {name: found["spec"]["template"] for (kind, name), found in objects.items() if kind == "Deployment"}
    return made | {name: found for (kind, name), found in objects.items() if kind == "Pod"}
