# mypy: allow-untyped-defs
# pyright: standard
"""A task without annotations: type checkers know the names of its parameters."""

from typing import Any, assert_type
from uuid import UUID

import joex

app = joex.App()


@app.task("documents.ingest")
def ingest(ctx, path, *, deep=False):
    return path


async def submit(client: joex.Client, job_id: UUID, path: object) -> None:
    await ingest.submit(client, path, deep=True)
    await ingest.submit(client)  # type: ignore[call-arg]
    await ingest.submit(client, path=path, depe=True)  # type: ignore[call-arg]
    assert_type(await ingest.result(client, job_id), Any)
