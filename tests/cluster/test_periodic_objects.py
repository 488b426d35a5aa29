"""PeriodicTask objects become rows of the database of their pool, and follow it."""

from typing import Any

import pytest

from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.system import System, condition
from tests.support.postgres import TestServer
from tests.support.waiting import eventually

KIND = "periodictasks.joex.dev"


async def apply(system: System, name: str = "nightly", **spec: Any) -> None:
    manifest = {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "PeriodicTask",
        "metadata": {"name": name, "namespace": system.namespace},
        "spec": {"pool": "pool", "task": "effect", "timer": "*-*-* 03:00", **spec},
    }
    await system.api.apply(manifest)


async def home(system: System) -> str:
    """The namespace, and which of this name."""
    namespace = await system.api.get("namespaces", system.namespace)
    assert namespace is not None
    return f"{system.namespace}.{namespace['metadata']['uid'][:8]}"


async def until_reason(system: System, reason: str, name: str = "nightly") -> Object:
    def holds(found: Object | None) -> bool:
        return found is not None and condition(found, "Ready", what="reason") == reason

    found: Object = await system.api.until(KIND, name, holds, system.namespace, why=f"{name} is {reason}")
    return found


async def rows(system: System, column: str = "id") -> dict[str, Any]:
    """A column of the rows, by the name of their objects."""
    found = await system.db.fetch(
        f"SELECT id, {column} AS value FROM joex_private.periodic_task WHERE starts_with(id, $1)",  # noqa: S608 - a column
        f"{system.namespace}/",
    )
    return {row["id"].partition("/")[2]: row["value"] for row in found}


async def until_rows(system: System, expected: dict[str, Any], column: str = "id") -> None:
    async def as_expected() -> bool:
        return await rows(system, column) == expected

    await eventually(as_expected, why=f"{column} of the rows: {expected}")


async def test_a_row_follows_its_object(system: System) -> None:
    system.operator()
    await system.pool(queues=["night", "day"])
    given: Object = {"group": "reports", "args": {"days": 7}, "subject": "the week", "submitter": "somebody"}
    await apply(system, timeZone="Europe/Berlin", priority="high", startingDeadline="1h", **given)
    await until_reason(system, "Stored")
    row = await system.db.fetchrow("SELECT * FROM joex_private.periodic_task WHERE owner <> 'joex'")
    assert row is not None
    owner = f"kubernetes:{await home(system)}/pool"
    expected = {"id": f"{system.namespace}/nightly", "owner": owner, "enabled": True}
    expected |= {"task": "effect", "timer": "*-*-* 03:00", "zone": "Europe/Berlin", "queue": "night", "grp": "reports"}
    expected |= {"args": '{"days": 7}', "subject": "the week", "submitter": "somebody", "priority": "high"}
    assert {name: row[name] for name in expected} == expected
    assert row["starting_deadline"].total_seconds() == 3600

    await apply(system, timer="hourly", queue="day")
    await until_rows(system, {"nightly": "hourly"}, "timer")
    await until_rows(system, {"nightly": "day"}, "queue")
    await apply(system, suspend=True)
    await until_reason(system, "Suspended")
    await until_rows(system, {"nightly": False}, "enabled")
    await apply(system, suspend=False)
    await until_reason(system, "Stored")
    await system.api.delete(KIND, "nightly", system.namespace)
    await until_rows(system, {})


async def test_rows_are_brought_in_line_with_what_happened_while_no_operator_was_there(system: System) -> None:
    first = system.operator()
    await system.pool()
    for name in ("goes", "changes", "rests", "breaks"):
        await apply(system, name)
        await until_reason(system, "Stored", name)
    await first.kill()
    await system.api.delete(KIND, "goes", system.namespace)
    await apply(system, "changes", timer="weekly")
    await apply(system, "rests", suspend=True)
    await apply(system, "breaks", timer="whenever")
    await apply(system, "comes", timer="daily")
    system.operator()
    stored = "*-*-* 03:00"
    await until_rows(system, {"breaks": stored, "changes": "weekly", "comes": "daily", "rests": stored}, "timer")
    await until_rows(system, {"breaks": False, "changes": True, "comes": True, "rests": False}, "enabled")


async def test_a_task_waits_for_its_pool(system: System) -> None:
    system.operator()
    await apply(system)
    found = await until_reason(system, "UnknownPool")
    assert "spec.pool: there is no JoexPool 'pool'" in condition(found, "Ready", what="message")
    assert (await system.until_event("UnknownPool"))["type"] == "Warning"
    await system.pool()
    await until_reason(system, "Stored")
    await until_rows(system, {"nightly": f"{system.namespace}/nightly"})


