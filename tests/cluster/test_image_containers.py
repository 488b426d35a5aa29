"""The chart on the image as its Dockerfile makes it.

As in a real container, a program is the first process of its namespace, and its user has no rights. This user has no
entry in passwd, and the Python is the newest one on this machine.
"""

from collections.abc import AsyncIterator

import pytest

from joex import State
from joex.examples import documents
from tests.support.cluster.connection import Object
from tests.support.cluster.helm import Helm
from tests.support.cluster.kubelet.images import Image as LocalImage
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.release import Release, own_database
from tests.support.cluster.system import POOL_LABEL, System
from tests.support.image import AS_FIRST, AS_NOBODY, Image, why_no_containers
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.timeout(300)  # the first one downloads packages that no cache has

NAME = "joex-installed"
APP = "joex.examples.documents:app"
NO_SERVER = "postgresql://joex@127.0.0.1:1/joex"


@pytest.fixture
async def release(
    local_cluster: LocalCluster, helm: Helm, system: System, installed_image: Image
) -> AsyncIterator[Release]:
    assert not why_no_containers(), why_no_containers()
    variables = installed_image.variables
    local_cluster.set_image(NAME, LocalImage(["joex"], environment=variables, before=[*AS_FIRST, *AS_NOBODY]))
    release = Release(system.cluster, system.api, helm, system.namespace)
    values = own_database({"metadata": {"name": "documents"}, "spec": {"app": APP, "scaling": {"maxReplicas": 2}}})
    await release.install({**values, "image": {"repository": NAME}})
    yield release
    print(await release.logs())
    await release.uninstall()


async def test_an_operator_of_the_image_becomes_ready_and_scales_a_pool(release: Release, system: System) -> None:
    await release.until_operator()
    job_id = await system.client.submit("documents.count", {"path": documents.__file__})
    assert job_id is not None
    job = await system.client.wait(job_id, timeout=PATIENCE)
    assert job is not None
    assert job.state == State.SUCCESS


@pytest.mark.soak
async def test_a_pod_that_is_deleted_while_it_waits_for_its_database_ends_at_once(
    release: Release, system: System
) -> None:
    await release.until_operator()
    await system.scale(1, "documents")
    first = await system.pod_of("documents-0")
    await system.set_url(NO_SERVER)
    await system.api.delete("pods", first["metadata"]["name"], system.namespace)
    second = await other_pod(system, first)
    await eventually(lambda: waits(system, second), why="the second pod waits for its database")
    await system.api.delete("pods", second["metadata"]["name"], system.namespace)
    await other_pod(system, second)


async def other_pod(system: System, before: Object) -> Object:
    """Wait until another pod has replaced a pod."""

    def is_another(found: list[Object]) -> bool:
        return len(found) == 1 and found[0]["metadata"]["uid"] != before["metadata"]["uid"]

    [pod] = await system.api.until_all("pods", is_another, system.namespace, labels=POOL_LABEL, timeout=PATIENCE)
    return pod


async def waits(system: System, pod: Object) -> bool:
    return "trying again" in await system.cluster.log(system.api, pod)
