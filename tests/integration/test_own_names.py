"""Names of tasks and trackers that begin with joex. are Joex's own: the database refuses them to everybody else."""

from typing import Any

import asyncpg
import httpx
import pytest

from joex import Client, InvalidJob
from joex.config import Settings
from joex.http.api import create_api
from tests.support.asgi import transport
from tests.support.cases import case

pytestmark = pytest.mark.postgres(16, 18)

REFUSED = r"must not begin with joex\., as Joex's own names do"


STATEMENTS = [
    ("task", "SELECT joex.submit('joex.x')"),
    ("task", "SELECT joex.submit('joex.x', tracker => 't')"),
    ("task", "SELECT joex.submit_many('{a, joex.x}')"),
    ("task", "SELECT joex_client.add('joex.x', '\\x00')"),
    ("task", "SELECT joex.put_periodic_task('p', 'joex.x', 'daily')"),
    ("task", "INSERT INTO joex_private.job (task, lane) VALUES ('joex.x', 2)"),
    ("task", "UPDATE joex_private.job SET task = 'joex.x'"),
    ("tracker", "SELECT joex.submit('a', tracker => 'joex.x')"),
    ("tracker", "SELECT joex.submit_many('{a, a}', trackers => '{NULL, joex.x}')"),
]


async def test_no_statement_takes_a_name_of_joexs_own(client, connection):
    await client.submit("a")
    for field, statement in STATEMENTS:
        with case(statement):
            with pytest.raises(asyncpg.CheckViolationError, match=f'violates check constraint "{field}: {REFUSED}"'):
                await connection.execute(statement)
            assert await connection.fetchval("SELECT array_agg(task) FROM joex.jobs") == ["a"]


@pytest.mark.parametrize("given", [{"task": "joex.x"}, {"task": "a", "tracker": "joex.x"}])
async def test_a_client_is_told_so_in_python_and_over_http(client: Client, given: dict[str, Any]) -> None:
    field = "tracker" if "tracker" in given else "task"
    with pytest.raises(InvalidJob, match=f"^{field}: {REFUSED}$"):
        await client.submit(**given)
    with pytest.raises(InvalidJob, match=f"^{field}: {REFUSED}$"):
        await client.submit_many([given])
    nothing: Any = None
    api = create_api(Settings(), client, nothing, lambda: (b"", "text/plain"))
    async with httpx.AsyncClient(transport=transport(api), base_url="http://localhost") as http:
        answer = await http.post("/api/v1/jobs", json=given)
        assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (400, field)
        if field == "task":
            answer = await http.put("/api/v1/periodic/p", json={"task": "joex.x", "timer": "daily"})
            assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (400, field)


async def test_names_that_only_resemble_joexs_own_are_anyones(client):
    for name in ("joex", "joexes.x", "Joex.x", "my.joex.x"):
        assert await client.submit(name, tracker=name) is not None
