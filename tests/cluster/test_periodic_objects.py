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


async def until_reason(system: System, reason: str, name: str = "nightly") -> Object:
    def holds(found: Object | None) -> bool:
        return found is not None and condition(found, "Ready", what="reason") == reason

    found: Object = await system.api.until(KIND, name, holds, system.namespace, why=f"{name} is {reason}")
    return found


async def rows(system: System, column: str = "id") -> dict[str, Any]:
    """A column of the rows, by the name of their objects."""
    found = await system.db.fetch(f"SELECT id, {column} AS value FROM joex.periodic_task")  # noqa: S608 - a column
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
    row = await system.db.fetchrow("SELECT * FROM joex.periodic_task")
    assert row is not None
    expected = {"id": f"{system.namespace}/nightly", "owner": f"kubernetes:{system.namespace}", "enabled": True}
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
    for name in ("goes", "changes"):
        await apply(system, name)
        await until_reason(system, "Stored", name)
    await first.kill()
    await system.api.delete(KIND, "goes", system.namespace)
    await apply(system, "changes", timer="weekly")
    await apply(system, "comes", timer="daily")
    system.operator()
    await until_rows(system, {"changes": "weekly", "comes": "daily"}, "timer")


async def test_a_task_waits_for_its_pool(system: System) -> None:
    system.operator()
    await apply(system)
    found = await until_reason(system, "UnknownPool")
    assert "spec.pool: there is no JoexPool 'pool'" in condition(found, "Ready", what="message")
    assert (await system.until_event("UnknownPool"))["type"] == "Warning"
    await system.pool()
    await until_reason(system, "Stored")
    await until_rows(system, {"nightly": f"{system.namespace}/nightly"})


async def test_a_row_of_somebody_else_is_left_alone(system: System) -> None:
    system.operator()
    await system.pool()
    await apply(system, timer="yearly")
    await until_reason(system, "Stored")
    await system.db.execute("UPDATE joex.periodic_task SET owner = 'somebody'")
    await apply(system)
    await until_reason(system, "OwnedByOther")
    assert (await system.until_event("OwnedByOther"))["type"] == "Warning"
    await system.api.delete(KIND, "nightly", system.namespace)
    await apply(system, "other")
    await until_reason(system, "Stored", "other")
    assert await rows(system, "timer") == {"nightly": "yearly", "other": "*-*-* 03:00"}


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
    ({"timeZone": ""}, "spec.timeZone"),
    ({"timeZone": "x" * 65}, "spec.timeZone"),
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


async def test_what_only_the_operator_can_see_is_told_by_its_field(system: System) -> None:
    system.operator()
    await system.pool()
    await apply(system, group="\N{SNOWMAN}" * 100)
    found = await until_reason(system, "InvalidSpec")
    assert condition(found, "Ready", what="message").startswith("spec.group: ")
    assert (await system.until_event("InvalidSpec"))["type"] == "Warning"
    await apply(system)
    await until_reason(system, "Stored")
