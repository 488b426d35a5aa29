"""The operator's numbers for Prometheus."""

import doctest
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

import joex
from joex.observe import queue_gauges
from joex.store.stats import QueueStats, Shares
from joex_operator.api.objects import SpecError
from joex_operator.decide.actions import (
    AskDrain,
    CreateReplica,
    DeleteReplica,
    ForgetReplica,
    ReportGone,
    UpdateReplica,
    Why,
)
from joex_operator.decide.conditions import refused
from joex_operator.decide.history import History
from joex_operator.decide.plan import decide
from joex_operator.decide.replicas import ObservedExecutor, Phase
from joex_operator.metrics import OperatorMetrics, databases
from tests.unit.joex_operator.builders import NOW, autoscaled, pool, replica, replicas, seen

POOL = {"namespace": "prod", "pool": "documents"}


@pytest.fixture
def metrics():
    return OperatorMetrics()


def samples(metrics):
    page, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    for family in text_string_to_metric_families(page.decode()):
        yield from family.samples


def value(metrics, name, **labels):
    return next((one.value for one in samples(metrics) if one.name == name and one.labels == labels), None)


def by(label, metrics, name):
    return {one.labels[label]: one.value for one in samples(metrics) if one.name == name}


def observe(metrics, found, *, asked_for=None, seconds=0.0, database="db/shop", **spec):
    asked_for = asked_for or pool(scaling=autoscaled(), **spec)
    now = NOW + timedelta(seconds=seconds)
    metrics.observed(asked_for, found, decide(asked_for, found, History(), now), now, database=database)


def act(metrics, *actions, on=None, seconds=0.0):
    for action in actions:
        metrics.acted(pool(), action, on, NOW + timedelta(seconds=seconds))


def stats(queue="default", waiting=0, oldest=None, groups=1):
    return QueueStats(queue, waiting, 2, 3, 4, 5, oldest, groups)


def shares(queue="default", *, active=1, share=None, waits=(None, None), behind=0, seconds=None):
    median, longest = waits
    return Shares(queue, active, "acme", share, median, longest, behind, seconds)


def test_executors_are_counted_in_every_phase(metrics):
    observe(
        metrics,
        seen(replica(0), replica(1, held=1), replica(2, held=2), replica(3, Phase.PENDING), replica(4, Phase.DRAINING)),
    )
    counted = dict.fromkeys(Phase, 0) | {"idle": 1, "busy": 2, "pending": 1, "draining": 1}
    assert by("phase", metrics, "joex_pool_executors") == counted


def test_a_pool_tells_its_size_its_bounds_its_slots_and_its_work(metrics):
    observe(
        metrics,
        seen(*replicas(2), replica(2, held=3), runnable=7),
        asked_for=pool(scaling=autoscaled(1, 9), poolSize=4),
    )
    assert value(metrics, "joex_pool_executors_desired", **POOL) == 3
    assert value(metrics, "joex_pool_executors_min", **POOL) == 1
    assert value(metrics, "joex_pool_executors_max", **POOL) == 9
    assert value(metrics, "joex_pool_slots", **POOL) == 12
    assert value(metrics, "joex_pool_slots_busy", **POOL) == 3
    assert value(metrics, "joex_pool_runnable_jobs", **POOL) == 7


@pytest.mark.parametrize(("order", "size"), [({"replicas": 3}, 3), ({"suspend": True}, 0), ({"deleted_at": NOW}, 0)])
def test_the_bounds_are_those_that_hold_now(metrics, order, size):
    observe(metrics, seen(), asked_for=pool(scaling=autoscaled(1, 9), **order))
    assert value(metrics, "joex_pool_executors_min", **POOL) == size
    assert value(metrics, "joex_pool_executors_max", **POOL) == size


def test_what_a_draining_executor_holds_is_in_no_slot_of_the_pool(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING, held=2)))
    assert value(metrics, "joex_pool_slots", **POOL) == 0
    assert value(metrics, "joex_pool_slots_busy", **POOL) == 0


def test_conditions_are_numbers(metrics):
    observe(metrics, seen(replica(0, Phase.UNKNOWN), runnable=None))
    told = by("type", metrics, "joex_pool_condition")
    assert (told["ScalingLimited"], told["DatabaseReachable"], told["Ready"]) == (0, 0, -1)
    observe(metrics, seen())
    assert by("type", metrics, "joex_pool_condition")["DatabaseReachable"] == 1


