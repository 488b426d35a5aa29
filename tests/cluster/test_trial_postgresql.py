"""The trial PostgreSQL of the chart, installed in a cluster."""

import base64

import asyncpg
import pytest

from tests.support.cluster.api import Api
from tests.support.cluster.chart import CHART, sets
from tests.support.cluster.connection import Object
from tests.support.cluster.helm import Helm
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.objects import is_available

NAME = "joex-postgresql"


def alone(namespace: str) -> list[str]:
    """Values for a release whose operator has no pool."""
    return sets("crds.install=false", "pool.enabled=false", f"watchNamespaces={{{namespace}}}")


async def test_it_gets_ready_and_its_secret_opens_it(
    local_cluster: LocalCluster, api: Api, helm: Helm, namespace: str
) -> None:
    await helm("install", "joex", CHART, *alone(namespace), namespace=namespace)
    await api.until("deployments", NAME, is_available(1), namespace)
    secret = await contents(api, namespace)
    host, service = f"{NAME}.{namespace}.svc", await api.get("services", NAME, namespace)
    assert secret["url"] == f"postgresql://joex:{secret['password']}@{host}:5432/joex"

    url = secret["url"].replace(host, service["spec"]["clusterIP"])
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url.replace(secret["password"], "wrong"))
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT current_user || '/' || current_database()") == "joex/joex"
        # Its end does not wait for sessions.
        [pod] = await api.get_all("pods", namespace, labels="app.kubernetes.io/component=postgresql")
        await api.delete("pods", pod["metadata"]["name"], namespace)
        await api.until("pods", pod["metadata"]["name"], lambda found: found is None, namespace)
        assert "database system is shut down" in local_cluster.log(pod)
    finally:
        connection.terminate()


async def test_its_password_is_kept_when_the_release_is_upgraded(api: Api, helm: Helm, namespace: str) -> None:
    await helm("install", "joex", CHART, *alone(namespace), namespace=namespace)
    before = await contents(api, namespace)
    running = await pod_template(api, namespace)
    await helm("upgrade", "joex", CHART, *alone(namespace), *sets("operator.logLevel=debug"), namespace=namespace)
    assert await contents(api, namespace) == before
    assert await pod_template(api, namespace) == running
    await helm("upgrade", "joex", CHART, *alone(namespace), *sets("postgresql.password=own"), namespace=namespace)
    assert (await contents(api, namespace))["password"] == "own"


async def contents(api: Api, namespace: str) -> dict[str, str]:
    data: dict[str, str] = (await api.get("secrets", NAME, namespace))["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


async def pod_template(api: Api, namespace: str) -> Object:
    template: Object = (await api.get("deployments", NAME, namespace))["spec"]["template"]
    return template
