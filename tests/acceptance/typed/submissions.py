"""Submissions as users write them. Type checkers refuse each line that ignores an error, and no other line."""

from datetime import datetime
from typing import Any, assert_type
from uuid import UUID

import asyncpg
from pydantic import BaseModel

import joex

app = joex.App()


@app.task("documents.ingest", retries=5)
async def ingest(ctx: joex.Context, path: str, pages: list[int] | None = None) -> int:
    return len(pages or path)


@app.periodic("03:00")
@app.task("documents.sweep")
def sweep(ctx: joex.Context, /, *, before: datetime, dry: bool = False) -> list[str]:
    return []


@app.task("documents.merge")
def merge(ctx: object, /, path: str, **parts: int) -> None: ...


class Page(BaseModel):
    number: int


@app.task("documents.print", queue="printers", retries=3, timeout="1m")
def print_pages(ctx: joex.Context, pages: list[Page], *, copies: int = 1) -> None: ...


class Mailer:
    async def send(self, ctx: joex.Context, to: str) -> bool:
        return ctx.is_last_attempt and bool(to)


send = app.task("mails.send")(Mailer().send)


@app.task("no.context")  # type: ignore[arg-type]
def without_context(path: str) -> None: ...


async def right(client: joex.Client, ctx: joex.Context, now: datetime, path: str | None) -> None:
    assert_type(await ingest.submit(client, "a.pdf"), UUID)
    await ingest.submit(client, "a.pdf", [1, 2])
    await ingest.submit(client, path="a.pdf", pages=None)
    await sweep.submit(client, before=now, dry=True)
    await merge.submit(client, path="a.pdf", one=1, two=2)
    await send.submit(client, to="a@example.org")
    await ingest.options(group="acme", not_before="10m", retries=0).submit(client, path="a.pdf")
    assert_type(await ingest.options(priority="high").submit(client, "a.pdf"), UUID)
    assert_type(await ingest.options(tracker="a").submit(client, path="a.pdf"), UUID | None)
    assert_type(await client.submit("documents.ingest", {"path": "a.pdf"}, queue="large"), UUID)
    assert_type(await client.submit("documents.ingest", tracker=path), UUID | None)
    assert_type(await ingest(ctx, "a.pdf"), int)
    assert_type(sweep(ctx, before=now), list[str])
    await print_pages.submit(client, pages=[Page(number=1)], copies=2)
    await print_pages.options(queue="fast").submit(client, [Page(number=1)])


async def right_in_a_transaction(client: joex.Client, connection: asyncpg.Connection[Any], now: datetime) -> None:
    assert_type(await ingest.options(connection=connection).submit(client, "a.pdf"), UUID)
    assert_type(await ingest.options(connection=connection, tracker="a").submit(client, "a.pdf"), UUID | None)
    assert_type(ingest.options(group="acme").new_job("a.pdf"), joex.NewJob)
    jobs = [ingest.new_job("a.pdf", pages=[1]), sweep.new_job(before=now), print_pages.new_job(pages=[])]
    assert_type(await client.submit_many(jobs, connection=connection), list[UUID | None])


async def wrong(client: joex.Client, ctx: joex.Context, now: datetime) -> None:
    await ingest.submit(client)  # type: ignore[call-arg]
    await ingest.submit(client, 7)  # type: ignore[arg-type]
    await ingest.submit(client, path=7)  # type: ignore[arg-type]
    await ingest.submit(client, path="a.pdf", pages=["1"])  # type: ignore[list-item]
    await ingest.submit(client, file="a.pdf")  # type: ignore[call-arg]
    await ingest.submit(client, "a.pdf", path="b.pdf")  # type: ignore[misc]
    await ingest.submit(client, "a.pdf", [1], "more")  # type: ignore[call-arg]
    await ingest.submit(client, ctx, "a.pdf")  # type: ignore[arg-type]
    await ingest.submit("postgresql://localhost", "a.pdf")  # type: ignore[arg-type]
    await ingest.submit(client, "a.pdf", group="acme")  # type: ignore[call-arg]
    await sweep.submit(client, now)  # type: ignore[call-arg]
    await sweep.submit(client, before="03:00")  # type: ignore[arg-type]
    await merge.submit(client, path="a.pdf", one="1")  # type: ignore[arg-type]
    await send.submit(client, to=7)  # type: ignore[arg-type]
    await ingest.options(group="acme").submit(client, paht="a.pdf")  # type: ignore[call-arg]
    await ingest.options(group="acme").submit(client, path=7)  # type: ignore[arg-type]
    await ingest.options(tracker="a").submit(client)  # type: ignore[call-arg]
    ingest.options(grp="acme")  # type: ignore[call-overload]
    ingest.options(retries="5")  # type: ignore[call-overload]
    await client.submit("documents.ingest", group=7)  # type: ignore[call-overload]
    await ingest(None, "a.pdf")  # type: ignore[arg-type]
    await print_pages.submit(client, pages=[{"number": 1}])  # type: ignore[list-item]
    await print_pages.options(queue="fast").submit(client, [], copies="2")  # type: ignore[arg-type]


async def wrong_in_a_transaction(client: joex.Client, connection: asyncpg.Connection[Any]) -> None:
    await ingest.options(connection=connection).submit(client, file="a.pdf")  # type: ignore[call-arg]
    ingest.options(connection="postgresql://localhost")  # type: ignore[call-overload]
    ingest.new_job()  # type: ignore[call-arg]
    ingest.new_job(path=7)  # type: ignore[arg-type]
    ingest.options(group="acme").new_job(client, "a.pdf")  # type: ignore[arg-type]
    await client.submit_many([ingest.submit(client, "a.pdf")])  # type: ignore[list-item]


@ingest.on_cancel
async def clean_up(ctx: joex.Context, path: str, pages: list[int] | None = None) -> None: ...


@ingest.on_cancel  # type: ignore[arg-type]
def clean_up_another(ctx: joex.Context, file: str) -> None: ...