def test_a_pool_that_has_become_invalid_is_not_ready_and_nothing_old_is_told_of_it(metrics):
    observe(metrics, seen(replica(0)))
    assert by("type", metrics, "joex_pool_condition")["Ready"] == 1
    metrics.pools.refused("prod", "documents", refused(SpecError("spec.template: expected an object")))
    assert by("type", metrics, "joex_pool_condition") == {"Ready": 0, "Reconciling": 0, "Stalled": 1}
    assert by("phase", metrics, "joex_pool_executors") == {}
    observe(metrics, seen(replica(0)))
    told = by("type", metrics, "joex_pool_condition")
    assert (told["Ready"], told["Stalled"]) == (1, 0)
    metrics.forget("prod", "documents")
    assert by("type", metrics, "joex_pool_condition") == {}


def test_what_only_the_database_knows_is_absent_while_it_is_silent(metrics):
    observe(metrics, seen(replica(0, Phase.UNKNOWN), replica(1, Phase.UNKNOWN), runnable=None))
    assert by("phase", metrics, "joex_pool_executors") == {"unknown": 2, "going": 0}
    for name in ("slots", "slots_busy", "runnable_jobs", "executors_overdue"):
        assert value(metrics, f"joex_pool_{name}", **POOL) is None
    assert value(metrics, "joex_pool_executors_desired", **POOL) == 2


def test_executors_that_drain_for_too_long_are_counted(metrics):
    late = replica(0, Phase.DRAINING, held=1, since=timedelta(hours=2))
    observe(metrics, seen(late, replica(1, Phase.DRAINING)))
    assert value(metrics, "joex_pool_executors_overdue", **POOL) == 1


def test_a_pool_tells_which_queues_of_which_database_it_serves(metrics):
    observe(metrics, seen(), queues=["mail", "slow"])
    assert value(metrics, "joex_pool_queue_info", **POOL, database="db/shop", queue="slow") == 1
    assert set(by("queue", metrics, "joex_pool_queue_info")) == {"mail", "slow"}
    observe(metrics, seen(), queues=["mail"], database=None)
    assert by("queue", metrics, "joex_pool_queue_info") == {}


def test_a_start_is_measured_from_the_creation_until_the_executor_takes_jobs(metrics):
    observe(metrics, seen(runnable=1))
    act(metrics, CreateReplica(0, Why.DEMAND), CreateReplica(1, Why.DEMAND), seconds=1)
    observe(metrics, seen(runnable=1), seconds=1.5)  # not seen yet
    observe(metrics, seen(*replicas(2, Phase.PENDING)), seconds=2)
    observe(metrics, seen(replica(0), replica(1, Phase.PENDING)), seconds=3)
    observe(metrics, seen(replica(0), replica(1, held=1)), seconds=5)
    observe(metrics, seen(replica(0), replica(1)), seconds=9)
    assert value(metrics, "joex_executor_startup_seconds_count", **POOL) == 2
    assert value(metrics, "joex_executor_startup_seconds_sum", **POOL) == 2 + 4


def test_a_start_that_another_operator_began_is_not_measured(metrics):
    observe(metrics, seen(replica(0, Phase.PENDING)))
    observe(metrics, seen(replica(0)), seconds=2)
    assert value(metrics, "joex_executor_startup_seconds_count", **POOL) == 0


def test_a_start_in_place_is_not_measured_again(metrics):
    act(metrics, CreateReplica(0, Why.DEMAND))
    for seconds, phase in enumerate([Phase.IDLE, Phase.PENDING, Phase.IDLE]):
        observe(metrics, seen(replica(0, phase)), seconds=seconds)
    assert value(metrics, "joex_executor_startup_seconds_count", **POOL) == 1


def test_an_executor_that_is_let_go_before_it_has_started_is_not_measured(metrics):
    act(metrics, CreateReplica(0, Why.DEMAND))
    for seconds, phase in enumerate([Phase.PENDING, Phase.RETIRED, Phase.GOING, Phase.IDLE]):
        observe(metrics, seen(replica(0, phase)), seconds=seconds)
    assert value(metrics, "joex_executor_startup_seconds_count", **POOL) == 0


def test_a_drain_is_measured_from_when_the_database_says_that_it_began(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING, held=1, since=timedelta(minutes=5))))
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 0
    observe(metrics, seen(replica(0, Phase.RETIRED)), seconds=60)
    observe(metrics, seen(replica(0, Phase.GOING)), seconds=70)
    observe(metrics, seen(), seconds=80)
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 1
    assert value(metrics, "joex_executor_drain_seconds_sum", **POOL) == 360


