"""``joex why``: why a job is not running."""

from __future__ import annotations

from joex.cli.database import with_client
from joex.cli.options import AsJson, DatabaseUrl, JobId
from joex.cli.output import print_json, say
from joex.cli.show import get_job
from joex.client.client import Client
from joex.client.explain import Reason


def why(job_id: JobId, *, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """Explain why a job is not running, and what it waits for.

    The reasons that block the job come first, then its place in line.
    """

    async def work(client: Client) -> list[Reason]:
        await get_job(client, job_id)
        return await client.why(job_id)

    reasons = with_client(database_url, work)
    if as_json:
        print_json([{"reason": one.reason, "detail": one.detail, "message": one.message} for one in reasons])
        return
    for reason in reasons:
        say(reason.message)
