"""The demand of queues that several pools serve."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from joex_operator.control.sharers import Sharers
from joex_operator.decide.replicas import Phase, Replica
from joex_operator.decide.scaling import Demand, Work
from joex_operator.decide.sharing import Server, able_slots, most_slots, part
from tests.unit.joex_operator.builders import NOW, autoscaled, pool, replica, replicas


def parts(runnable: int, *servers: tuple[int, int]) -> list[int]:
    """The part of each of these pools, given as slots and running jobs."""
    some = [Server(*one) for one in servers]
    return [part(Demand(runnable), one, [*some[:index], *some[index + 1 :]]).runnable for index, one in enumerate(some)]


@pytest.mark.parametrize(
    ("runnable", "servers", "expected"),
    [
        (100, [(100, 0)], [100]),
        (100, [(100, 0), (100, 0)], [50, 50]),
        (100, [(30, 0), (90, 0)], [25, 75]),
        (1, [(10, 0), (10, 0)], [1, 1]),
        (0, [(10, 3), (10, 0)], [0, 0]),
        (60, [(10, 10), (90, 0)], [0, 60]),
        (50, [(10, 0), (100, 100)], [14, 37]),
        (500, [(10, 10), (100, 100)], [46, 455]),
        (100, [(0, 0), (100, 0)], [0, 100]),
    ],
)
def test_pools_that_serve_the_same_queues_divide_the_jobs_by_the_slots_that_they_may_have(runnable, servers, expected):
    assert parts(runnable, *servers) == expected


@pytest.mark.parametrize("taken", [(0, 0), (50, 0), (50, 50), (20, 35), (50, 1)])
def test_who_takes_jobs_first_changes_no_size(taken):
    servers = [(100, running) for running in taken]
    found = parts(100 - sum(taken), *servers)
    assert [running + more for running, more in zip(taken, found, strict=True)] == [50, 50]


@pytest.mark.parametrize("runnable", [1, 7, 100, 199])
@pytest.mark.parametrize("running", [(0, 0, 0), (5, 0, 0), (5, 40, 3), (30, 60, 110)])
def test_there_is_a_slot_for_each_waiting_job_while_one_of_the_pools_may_grow(runnable, running):
    limits = (30, 60, 110)
    found = parts(runnable, *zip(limits, running, strict=True))
    room = sum(limits) - sum(running)
    grown = sum(min(have + more, most) - have for have, more, most in zip(running, found, limits, strict=True))
    assert min(runnable, room) <= grown <= runnable + len(limits)


def test_the_work_of_the_jobs_is_divided_as_they_are():
    demand = Demand(100, 3.0, Work(10.0, 0.5))
    assert part(demand, Server(10, 0), [Server(30, 0)]) == Demand(25, 3.0, Work(2.5, 0.5))


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        ({"scaling": autoscaled(most=10), "poolSize": 4}, 40),
        ({"replicas": 3, "poolSize": 4}, 12),
        ({"suspend": True}, 0),
        ({"deleted_at": NOW}, 0),
    ],
)
def test_the_slots_that_a_pool_may_have(spec: dict[str, Any], slots: int) -> None:
    assert most_slots(pool(**spec)) == slots


@pytest.mark.parametrize(
    ("found", "slots"),
    [
        (replicas(3, Phase.PENDING), 40),
        ([replica(0, held=1), replica(1, Phase.CRASHING), replica(2, Phase.LOST)], 32),
        ([*replicas(2), replica(2, Phase.UNSCHEDULED)], 8),
        ([replica(0), replica(1, Phase.PENDING, problem="ErrImagePull")], 4),
        ([replica(0), replica(1, Phase.PENDING, unready=True)], 4),
        ([replica(0), replica(1, unready=True)], 4),
    ],
)
def test_others_do_not_count_on_slots_of_executors_that_can_not_start(found, slots):
    assert able_slots(pool(scaling=autoscaled(most=10), poolSize=4), found) == slots


def test_others_count_on_no_slots_that_a_pool_may_not_add():
    disabled = autoscaled(most=10, behavior={"scaleUp": {"selectPolicy": "Disabled"}})
    assert able_slots(pool(scaling=disabled, poolSize=4), replicas(2)) == 8
    assert able_slots(pool(scaling=disabled, poolSize=4, replicas=3), replicas(2)) == 12


def test_a_pool_without_executors_that_may_have_none_takes_no_part_in_what_others_ask_of_the_database():
    """Each of them asks for the executors of all that do: of hundreds of suspended pools that is much."""
    database: Any = SimpleNamespace(name="db:5432/shop", is_prepared=True)
    sharers = Sharers()
    own = sharers.starting(pool(), database)

    def beside(found: list[Replica], **spec: Any) -> int:
        other = replace(pool(**spec), name="other")
        sharers.starting(other, database)
        sharers.observed(other, database, found)
        return len(sharers.beside(own))

    assert beside([], suspend=True) == 0
    assert beside([replica(0, Phase.DRAINING, held=1)], suspend=True) == 1
    assert beside([]) == 1