def test_a_drain_is_measured_by_the_clock_of_the_database_though_that_of_the_operator_is_behind(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING, since=timedelta(minutes=5))), seconds=-600)
    observe(metrics, seen(), seconds=-590)
    assert value(metrics, "joex_executor_drain_seconds_sum", **POOL) == 310


def test_a_drain_whose_replica_is_not_there_any_more_is_over(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING)))
    observe(metrics, seen(), seconds=10)
    assert value(metrics, "joex_executor_drain_seconds_sum", **POOL) == 10


def test_two_drains_of_one_name_are_two(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING, since=timedelta(seconds=30))))
    observe(metrics, seen(replica(0, Phase.DRAINING, since=timedelta(seconds=5))))
    observe(metrics, seen())
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 2
    assert value(metrics, "joex_executor_drain_seconds_sum", **POOL) == 35


def test_a_drain_goes_on_while_the_database_is_silent(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING)))
    observe(metrics, seen(replica(0, Phase.UNKNOWN), runnable=None), seconds=10)
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 0
    observe(metrics, seen(replica(0, Phase.RETIRED)), seconds=20)
    assert value(metrics, "joex_executor_drain_seconds_sum", **POOL) == 20


def test_a_drain_that_is_not_ours_is_not_measured(metrics):
    somebody_else = ObservedExecutor(alive=True, draining=True, pods=("pod-0",))
    observe(metrics, seen(replica(0, executor=somebody_else)))
    observe(metrics, seen(), seconds=10)
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 0


def test_a_drain_that_becomes_ours_is_measured_from_then_on(metrics):
    observe(metrics, seen(replica(0, executor=ObservedExecutor(alive=True, draining=True, pods=("pod-0",)))))
    observe(metrics, seen(replica(0, Phase.DRAINING)))
    observe(metrics, seen(), seconds=10)
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 1
    assert value(metrics, "joex_executor_drain_seconds_sum", **POOL) == 10


DECISIONS = [
    (CreateReplica(0, Why.DEMAND), "up", "demand"),
    (CreateReplica(0, Why.FALLBACK), "up", "fallback"),
    (AskDrain("documents-0", only_if_idle=True, why=Why.DEMAND), "down", "demand"),
    (AskDrain("documents-0", only_if_idle=False, why=Why.SUSPENDED), "down", "suspended"),
    (AskDrain("documents-0", only_if_idle=False, why=Why.TEMPLATE), "replace", "template"),
    (AskDrain("documents-0", only_if_idle=True, why=Why.LOST), "replace", "lost"),
    (DeleteReplica("documents-0", "uid-0", Why.DRAIN_TIMEOUT), "down", "drain timeout"),
    (DeleteReplica("documents-0", "uid-0", Why.UNREACHABLE), "down", "unreachable"),
    (UpdateReplica("documents-0", "uid-0"), "repair", "replicas"),
    (ReportGone("pod-0"), "repair", "pod gone"),
]


@pytest.mark.parametrize(("action", "direction", "reason"), DECISIONS)
def test_decisions_are_counted_by_direction_and_reason(metrics, action, direction, reason):
    act(metrics, action, action)
    assert value(metrics, "joex_pool_decisions_total", **POOL, direction=direction, reason=reason) == 2


@pytest.mark.parametrize(
    "action", [DeleteReplica("documents-0", "uid-0", Why.RETIRED), ForgetReplica("documents-0", retired_at=NOW)]
)
def test_carrying_on_with_a_decision_is_not_another_one(metrics, action):
    act(metrics, action)
    assert by("direction", metrics, "joex_pool_decisions_total") == {}


def test_an_executor_that_is_ended_while_it_holds_jobs_is_counted(metrics):
    busy = replica(0, Phase.DRAINING, held=2)
    observe(metrics, seen(busy))
    act(metrics, DeleteReplica(busy.name, "uid-0", Why.DRAIN_TIMEOUT), on=busy)
    assert by("reason", metrics, "joex_busy_executor_terminations_total") == {"drain timeout": 1, "unreachable": 0}


def test_who_held_jobs_when_the_database_last_spoke_is_remembered(metrics):
    observe(metrics, seen(replica(0), replica(1, held=1)))
    unknown = replicas(2, Phase.UNKNOWN)
    observe(metrics, seen(*unknown, runnable=None))
    for one in unknown:
        act(metrics, DeleteReplica(one.name, str(one.uid), Why.UNREACHABLE), on=one)
    assert by("reason", metrics, "joex_busy_executor_terminations_total") == {"drain timeout": 0, "unreachable": 1}