async def test_a_task_that_is_made_anew_for_another_pool_leaves_no_row_behind(
    system: System,
) -> None:
    """Both pools have the same database, by different URLs."""
    system.operator()
    await system.set_url(f"{system.url}&application_name=other", "other")
    await system.pool()
    await system.pool("other", database={"secretName": "other"}, queues=["other"])
    await apply(system)
    await until_rows(system, {"nightly": "default"}, "queue")
    await system.api.delete(KIND, "nightly", system.namespace)
    await apply(system, pool="other")
    await until_reason(system, "Stored")
    await until_rows(system, {"nightly": "other"}, "queue")
    await until_rows(system, {"nightly": f"kubernetes:{await home(system)}/other"}, "owner")


async def test_the_rows_of_a_pool_that_is_gone_go_with_it(system: System) -> None:
    system.operator()
    await system.pool()
    await apply(system)
    await until_reason(system, "Stored")
    await system.api.delete("joexpools.joex.dev", "pool", system.namespace)
    await until_reason(system, "UnknownPool")
    await until_rows(system, {})
    await system.pool()
    await until_reason(system, "Stored")
    await until_rows(system, {"nightly": True}, "enabled")


async def test_the_row_of_a_person_is_left_alone_until_it_is_gone(system: System) -> None:
    put = "SELECT joex.put_periodic_task($1, 'effect', 'yearly')"
    row = f"{system.namespace}/nightly"
    assert await system.db.fetchval(put, row) == "set"
    system.operator()
    await system.pool()
    await apply(system)
    found = await until_reason(system, "OwnedByOther")
    assert f"{row!r} of another owner" in condition(found, "Ready", what="message")
    assert (await system.until_event("OwnedByOther"))["type"] == "Warning"
    assert await rows(system, "timer") == {"nightly": "yearly"}

    assert await system.db.fetchval("SELECT joex.remove_periodic_task($1)", row) == "removed"
    await until_reason(system, "Stored")
    await until_rows(system, {"nightly": "*-*-* 03:00"}, "timer")
    assert await system.db.fetchval(put, row) == "not_yours"
    assert await system.db.fetchval("SELECT joex.remove_periodic_task($1)", row) == "not_yours"
    assert await system.db.fetchval("SELECT joex.enable_periodic_task($1, false)", row) == "not_yours"
    assert await rows(system, "timer") == {"nightly": "*-*-* 03:00"}


async def test_an_object_that_goes_leaves_the_row_of_a_person(system: System) -> None:
    system.operator()
    await system.pool()
    await system.db.fetchval("SELECT joex.put_periodic_task($1, 'effect', 'yearly')", f"{system.namespace}/nightly")
    await apply(system)
    await until_reason(system, "OwnedByOther")
    await system.api.delete(KIND, "nightly", system.namespace)
    await apply(system, "other")
    await until_reason(system, "Stored", "other")
    assert await rows(system, "timer") == {"nightly": "yearly", "other": "*-*-* 03:00"}


async def test_a_row_that_somebody_has_changed_by_hand_is_put_right(system: System) -> None:
    system.operator()
    await system.pool()
    await apply(system)
    await until_reason(system, "Stored")
    await system.db.execute(
        "UPDATE joex_private.periodic_task SET enabled = false, timer = 'yearly' WHERE owner <> 'joex'"
    )
    await until_rows(system, {"nightly": "*-*-* 03:00"}, "timer")
    await until_rows(system, {"nightly": True}, "enabled")


async def test_a_database_that_is_away_holds_up_no_task_of_another(
    system: System, postgres: TestServer, empty_database_url: str
) -> None:
    """The pool whose database can't be reached is the first one in order."""
    nowhere = empty_database_url.replace(f"port={postgres.port}", "port=1")
    await system.set_url(nowhere, "away")
    await system.pool("away", database={"secretName": "away"})
    await system.pool()
    await apply(system, "away", pool="away")
    await apply(system)
    system.operator()
    await until_reason(system, "Unreachable", "away")
    assert (await system.until_event("Unreachable"))["involvedObject"]["kind"] in ("JoexPool", "PeriodicTask")
    await until_reason(system, "Stored")
    await system.api.delete(KIND, "nightly", system.namespace)
    await until_rows(system, {})

    await system.set_url(system.url, "away")
    await until_reason(system, "Stored", "away")


