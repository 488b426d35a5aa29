"""The jobs of PeriodicTask objects: the operator submits them even without an executor, and their status shows them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.support.cluster.connection import Object
from tests.support.cluster.system import OperatorProcess, System, condition
from tests.support.waiting import eventually

KIND = "periodictasks.joex.dev"
EVERY_SECOND = "*:*:*"


async def apply(system: System, name: str = "ticks", **spec: Any) -> None:
    manifest = {
        "apiVersion": "joex.dev/v1alpha1",
        "kind": "PeriodicTask",
        "metadata": {"name": name, "namespace": system.namespace},
        "spec": {"pool": "pool", "task": "effect", "timer": EVERY_SECOND, **spec},
    }
    await system.api.apply(manifest)


async def until_status(system: System, holds: Callable[[Object], Any], name: str = "ticks") -> Object:
    """Wait until a condition holds for a status."""
    found: Object = await system.api.until(
        KIND, name, lambda found: found is not None and "status" in found and holds(found["status"]), system.namespace
    )
    return found


async def until_reason(system: System, reason: str, name: str = "ticks") -> Object:
    return await until_status(system, lambda status: condition({"status": status}, "Ready", what="reason") == reason)


async def until_metric(operator: OperatorProcess, name: str, least: float, **labels: str) -> float:
    """Wait until a metric is this large; returns it."""
    series = name + "".join(f'{{{key}="{value}"}}' for key, value in labels.items())

    async def large_enough() -> float | None:
        values = [float(line.split()[1]) for line in (await operator.get("/metrics")).splitlines() if series in line]
        return values[0] if values and values[0] >= least else None

    found: float = await eventually(large_enough, why=f"{series} is {least}")
    return found


async def after_looks(operator: OperatorProcess, looks: int) -> str:
    """Wait for this many more reconciles of pools, and so of tasks; returns the writes until then."""
    before = await until_metric(operator, "joex_operator_reconciles_total", 1, result="ok")
    await until_metric(operator, "joex_operator_reconciles_total", before + looks, result="ok")
    page = await operator.get("/metrics")
    return "\n".join(
        line for line in page.splitlines() if line.startswith("joex_operator_api_requests_total{") and "PATCH" in line
    )


def as_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_due_task_wakes_its_pool_from_zero_and_the_status_tells_of_its_job(system: System) -> None:
    operator = system.operator()
    await system.pool()
    await system.until_reason("AtZero")
    assert await system.executors() == {}
    await apply(system, task="hold", args={"flag": "go"})
    found = await until_status(system, lambda status: status.get("lastJob", {}).get("state") == "running")
    job = found["status"]["lastJob"]["id"]
    await until_metric(
        operator, "joex_periodic_decisions_total", 1, outcome="submitted"
    )  # no other scheduler was there
    assert f"periodic task '{system.namespace}/ticks'" in operator.log

    found = await until_status(system, lambda status: status.get("lastOutcome") == "overlapping")
    status = found["status"]
    assert status["lastJob"]["id"] == job, "there is no second one while it runs"
    assert as_time(status["lastRun"]) < as_time(status["nextRun"])
    assert await system.db.fetchval("SELECT count(*) FROM joex_private.job WHERE task = 'hold'") == 1

    await apply(system, task="hold", args={"flag": "go"}, suspend=True)
    await until_reason(system, "Suspended")
    await system.effects.flag("go")
    found = await until_status(system, lambda status: status["lastJob"].get("state") == "success")
    assert found["status"]["lastJob"]["id"] == job
    assert "nextRun" not in found["status"]
    assert "lastRun" in found["status"]
    await system.until_replicas()


async def test_jobs_are_made_for_a_pool_that_is_to_have_no_executors(system: System) -> None:
    system.operator()
    await system.pool(replicas=0)
    await apply(system)
    # The status of the next time overwrites that of the first, which a test may never see.
    found = await until_status(system, lambda status: status.get("lastOutcome") in ("submitted", "overlapping"))
    assert found["status"]["lastJob"]["state"] == "waiting"
    worker = await system.db.fetchval("SELECT worker FROM joex_private.periodic_task WHERE owner <> 'joex'")
    assert worker == "operator"


async def test_the_operator_that_takes_over_goes_on_with_what_is_due(system: System) -> None:
    first = system.operator("first")
    await system.pool(replicas=0)
    await apply(system)
    await until_status(system, lambda status: status.get("lastOutcome") == "overlapping")
    system.operator("second")
    assert await first.stop() == 0

    async def goes_on() -> bool:
        return bool(
            await system.db.fetchval("SELECT worker = 'second' FROM joex_private.periodic_task WHERE owner <> 'joex'")
        )

    await eventually(goes_on, why="the second one makes jobs")
    assert await system.db.fetchval("SELECT count(*) FROM joex_private.job") == 1, "never two at a time"


async def test_the_status_has_the_next_run_and_is_written_only_when_something_has_changed(system: System) -> None:
    operator = system.operator()
    await system.pool(replicas=0)
    await apply(system, timer="*-*-* 03:00", timeZone="Asia/Tokyo")
    found = await until_status(system, lambda status: "nextRun" in status)
    due = as_time(found["status"]["nextRun"])
    assert (due.hour, due.minute) == (18, 0)
    assert due > datetime.now(UTC)
    assert condition(found, "Ready", what="reason") == "Stored"
    assert found["status"].keys() == {"conditions", "nextRun", "observedGeneration"}

    await system.until_reason("AtZero")
    written = await after_looks(operator, 2)
    assert await after_looks(operator, 4) == written
    again = await system.api.get(KIND, "ticks", system.namespace)
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]

    await apply(system, timer="*-*-* 04:00", timeZone="Asia/Tokyo")
    found = await until_status(system, lambda status: as_time(status["nextRun"]).hour == 19)
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]


async def test_what_can_not_be_submitted_is_told(system: System) -> None:
    system.operator()
    await system.pool(replicas=0)
    await apply(system, timer="yearly")
    await until_reason(system, "Stored")
    await system.db.execute("UPDATE joex_private.periodic_task SET error = 'the reason' WHERE owner <> 'joex'")
    found = await until_reason(system, "Refused")
    assert (condition(found, "Ready"), condition(found, "Ready", what="message")) == ("False", "the reason")
    assert (await system.until_event("Refused"))["type"] == "Warning"
    await apply(system, timer="monthly")
    await until_reason(system, "Stored")


async def test_a_time_that_never_comes_is_told(system: System) -> None:
    system.operator()
    await system.pool(replicas=0)
    await apply(system, timer="2020-02-29")
    await until_reason(system, "NeverDue")
    assert (await system.until_event("NeverDue"))["type"] == "Warning"


async def test_kubectl_shows_when_it_is_due_and_what_came_of_it(system: System) -> None:
    system.operator()
    await system.pool(replicas=0)
    await apply(system)
    found = await until_status(system, lambda status: status.get("lastOutcome") == "overlapping")
    path = f"/apis/joex.dev/v1alpha1/namespaces/{system.namespace}/periodictasks"
    table = await system.api.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    shown = dict(zip([column["name"] for column in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    assert (shown["Task"], shown["Timer"], shown["State"]) == ("effect", EVERY_SECOND, "Stored")
    assert (shown["Outcome"], shown["Job"]) == ("overlapping", "waiting")
    assert as_time(shown["Next"]) >= as_time(found["status"]["nextRun"])
    assert shown["Last"].endswith("s"), "how long ago"