@pytest.mark.parametrize(
    "found", [replica(0, Phase.PENDING), replica(0, executor=ObservedExecutor(held=2, retired_at=NOW))]
)
def test_the_end_of_a_replica_in_which_nobody_lives_is_no_loss(metrics, found):
    observe(metrics, seen(found))
    act(metrics, DeleteReplica(found.name, str(found.uid), Why.RETIRED), on=found)
    assert sum(by("reason", metrics, "joex_busy_executor_terminations_total").values()) == 0


def test_what_people_are_alerted_by_is_there_from_the_start(metrics):
    observe(metrics, seen())
    assert by("reason", metrics, "joex_busy_executor_terminations_total") == {"drain timeout": 0, "unreachable": 0}
    assert value(metrics, "joex_pool_decisions_total", **POOL, direction="up", reason="demand") == 0
    assert value(metrics, "joex_jobs_reclaimed_total", cause="pod gone") == 0
    assert by("result", metrics, "joex_operator_reconciles_total") == {"ok": 0, "error": 0}


def test_of_a_pool_that_is_gone_nothing_is_left(metrics):
    observe(metrics, seen(replica(0, Phase.DRAINING, held=1)))
    act(metrics, CreateReplica(1, Why.DEMAND), AskDrain("documents-0", only_if_idle=False, why=Why.TEMPLATE))
    act(metrics, DeleteReplica("documents-0", "uid-0", Why.DRAIN_TIMEOUT), on=replica(0, Phase.DRAINING, held=1))
    metrics.forget("prod", "other")
    metrics.forget("elsewhere", "documents")
    assert {one.labels["pool"] for one in samples(metrics) if "pool" in one.labels} == {"documents"}
    metrics.forget("prod", "documents")
    assert [one for one in samples(metrics) if "pool" in one.labels] == []
    metrics.forget("prod", "documents")


def test_a_pool_that_comes_again_begins_anew(metrics):
    act(metrics, CreateReplica(0, Why.DEMAND))
    observe(metrics, seen(replica(1, Phase.DRAINING)))
    metrics.forget("prod", "documents")
    observe(metrics, seen(replica(0)), seconds=10)
    assert value(metrics, "joex_executor_startup_seconds_count", **POOL) == 0
    assert value(metrics, "joex_executor_drain_seconds_count", **POOL) == 0
    assert value(metrics, "joex_pool_decisions_total", **POOL, direction="up", reason="demand") == 0


def test_queues_are_told_by_state(metrics):
    metrics.databases.queues("postgresql://db/shop", [stats(waiting=1, oldest=12.5, groups=3)])
    states = {"waiting": 1, "deferred": 2, "scheduled": 3, "running": 4, "stuck": 5}
    assert by("state", metrics, "joex_queue_jobs") == states
    assert value(metrics, "joex_queue_oldest_runnable_seconds", database="db/shop", queue="default") == 12.5
    assert value(metrics, "joex_queue_groups", database="db/shop", queue="default") == 3


def test_a_queue_in_which_nothing_may_run_has_no_oldest_job(metrics):
    metrics.databases.queues("postgresql://db/shop", [stats(oldest=None)])
    assert by("queue", metrics, "joex_queue_oldest_runnable_seconds") == {}


def test_queues_that_vanish_go_and_other_databases_stay(metrics):
    metrics.databases.queues("postgresql://db/shop", [stats("mail"), stats("slow")])
    metrics.databases.queues("postgresql://db/other", [stats("mail")])
    metrics.databases.queues("postgresql://db/shop", [stats("slow")])
    told = {(one.labels["database"], one.labels["queue"]) for one in samples(metrics) if one.name == "joex_queue_jobs"}
    assert told == {("db/shop", "slow"), ("db/other", "mail")}


def test_queues_that_submitters_make_up_do_not_make_numbers_without_end(metrics, monkeypatch):
    monkeypatch.setattr(queue_gauges, "MOST_QUEUES", 2)
    metrics.databases.queues(
        "postgresql://db/shop",
        [stats(f"queue {n}", waiting=n, oldest=n if n != 3 else None, groups=n) for n in range(5)],
    )
    waiting = {one.labels["queue"]: one.value for one in samples(metrics) if one.labels.get("state") == "waiting"}
    assert waiting == {"queue 0": 0, "queue 1": 1, "(others)": 9}
    assert value(metrics, "joex_queue_oldest_runnable_seconds", database="db/shop", queue="(others)") == 4
    assert value(metrics, "joex_queue_groups", database="db/shop", queue="(others)") == 9


