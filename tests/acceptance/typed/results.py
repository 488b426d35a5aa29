"""Results as users read them. Type checkers refuse each line that ignores an error, and no other line."""

from dataclasses import dataclass
from typing import Any, assert_type
from uuid import UUID

from pydantic import BaseModel

import joex

app = joex.App()


@dataclass
class Report:
    pages: int


@app.periodic("03:00")
@app.task("reports.write")
async def write(ctx: joex.Context, year: int) -> Report:
    return Report(year)


@app.task("reports.list")
def names(ctx: joex.Context) -> list[str]:
    return []


class Summary(BaseModel):
    words: int


@app.task("reports.summarize")
def summarize(ctx: joex.Context, report: Report) -> Summary | None:
    return None


@app.task("reports.drop")
async def drop(ctx: joex.Context) -> None: ...


async def read(client: joex.Client, job_id: UUID, task: joex.Task[..., Any]) -> None:
    assert_type(await write.result(client, await write.submit(client, 2030)), Report)
    assert_type(await names.result(client, job_id, timeout="30s"), list[str])
    assert_type(await drop.result(client, job_id), None)
    assert_type(await summarize.result(client, await summarize.submit(client, Report(1))), Summary | None)
    assert_type(await task.result(client, job_id), Any)
    assert_type(joex.NoResult("", None).job, joex.Job | None)
    skipped = await write.options(tracker="2030").submit(client, 2030)
    await write.result(client, skipped)  # type: ignore[arg-type]
    await write.result(client, str(job_id))  # type: ignore[call-overload]
    print((await write.result(client, job_id)).page)  # type: ignore[attr-defined]
    text: str = await names.result(client, job_id)  # type: ignore[assignment]
    print(text)
