"""The shops in examples/, as their README starts them: the commands, and their customers."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.commands import done, running
from tests.support.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
ADDRESS = r"http://127\.0\.0\.1:\d+(?=\D)"


@dataclass(frozen=True)
class Example:
    """A shop of the README: its commands there, and on a free port; its request for an order, for httpx; its task."""

    serve: str
    any_port: str
    takes: str
    migrate: str = "joex migrate"
    executor: str = "joex executor --app shop_tasks:app"
    task: str = "orders.confirm"
    environment: dict[str, str] = field(default_factory=dict)


SHOPS = {
    "fastapi": Example("uvicorn fastapi_shop:app", "--port 0", "json"),
    "flask": Example("flask --app flask_shop run", "--port 0", "json"),
    "django": Example(
        "python -m django runserver",
        "--noreload 0",
        "data",
        migrate="python -m django migrate",
        executor="python -m django joex executor",
        task="django_shop.tasks.confirm",
        environment={"DJANGO_SETTINGS_MODULE": "django_shop.settings"},
    ),
}


class Shop:
    """A running shop, for its customers."""

    def __init__(self, example: Example, http: httpx.AsyncClient) -> None:
        self.example = example
        self._http = http

    async def order(self, pieces: int, *, customer: str = "acme", item: str = "tea") -> httpx.Response:
        body: dict[str, Any] = {self.example.takes: {"customer": customer, "item": item, "pieces": pieces}}
        return await self._http.post("/orders", **body)

    async def show(self, order: int) -> Any:
        return (await self._http.get(f"/orders/{order}")).raise_for_status().json()


@asynccontextmanager
async def open_shop(
    example: Example,
    url: str,
    *,
    folder: Path = EXAMPLES,
    python: str | Path = sys.executable,
    of_executor: str | Path = sys.executable,
) -> AsyncIterator[Shop]:
    """Start a shop in a folder that has the examples. ``of_executor``: the Python that its executor has."""
    await done(example.migrate, folder, url, python=of_executor, within=PATIENCE, **example.environment)
    serve = f"{example.serve} {example.any_port}"
    async with (
        running(serve, folder, url, ADDRESS, python=python, **example.environment) as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE) as http,
    ):
        yield Shop(example, http)
