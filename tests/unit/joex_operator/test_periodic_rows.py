"""PeriodicTask objects as rows: desired rows, changes, conditions, and the time of the next reconcile."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from joex.store.periodic import PeriodicTask, TaskKey
from joex_operator.decide.periodic_rows import (
    DesiredRow,
    changes,
    condition,
    desired_row,
    next_reconcile,
    owner,
    with_next_run,
)
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.status import periodic_status
from tests.unit.joex_operator.builders import NOW, pool

POOLS = {"documents": pool(queues=["night", "day"]), "broken": None}
POLL = 15.0
JOB = UUID(int=7)


def manifest(name: str = "nightly", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "PeriodicTask",
        "metadata": {"name": name, "namespace": "prod", "uid": "task-uid", "generation": 4},
        "spec": {"pool": "documents", "task": "clean", "timer": "*-*-* 03:00", **spec},
    }


def desired(name: str = "nightly", **spec: Any) -> DesiredRow:
    return desired_row(manifest(name, **spec), POOLS)


def row(of: DesiredRow | None = None, **fields: Any) -> PeriodicTask:
    """The row of a desired one in the database, after a scheduler has computed its next run."""
    wanted = (of or desired()).row
    assert wanted is not None
    stored = {name: getattr(wanted, name) for name in wanted.__slots__} | {"priority": str(wanted.priority)}
    known = dict.fromkeys(["last_run", "last_outcome", "last_job", "last_job_state", "error", "worker", "marked"])
    times = {"nextrun": NOW + timedelta(hours=1), "created_at": NOW, "changed_at": NOW}
    own = {"owner": owner("prod", "documents"), "key": ""}
    return PeriodicTask(**{**stored, **known, **times, **own, **fields})


def ready(of: DesiredRow, found: PeriodicTask | DatabaseProblem | None) -> tuple[str, str]:
    told = condition(of, found)
    assert told.type == "Ready"
    return told.status, told.reason


def test_an_object_that_is_being_deleted_and_stays_for_a_finalizer_submits_no_jobs():
    going = manifest()
    going["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    found, before = desired_row(going, POOLS), row()
    assert changes([found], [before]).disable == [before.name]
    assert ready(found, before) == ("False", "Deleting")


def test_an_object_asks_for_a_row_with_the_first_queue_of_its_pool():
    found = desired(timeZone="Europe/Berlin", args={"days": 7}, priority="high", startingDeadline="1h").row
    assert found is not None
    assert (found.id, found.queue, found.zone, found.args) == ("prod/nightly", "night", "Europe/Berlin", {"days": 7})
    assert (found.priority, found.starting_deadline, found.enabled) == ("high", timedelta(hours=1), True)


def test_a_queue_of_its_own_wins_and_a_suspended_one_is_not_enabled():
    found = desired(queue="day", suspend=True).row
    assert found is not None
    assert (found.queue, found.enabled) == ("day", False)


def test_the_queue_of_another_pool_is_refused_and_a_row_there_is_disabled():
    """The executors of another namespace on the database may serve it: the pool's login reaches them all."""
    before = row(desired(queue="day"))
    found = desired_row(manifest(queue="day"), {"documents": pool(queues=["night", "noon"])})
    assert found.row is None
    assert changes([found], [before]).disable == [before.name]
    assert ready(found, before) == ("False", "InvalidSpec")
    said = "spec.queue: 'day' is no queue of the JoexPool 'documents', which serves 'night', 'noon'"
    assert condition(found, None).message == said


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"pool": "other"}, "UnknownPool", "spec.pool: there is no JoexPool 'other' in this namespace"),
        ({"timer": "every day"}, "InvalidTimer", "spec.timer: "),
        ({"timer": "every day", "pool": "other"}, "InvalidTimer", "spec.timer: "),
        ({"timeZone": "Mars"}, "UnknownZone", "spec.timeZone: "),
        ({"timer": "every day", "timeZone": "Mars"}, "InvalidSpec", "spec.timer: "),
        ({"task": ""}, "InvalidSpec", "spec.task: "),
        ({"subject": "ä" * 501}, "InvalidSpec", "spec.subject: "),
        ({"args": {"a": "\0"}}, "InvalidSpec", "spec.args: "),
    ],
)
def test_what_is_wrong_with_an_object_is_said_by_its_field(spec, reason, said):
    found = desired(**spec)
    assert found.row is None
    assert found.error is not None
    assert (found.error.reason, found.pool) == (reason, spec.get("pool", "documents"))
    assert str(found.error).startswith(said)
    assert ready(found, None) == ("False", reason)


def test_of_a_pool_that_can_not_be_worked_with_nothing_is_known():
    found = desired(pool="broken")
    assert (found.row, found.error) == (None, None)
    assert ready(found, DatabaseProblem("InvalidPool", "")) == ("Unknown", "InvalidPool")
    assert not changes([found], [row()])


