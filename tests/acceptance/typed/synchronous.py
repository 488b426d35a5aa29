"""The synchronous client as users call it. Type checkers refuse each line that ignores an error, and no other line."""

from typing import assert_type
from uuid import UUID

import psycopg

import joex
import joex.sync

app = joex.App()


@app.task("documents.ingest")
async def ingest(ctx: joex.Context, path: str) -> int:
    return len(path)


@app.task("documents.sweep")
def sweep(ctx: joex.Context) -> list[str]:
    return []


def use(client: joex.sync.Client, other: joex.Client, held: psycopg.Connection, job_id: UUID) -> None:
    assert_type(ingest.submit(client, "a.pdf"), UUID)
    assert_type(ingest.options(group="acme", connection=held).submit(client, path="a.pdf"), UUID)
    assert_type(ingest.options(tracker="a").submit(client, path="a.pdf"), UUID | None)
    assert_type(client.submit("documents.ingest", {"path": "a.pdf"}, queue="large"), UUID)
    assert_type(client.submit("documents.ingest", tracker="a"), UUID | None)
    assert_type(client.submit_many([ingest.new_job("a.pdf")], connection=held), list[UUID | None])
    assert_type(ingest.result(client, job_id), int)
    assert_type(sweep.result(client, job_id, timeout="30s"), list[str])
    assert_type(client.cancel(job_id), str)
    assert_type(client.get(job_id), joex.Job | None)
    assert_type(client.wait_many([job_id]), list[joex.Job | None])
    assert_type(client.periodic.get("nightly"), joex.PeriodicTask | None)
    client.groups.set("acme", weight=2)
    ingest.submit(other, "a.pdf")  # type: ignore[unused-coroutine]
    ingest.submit(client, 7)  # type: ignore[arg-type]
    ingest.submit(client, file="a.pdf")  # type: ignore[call-arg]
    client.cancel("a")  # type: ignore[arg-type]
    client.groups.set("acme", wait=2)  # type: ignore[call-arg]
