"""Several operators: one of a release leads by its Lease, and one release acts in a namespace.

Two that act at the same time disturb only each other, and no job.
"""

from collections.abc import Iterable
from contextlib import suppress

from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.system import DEPLOYMENTS, OperatorProcess, System
from tests.support.waiting import eventually

SHORT = {"leader_election._DURATION": 5, "leader_election._DEADLINE": 4, "leader_election._RENEW_EVERY": 1}
"""A Lease whose end a test waits for; its holder writes into it how long it lasts."""
OFTEN = {"namespace_claims._RENEW_EVERY": 6, "namespace_claims._LOOK_EVERY": 1}
"""Claims that are renewed, and looked at, often enough for a test to wait for that."""


async def until_leads(operator: OperatorProcess) -> None:
    await eventually(lambda: f"{operator.name} leads" in operator.log, why=f"{operator.name} leads")


async def holder(system: System) -> str:
    lease = await system.api.get("leases.coordination.k8s.io", "joex-operator", system.namespace)
    return str(lease["spec"]["holderIdentity"])


async def does_work(system: System) -> None:
    """The pool grows for a job, and shrinks after it."""
    job = await system.submit("effect")
    assert await system.effects.all_finished([job]) == {"success": 1}
    await system.until_replicas()


async def waiting(system: System, name: str) -> OperatorProcess:
    """An operator that waits for the Lease."""
    operator = system.operator(name)
    await eventually(lambda: "probes and metrics" in operator.log)
    return operator


async def test_the_next_one_takes_over_at_once_from_one_that_ends(system: System) -> None:
    await system.pool()
    first = system.operator("first")
    await until_leads(first)
    second = await waiting(system, "second")
    assert await holder(system) == "first"
    assert await first.stop() == 0
    assert await holder(system) in ("", "second")
    await until_leads(second)
    await does_work(system)


async def test_the_next_one_takes_over_from_one_that_is_killed_when_its_lease_is_over(system: System) -> None:
    await system.pool()
    first = system.operator("first", times=SHORT)
    await until_leads(first)
    second = await waiting(system, "second")
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)
    await first.kill()
    await until_leads(second)
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    await system.until_replicas()
    await system.check()


async def test_a_leader_that_was_paused_steps_down_when_it_goes_on(system: System) -> None:
    await system.pool()
    first = system.operator("first", times=SHORT)
    await until_leads(first)
    await does_work(system)
    second = await waiting(system, "second")
    first.pause()
    await until_leads(second)
    held = await system.submit("hold", flag="go")
    await system.effects.begun(held)

    first.resume()
    await eventually(lambda: "first leads no more" in first.log)
    assert await holder(system) == "second"
    await system.effects.flag("go")
    assert await system.effects.all_finished([held]) == {"success": 1}
    await system.until_replicas()
    assert len(await system.effects.of(held)) == 1
    await system.check()


def release(system: System, lease_name: str) -> str:
    """The release of operators that elect a leader by this Lease."""
    return f"{system.namespace}/{lease_name}"


async def claim(system: System) -> Object:
    """The claim of the namespace."""
    lease: Object = await system.api.get("leases.coordination.k8s.io", "joex.dev", system.namespace)
    return dict(lease["spec"])


async def claimant(system: System) -> str:
    return str((await claim(system))["holderIdentity"])


def images(deployments: Iterable[Object]) -> set[str]:
    """The images of their executors."""
    return {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in deployments}


async def until_leaves_alone(system: System, operator: OperatorProcess, holder: str) -> None:
    """Wait until it reports that another release manages the namespace."""
    await until_leads(operator)

    async def says() -> bool:
        return f"the release {holder} manages the namespace {system.namespace}" in await operator.get("/readyz")

    await eventually(says, why=f"{operator.name} leaves the namespace alone")


async def test_of_two_releases_one_acts_and_the_other_says_so_and_leaves_its_pools_alone(
    system: System, namespaces: Namespaces
) -> None:
    pool = system.manifest(replicas=1)
    del pool["spec"]["image"]  # so that each release would use its own
    await system.api.apply(pool)
    first = system.operator("first", image=system.cluster.image)
    await system.until_ready(1)
    deployments = await system.api.get_all(DEPLOYMENTS, system.namespace)

    both = f"{await namespaces.make()},{system.namespace}"
    second = system.operator("second", lease_name="other", namespaces=both, image="joex:other")
    await until_leaves_alone(system, second, release(system, "joex-operator"))
    await system.change(suspend=True)
    await system.until_replicas()
    await system.change(suspend=False)
    await system.until_ready(1)
    metrics = await second.get("/metrics")
    assert "joex_operator_leader 1.0" in metrics
    assert 'pool="pool"' not in metrics
    made = await system.api.get_all(DEPLOYMENTS, system.namespace)
    # (The first pod may still be there while it drains, and then the new one has another number.)
    assert images(made) == images(deployments)

    assert await first.stop() == 0
    assert await claimant(system) == release(system, "joex-operator"), "its next operator goes on"
    await system.api.delete("leases.coordination.k8s.io", "joex.dev", system.namespace)
    await eventually(lambda: is_held_by(system, "other"))


async def test_a_claim_that_moves_while_both_releases_run_does_no_harm(system: System) -> None:
    one = system.operator("one", lease_name="one", times=OFTEN)
    await system.pool()
    jobs = [await system.submit("hold", flag="go") for _ in range(5)]
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 3)
    other = system.operator("other", lease_name="other", times=OFTEN)
    await until_leaves_alone(system, other, release(system, "one"))

    renewed = (await claim(system))["renewTime"]
    await system.api.until(
        "leases.coordination.k8s.io", "joex.dev", lambda found: found["spec"]["renewTime"] != renewed, system.namespace
    )
    change = {"spec": {"holderIdentity": release(system, "other")}}
    await system.api.patch("leases.coordination.k8s.io", "joex.dev", change, system.namespace)
    await system.effects.flag("go")  # both act for six seconds: then one sees that it lost the claim
    assert await system.effects.all_finished(jobs) == {"success": 5}
    await until_leaves_alone(system, one, release(system, "other"))
    await system.until_replicas()
    await does_work(system)
    assert await system.db.fetchval("SELECT sum(losses) FROM joex_private.job") == 0
    assert await system.db.fetchval("SELECT max(n) FROM (SELECT count(*) AS n FROM effects GROUP BY job_id) x") == 1
    # Three at first, and one for the last job: the operators made none in vain.
    assert await system.db.fetchval("SELECT array_agg(DISTINCT ending) FROM joex_private.executor") == ["left"]
    assert await system.db.fetchval("SELECT count(*) FROM joex_private.executor") == 4
    await system.check()


async def is_held_by(system: System, lease_name: str) -> bool:
    with suppress(ApiError):
        return await claimant(system) == release(system, lease_name)
    return False