def test_a_row_that_is_as_asked_is_left_alone():
    one = desired(args={"b": [1, {"c": None}], "a": 1.5}, startingDeadline="90s")
    assert not changes([one], [row(one)])
    assert not changes([one], [row(one, args={"a": 1.5, "b": [1, {"c": None}]})]), "the order says nothing"


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "other"},
        {"timer": "daily"},
        {"zone": "Europe/Berlin"},
        {"args": {"days": True}},
        {"priority": "high"},
        {"subject": "other"},
        {"submitter": "other"},
        {"starting_deadline": timedelta(0)},
        {"enabled": False},
    ],
    ids=str,
)
def test_a_row_that_differs_is_put_right(fields):
    one = desired(args={"days": 1})
    assert changes([one], [row(one, **fields)]).put == [one.row]


def test_what_is_asked_for_is_put_and_what_nobody_asks_for_goes():
    one, new = desired("one"), desired("new")
    todo = changes([one, new], [row(one), row(id="prod/old")])
    assert (todo.put, todo.remove, todo.disable) == ([new.row], [TaskKey("prod/old", "night", "default")], [])


@pytest.mark.parametrize("fields", [{"group": "other"}, {"queue": "other"}], ids=str)
def test_a_row_that_moves_goes_where_it_is_and_comes_where_it_is_asked_for(fields):
    one, stored = desired(), row(**fields)
    todo = changes([one], [stored])
    assert (todo.put, todo.remove, todo.disable) == ([one.row], [stored.name], [])


def test_the_row_of_an_object_that_is_wrong_by_now_rests():
    wrong = desired(timer="every day")
    assert changes([wrong], [row()]).disable == [row().name]
    assert not changes([wrong], [row(enabled=False)])
    assert not changes([wrong], [])
    told = condition(wrong, row(enabled=False))
    assert (told.reason, told.bad) == ("InvalidTimer", True)
    assert told.message.endswith("; no jobs are submitted until this is fixed")


def test_a_condition_says_whether_jobs_are_made():
    assert ready(desired(), row()) == ("True", "Stored")
    assert ready(desired(suspend=True), row(enabled=False)) == ("True", "Suspended")
    assert ready(desired(), row(error="no such zone", nextrun=None)) == ("False", "Refused")
    assert ready(desired(), None) == ("False", "OwnedByOther")
    assert ready(desired(), DatabaseProblem("Unreachable", "")) == ("Unknown", "Unreachable")
    assert ready(desired(timer="whenever"), DatabaseProblem("Unreachable", "")) == ("False", "InvalidTimer")


def test_a_timer_without_a_next_time_is_bad_only_if_it_never_had_one():
    never = condition(desired(), row(nextrun=None))
    over = condition(desired(), row(nextrun=None, last_run=NOW))
    assert (never.status, never.reason, never.bad) == ("True", "NeverDue", True)
    assert (over.status, over.reason, over.bad) == ("True", "NeverDue", False)


def test_a_next_time_that_nobody_has_worked_out_yet_is_the_one_that_will_be():
    one = desired(timeZone="Asia/Tokyo")
    assert with_next_run(row(one, nextrun=None), NOW).nextrun == NOW.replace(hour=18)
    assert with_next_run(row(one, nextrun=None, last_run=NOW.replace(hour=18)), NOW).nextrun == NOW.replace(
        day=NOW.day + 1, hour=18
    )
    for stays in (row(one), row(one, nextrun=None, enabled=False), row(one, nextrun=None, error="refused")):
        assert with_next_run(stays, NOW) == stays
    for never in (replace(row(), timer="2020-01-01", nextrun=None), replace(row(), timer="by hand", nextrun=None)):
        assert with_next_run(never, NOW) == never


@pytest.mark.parametrize(
    ("due_in", "expected"),
    [(3600, POLL), (10, 10.5), (5, 5.5), (1, 5), (0, 5), (-60, 5)],
)
def test_the_next_look_is_when_a_task_was_due_and_never_at_once(due_in, expected):
    due = row(nextrun=NOW + timedelta(seconds=due_in))
    assert next_reconcile([row(), due], NOW, POLL) == expected
    assert next_reconcile([due], NOW, 1.0) == 1.0


def test_what_is_at_rest_is_looked_at_by_the_poll():
    resting = [row(enabled=False, nextrun=NOW), row(error="refused", nextrun=NOW), row(nextrun=None)]
    assert next_reconcile(resting, NOW, POLL) == POLL
    assert next_reconcile([], NOW, POLL) == POLL


def test_a_status_has_what_is_known_and_nothing_else():
    told = condition(desired(), row())
    fresh = periodic_status(told, row(), 4, {}, NOW)
    assert fresh["nextRun"] == "2026-11-20T13:00:00Z"
    assert fresh.keys() == {"observedGeneration", "conditions", "nextRun"}

    ran = row(last_run=NOW, last_outcome="submitted", last_job=JOB, last_job_state="running")
    status = periodic_status(told, ran, 4, fresh, NOW)
    assert (status["lastRun"], status["lastOutcome"]) == ("2026-11-20T12:00:00Z", "submitted")
    assert status["lastJob"] == {"id": str(JOB), "state": "running"}
    deleted = row(last_run=NOW, last_outcome="submitted", last_job=JOB)
    assert periodic_status(told, deleted, 4, status, NOW)["lastJob"] == {"id": str(JOB)}

    none = periodic_status(condition(desired(pool="other"), None), None, 5, status, NOW)
    assert none.keys() == {"observedGeneration", "conditions"}
