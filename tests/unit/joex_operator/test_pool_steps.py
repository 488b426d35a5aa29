"""The steps of a pool: the reason of its size in a sentence, and the numbers behind it."""

import pytest

from joex_operator.decide.history import History
from joex_operator.decide.plan import decide
from joex_operator.decide.pool_steps import pool_step
from joex_operator.decide.replicas import Phase
from tests.unit.joex_operator.builders import NOW, autoscaled, pool, replica, replicas, seen

SLOTS = 20


def step(*found, runnable=0, next_due=None, deleted_at=None, size=SLOTS, **spec):
    given = pool(poolSize=size, deleted_at=deleted_at, **{"scaling": autoscaled(), **spec})
    observed = seen(*found, runnable=runnable, next_due=next_due)
    return pool_step("prod.3f2a9c1e", given, observed, decide(given, observed, History(), NOW))


def test_a_step_has_the_numbers_that_were_decided_upon():
    made = step(replica(0, held=8), replica(1, Phase.PENDING), replica(2, Phase.DRAINING, held=3),
                runnable=230, next_due=9.5)  # fmt: skip
    assert (made.namespace, made.home, made.pool) == ("prod", "prod.3f2a9c1e", "documents")
    assert (made.before, made.target, made.ready, made.draining) == (2, 10, 1, 1)
    assert (made.mode, made.wanted, made.capped_by) == ("demand", 12, "maxReplicas")
    assert (made.runnable, made.held, made.next_due) == (230, 8, 9.5)
    assert made.why == "238 jobs wait or run, 20 slots each: 12 executors; the maximum is 10"


def test_while_the_database_is_away_there_is_no_step():
    assert step(*replicas(2, Phase.UNKNOWN), runnable=None) is None


TWICE = {"scaleUp": {"policies": [{"type": "Executors", "value": 2, "periodSeconds": 60}]}}
SLOWLY = {"scaleDown": {"stabilizationWindowSeconds": 300}}
CALMLY = {"scaleUp": {"stabilizationWindowSeconds": 60}}


@pytest.mark.parametrize(
    ("found", "given", "target", "why"),
    [
        ([], {"runnable": 38}, 2, "38 jobs wait or run, 20 slots each: 2 executors"),
        ([], {"runnable": 38, "scaling": autoscaled(target={"wait": "30s"})}, 2,
         "38 jobs wait or run, 38 slots for a wait of 30s, 20 slots each: 2 executors"),
        ([], {"runnable": 1, "size": 1}, 1, "1 job waits or runs, 1 slot each: 1 executor"),
        ([], {}, 0, "no jobs wait or run"),
        (replicas(1), {}, 0, "no jobs wait or run"),
        ([], {"scaling": autoscaled(least=2)}, 2, "no jobs wait or run; the minimum is 2"),
        ([], {"runnable": 2000, "scaling": autoscaled(most=3)}, 3,
         "at least 2000 jobs wait or run, 20 slots each: 100 executors; the maximum is 3"),
        ([], {"runnable": 38, "scaling": autoscaled(idleReserve=1, targetUtilization=50)}, 5,
         "38 jobs wait or run, 20 slots each, 50 % of them in use, 1 in reserve: 5 executors"),
        ([], {"scaling": autoscaled(idleReserve=1)}, 1, "no jobs wait or run, 20 slots each, 1 in reserve: 1 executor"),
        (replicas(10, held=19), {"scaling": autoscaled(tolerance=0.2, most=20), "runnable": 31}, 10,
         "221 jobs wait or run, 20 slots each: 12 executors; 10 are within the tolerance"),
        ([replica(0), replica(1, Phase.DRAINING, held=7)], {}, 1,
         "no jobs wait or run; no fewer than 1 while draining executors run 7 jobs"),
        ([], {"runnable": 100, "scaling": autoscaled(behavior=TWICE)}, 2,
         "100 jobs wait or run, 20 slots each: 5 executors; the policies of scaleUp allow 2 for now"),
        (replicas(3), {"scaling": autoscaled(behavior=SLOWLY)}, 3,
         "no jobs wait or run; 3 until fewer have sufficed for the stabilization window"),
        (replicas(1), {"runnable": 100, "scaling": autoscaled(behavior=CALMLY)}, 1,
         ("100 jobs wait or run, 20 slots each: 5 executors; "
          "1 until more have been wanted for the stabilization window")),
        (replicas(1), {"runnable": 100, "replicas": 3}, 3, "spec.replicas is 3"),
        (replicas(1), {"runnable": 100, "suspend": True}, 0, "spec.suspend is set"),
        (replicas(1), {"runnable": 100, "deleted_at": NOW}, 0, "the pool is being deleted"),
    ],
)  # fmt: skip
def test_the_reason_is_a_sentence(found, given, target, why):
    made = step(*found, **given)
    assert (made.target, made.why) == (target, why)
