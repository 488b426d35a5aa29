"""The definitions of Joex's objects (CRDs); all tests of a cluster share them."""

from functools import partial

import yaml

from tests.support.cluster.api import Api
from tests.support.cluster.chart import CHART
from tests.support.cluster.connection import ApiError, Object
from tests.support.waiting import eventually

KIND = "customresourcedefinitions"
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in (CHART.parents[1] / "crds").glob("*.yaml")}
NAMES = sorted(FILES)


async def remove_definitions(api: Api) -> None:
    """Remove the present definitions, with all their objects in all namespaces."""
    there = {found["metadata"]["name"] for found in await api.get_all(KIND)}
    for name in there.intersection(NAMES):
        # While the API server makes the storage of a kind, it can't delete the objects, and it retries late.
        await eventually(partial(_is_listed, api, name), why=f"{name} is served")
        await api.delete(KIND, name)
        await api.until(KIND, name, lambda found: found is None)


async def apply_definition(api: Api, name: str) -> None:
    """Apply a definition from its file, as a user does."""
    await api.apply(FILES[name])
    await api.until(KIND, name, is_served)


def is_served(found: Object | None) -> bool:
    """Whether the API serves the objects of a definition."""
    conditions = (found or {}).get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


async def _is_listed(api: Api, name: str) -> bool:
    try:
        await api.get_all(name)
    except (ApiError, LookupError):
        return False
    return True
