"""Several operators: one leads by its Lease. Two that act at the same time disturb only each other, and no job."""

from tests.support.cluster.system import OperatorProcess, System
from tests.support.waiting import eventually


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
    first = system.operator("first")
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
    first = system.operator("first")
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


async def test_two_that_act_at_once_do_no_harm(system: System) -> None:
    for name in ("one", "other"):
        system.operator(name, lease_name=name)
    await system.pool()
    jobs = [await system.submit("hold", flag="go") for _ in range(5)]
    await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 3)
    await system.effects.flag("go")
    assert await system.effects.all_finished(jobs) == {"success": 5}
    await system.until_replicas()
    await does_work(system)
    assert await system.db.fetchval("SELECT sum(losses) FROM joex_private.job") == 0
    assert await system.db.fetchval("SELECT max(n) FROM (SELECT count(*) AS n FROM effects GROUP BY job_id) x") == 1
    # Three at first, and one for the last job: the operators made none in vain.
    assert await system.db.fetchval("SELECT array_agg(DISTINCT ending) FROM joex_private.executor") == ["left"]
    assert await system.db.fetchval("SELECT count(*) FROM joex_private.executor") == 4
    await system.check()
