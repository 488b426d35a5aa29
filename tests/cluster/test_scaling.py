"""A pool grows with the work and shrinks without it."""

from tests.support.cluster.system import System, condition


async def test_from_zero_to_the_most_and_back(system: System) -> None:
    system.operator()
    await system.pool()
    await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "AtZero")
    assert await system.slots() == set()

    jobs = [await system.submit("hold", flag="go") for _ in range(5)]
    await system.until_slots("pool-0", "pool-1", "pool-2")
    pool = await system.until_pool(lambda pool: pool["status"]["readyReplicas"] == 3)
    assert condition(pool, "ScalingLimited", what="reason") == "TooManyReplicas"

    await system.effects.flag("go")
    assert await system.effects.all_finished(jobs) == {"success": 5}
    await system.until_slots()
    await system.until_pool(lambda pool: condition(pool, "Ready", what="reason") == "AtZero")
    await system.check()