DEFAULT = {"database": "db/shop", "queue": "default"}


def test_how_slots_are_shared_is_told_by_queue(metrics):
    metrics.databases.shares(
        "postgresql://db/shop", [shares(active=30, share=0.75, waits=(2.5, 60.0), behind=3, seconds=50.0)]
    )
    assert value(metrics, "joex_queue_active_groups", **DEFAULT) == 30
    assert value(metrics, "joex_queue_largest_group_share", **DEFAULT) == 0.75
    assert by("quantile", metrics, "joex_queue_group_wait_seconds") == {"0.5": 2.5, "1": 60.0}
    assert value(metrics, "joex_queue_groups_behind", **DEFAULT) == 3
    assert value(metrics, "joex_queue_behind_seconds", **DEFAULT) == 50.0
    assert "acme" not in {label for one in samples(metrics) for label in one.labels.values()}


def test_where_nobody_holds_or_waits_there_is_no_share_and_no_wait(metrics):
    metrics.databases.shares("postgresql://db/shop", [shares()])
    assert value(metrics, "joex_queue_groups_behind", **DEFAULT) == 0
    for name in ("joex_queue_largest_group_share", "joex_queue_group_wait_seconds", "joex_queue_behind_seconds"):
        assert by("queue", metrics, name) == {}
    metrics.databases.shares("postgresql://db/shop", [])
    assert by("queue", metrics, "joex_queue_groups_behind") == {}


def test_shares_in_queues_that_submitters_make_up_are_told_together(metrics, monkeypatch):
    monkeypatch.setattr(databases, "MOST_QUEUES", 1)
    found = [shares(f"queue {n}", active=n, share=n / 10, waits=(n, 10 * n), behind=1, seconds=n) for n in range(1, 4)]
    metrics.databases.shares("postgresql://db/shop", [*found, shares("queue 4")])
    assert by("queue", metrics, "joex_queue_active_groups") == {"queue 1": 1, "(others)": 2 + 3 + 1}
    assert by("queue", metrics, "joex_queue_groups_behind") == {"queue 1": 1, "(others)": 2}
    assert by("queue", metrics, "joex_queue_largest_group_share") == {"queue 1": 0.1, "(others)": 0.3}
    assert by("queue", metrics, "joex_queue_behind_seconds") == {"queue 1": 1, "(others)": 3}
    others = {"database": "db/shop", "queue": "(others)"}
    assert value(metrics, "joex_queue_group_wait_seconds", **others, quantile="0.5") == 3
    assert value(metrics, "joex_queue_group_wait_seconds", **others, quantile="1") == 30


def test_of_a_silent_database_no_queue_is_told(metrics):
    metrics.databases.reachable("postgresql://db/shop", value=True)
    metrics.databases.queues("postgresql://db/shop", [stats()])
    metrics.databases.shares("postgresql://db/shop", [shares()])
    metrics.databases.reachable("postgresql://db/shop", value=False)
    assert by("database", metrics, "joex_operator_database_reachable") == {"db/shop": 0}
    assert by("queue", metrics, "joex_queue_jobs") == {}
    assert by("queue", metrics, "joex_queue_active_groups") == {}


def test_of_a_database_that_nobody_uses_nothing_is_left(metrics):
    metrics.databases.reachable("postgresql://db/shop", value=True)
    metrics.databases.queues("postgresql://db/shop", [stats(oldest=1.0)])
    metrics.databases.shares("postgresql://db/shop", [shares(share=1.0)])
    metrics.databases.forget("postgresql://db/shop")
    metrics.databases.forget("postgresql://db/shop")
    assert [one for one in samples(metrics) if "database" in one.labels] == []


def test_a_role_that_works_hides_none_that_does_not(metrics):
    good, bad = "postgresql://app:secret@db/shop", "postgresql://old:secret@db/shop"
    for url in (bad, good):
        metrics.databases.reachable(url, value=True)
        metrics.databases.queues(url, [stats(waiting=7)])
    metrics.databases.reachable(bad, value=False)
    metrics.databases.reachable(good, value=True)
    assert by("database", metrics, "joex_operator_database_reachable") == {"db/shop": 0}
    assert by("state", metrics, "joex_queue_jobs")["waiting"] == 7, "which the other one has counted"
    metrics.databases.forget(bad)
    assert by("database", metrics, "joex_operator_database_reachable") == {"db/shop": 1}