REFUSED: list[tuple[Object, str]] = [
    ({"pool": "Pool"}, "spec.pool"),
    ({"pool": "p" * 41}, "spec.pool"),
    ({"pool": None}, "spec.pool"),
    ({"task": ""}, "spec.task"),
    ({"task": "t" * 255}, "spec.task"),
    ({"task": None}, "spec.task"),
    ({"timer": ""}, "spec.timer"),
    ({"timer": "x" * 255}, "spec.timer"),
    ({"timer": None}, "spec.timer"),
    ({"timer": " \t"}, "spec.timer"),
    ({"timer": "daily!"}, "expected a systemd calendar event such as 'Mon..Fri 08:30', or a cron line"),
    ({"timer": "(0 3 * * *)"}, "expected a systemd calendar event such as 'Mon..Fri 08:30', or a cron line"),
    ({"timeZone": ""}, "spec.timeZone"),
    ({"timeZone": "x" * 65}, "spec.timeZone"),
    ({"timeZone": "Europe Berlin"}, "expected a name such as 'Europe/Zurich', or 'UTC'"),
    ({"timeZone": "+02:00"}, "expected a name such as 'Europe/Zurich', or 'UTC'"),
    ({"suspend": "yes"}, "spec.suspend"),
    ({"group": ""}, "spec.group"),
    ({"group": "g" * 255}, "spec.group"),
    ({"args": "text"}, "spec.args"),
    ({"subject": "s" * 1001}, "spec.subject"),
    ({"submitter": "s" * 255}, "spec.submitter"),
    ({"priority": "urgent"}, "spec.priority"),
    ({"queue": "a,b"}, "spec.queue"),
    ({"queue": ""}, "spec.queue"),
    ({"startingDeadline": "soon"}, "spec.startingDeadline"),
    ({"startingDeadline": "99999h"}, "spec.startingDeadline"),
]


async def test_a_wrong_task_is_refused_by_its_field(system: System) -> None:
    taken = {}
    for change, field in REFUSED:
        try:
            await apply(system, "wrong", **change)
        except ApiError as error:
            if field in str(error):
                continue
            taken[str(change)[:60]] = str(error)
        else:
            taken[str(change)[:60]] = "taken"
    assert taken == {}


async def test_the_pool_of_a_task_can_not_be_changed(system: System) -> None:
    await apply(system)
    with pytest.raises(ApiError, match=r"spec\.pool: .*pool can't be changed: make another PeriodicTask"):
        await apply(system, pool="other")


@pytest.mark.parametrize(
    ("wrong", "reason", "said"),
    [
        ({"timer": "every day"}, "InvalidTimer", "spec.timer: "),
        ({"timer": "0 25 * * *"}, "InvalidTimer", "spec.timer: hour: expected 0 to 23; got '25'"),
        ({"timeZone": "Europe/Nowhere"}, "UnknownZone", "spec.timeZone: expected a name like 'Europe/Zurich' or 'UTC'"),
        ({"group": "\N{SNOWMAN}" * 100}, "InvalidSpec", "spec.group: "),
        ({"subject": "\N{SNOWMAN}" * 900}, "InvalidSpec", "spec.subject: "),
        ({"args": {"text": "\0"}}, "InvalidSpec", "spec.args: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_only_the_operator_can_see_is_told_by_its_field_and_nothing_is_made_until_it_is_mended(
    system: System, wrong: Object, reason: str, said: str
) -> None:
    system.operator()
    await system.pool()
    await apply(system, timer="hourly")
    await until_reason(system, "Stored")
    await apply(system, **{"timer": "hourly", **wrong})
    found = await until_reason(system, reason)
    message = condition(found, "Ready", what="message")
    assert message.startswith(said)
    assert message.endswith("; no jobs are submitted until this is fixed")
    assert condition(found, "Ready") == "False"
    assert (await system.until_event(reason))["type"] == "Warning"
    await until_rows(system, {"nightly": False}, "enabled")
    assert await rows(system, "timer") == {"nightly": "hourly"}

    await apply(system, timer="daily")
    await until_reason(system, "Stored")
    await until_rows(system, {"nightly": True}, "enabled")
    assert await rows(system, "timer") == {"nightly": "daily"}


async def test_a_wrong_task_stops_no_other(system: System) -> None:
    system.operator()
    await system.pool()
    await apply(system, "a", timer="every day")
    await apply(system, "b")
    await until_reason(system, "InvalidTimer", "a")
    await until_reason(system, "Stored", "b")
    assert await rows(system, "enabled") == {"b": True}