def test_a_database_is_called_so_that_no_password_is_shown():
    assert doctest.testmod(databases) == (0, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://u@/shop?host=db.prod&port=5433", "postgresql://u@/shop?host=db.prod&port=5434"),
        ("postgresql://u@db.prod/shop?port=5433", "postgresql://u@db.prod/shop?port=5434"),
        ("postgresql://u@a:1,b/shop?port=5433", "postgresql://u@a:1,b/shop?port=5434"),
        ("postgresql://u@db.prod?dbname=shop", "postgresql://u@db.prod?dbname=bank"),
        ("postgresql://u@db.prod?database=shop", "postgresql://u@db.prod?database=bank"),
        ("postgresql://shop@db.prod", "postgresql://bank@db.prod"),
        ("postgresql://shop@db.prod/", "postgresql://bank@db.prod/"),
        ("postgresql://db.prod?user=shop", "postgresql://db.prod?user=bank"),
    ],
)
def test_two_databases_have_two_names(one, other):
    """Else the pools of one would leave a part of its jobs to those of the other."""
    assert databases.database_name(one) != databases.database_name(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("postgresql://u@db.prod/shop?dbname=x", "postgresql://v:p@db.prod/shop?dbname=y"),
        ("postgresql://u@db.prod:5432/shop?port=1&host=a", "postgresql://v:p@db.prod:5432/shop?sslmode=require"),
    ],
)
def test_urls_that_lead_to_one_database_give_it_one_name(one, other):
    assert databases.database_name(one) == databases.database_name(other)


def test_reconciles_are_counted_and_the_last_good_one_is_dated(metrics):
    name = "joex_operator_last_success_timestamp_seconds"
    metrics.own.reconciled(0.02, ok=False, now=NOW)
    assert value(metrics, name) is None
    metrics.own.reconciled(0.03, ok=True, now=NOW)
    metrics.own.reconciled(0.04, ok=False, now=NOW + timedelta(minutes=1))
    assert value(metrics, name) == NOW.timestamp()
    assert by("result", metrics, "joex_operator_reconciles_total") == {"ok": 1, "error": 2}
    assert value(metrics, "joex_operator_reconcile_seconds_count") == 3


def test_the_way_from_a_submission_to_a_deployment_is_measured(metrics):
    metrics.replica_timings.woken(0.06)
    assert value(metrics, "joex_scale_up_seconds_bucket", le="0.05") == 0
    assert value(metrics, "joex_scale_up_seconds_bucket", le="0.075") == 1


def test_reclaimed_jobs_and_requests_are_counted(metrics):
    metrics.decisions.reclaimed(3)
    metrics.own.api_request("PATCH", "200")
    assert value(metrics, "joex_jobs_reclaimed_total", cause="pod gone") == 3
    assert value(metrics, "joex_operator_api_requests_total", method="PATCH", code="200") == 1


def test_what_became_of_periodic_tasks_is_counted_from_the_start(metrics):
    metrics.own.repeated("submitted")
    metrics.own.repeated("submitted")
    metrics.own.repeated("late")
    counted = {"submitted": 2, "late": 1, "overlapping": 0, "refused": 0, "trouble": 0}
    assert by("outcome", metrics, "joex_periodic_decisions_total") == counted


def test_an_operator_that_does_not_lead_tells_nothing_that_only_the_leader_sees(metrics):
    assert value(metrics, "joex_operator_leader") == 0
    metrics.leading(value=True)
    observe(metrics, seen(replica(0)))
    metrics.databases.queues("postgresql://db/shop", [stats()])
    metrics.databases.shares("postgresql://db/shop", [shares()])
    metrics.databases.reachable("postgresql://db/shop", value=True)
    assert value(metrics, "joex_operator_leader") == 1
    metrics.leading(value=False)
    assert value(metrics, "joex_operator_leader") == 0
    gauges = ("joex_queue_jobs", "joex_queue_active_groups", "joex_operator_database_reachable")
    assert [one for one in samples(metrics) if one.name in gauges or "pool" in one.labels] == []


def test_the_version_is_told(metrics):
    assert by("version", metrics, "joex_operator_info") == {joex.__version__: 1}
