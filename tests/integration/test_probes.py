"""The operator's HTTP interface."""

import asyncio
import shutil
import ssl
from pathlib import Path

import httpx
import pytest

from joex.errors import ConfigError
from joex.http import slow_callers
from joex.http.certificate import Certificate
from joex_operator.cluster.probes import probes
from joex_operator.metrics import OperatorMetrics
from tests.support.cluster.pki import Authority
from tests.support.waiting import eventually

PAGES = ("/healthz", "/readyz", "/metrics")


@pytest.mark.parametrize("page", PAGES)
async def test_each_page_is_served_and_refuses_parameters_for_it_has_none(page):
    async with (
        probes("127.0.0.1:0", OperatorMetrics(), health=lambda: None, readiness=lambda: None) as address,
        httpx.AsyncClient(base_url=address, trust_env=False) as http,
    ):
        assert (await http.get(page)).status_code == 200
        refused = await http.get(page, params={"verbose": "1"})
    assert (refused.status_code, refused.text) == (400, "verbose: there is no such parameter: this endpoint has none\n")


async def test_with_a_certificate_each_page_is_served_by_https_with_the_files_as_they_are_now(tmp_path: Path) -> None:
    authority, other = (Authority(tmp_path / name) for name in ("first", "second"))
    files = tuple(tmp_path / name for name in ("tls.crt", "tls.key"))

    def issue(by: Authority) -> None:
        made = by.server("operator", "IP:127.0.0.1")
        shutil.copy(made.certificate, files[0])
        shutil.copy(made.key, files[1])

    async def statuses(address: str, by: Authority) -> list[int]:
        trusted = ssl.create_default_context(cafile=str(by.own.certificate))
        async with httpx.AsyncClient(base_url=address, trust_env=False, verify=trusted) as http:
            return [(await http.get(page)).status_code for page in PAGES]

    issue(authority)
    certificate = Certificate(str(files[0]), str(files[1]), "JOEX_OPERATOR_HTTP_TLS_CERTIFICATE")
    served = probes("127.0.0.1:0", OperatorMetrics(), certificate, health=lambda: None, readiness=lambda: "leads not")
    async with served as address:
        assert address.startswith("https://127.0.0.1:")
        assert await statuses(address, authority) == [200, 503, 200]
        issue(other)
        assert await statuses(address, other) == [200, 503, 200]


async def test_with_an_empty_address_no_port_is_open() -> None:
    async with probes("", OperatorMetrics(), health=lambda: None, readiness=lambda: None) as address:
        assert not address


async def test_a_port_that_is_in_use_is_told_by_the_name_of_the_setting() -> None:
    async with probes("127.0.0.1:0", OperatorMetrics(), health=lambda: None, readiness=lambda: None) as address:
        taken = address.removeprefix("http://")
        with pytest.raises(ConfigError, match=rf"^JOEX_OPERATOR_HTTP_ADDRESS: can't listen on {taken}: "):
            async with probes(taken, OperatorMetrics(), health=lambda: None, readiness=lambda: None):
                pass


async def test_scrapes_that_wait_share_one_rendering_of_the_operators_metrics(monkeypatch) -> None:
    renderings = 0

    def render(_: OperatorMetrics) -> tuple[bytes, str]:
        nonlocal renderings
        renderings += 1
        return b"", "text/plain"

    monkeypatch.setattr(OperatorMetrics, "render", render)
    async with probes("127.0.0.1:0", OperatorMetrics(), health=lambda: None, readiness=lambda: None) as address:
        place = address.removeprefix("http://").split(":")
        calls = [await asyncio.open_connection(*place) for _ in range(100)]
        for _, writer in calls:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = [await reader.read() for reader, _ in calls]
        for _, writer in calls:
            writer.close()
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert renderings < 10


async def test_callers_that_read_no_answer_and_send_more_requests_keep_no_probe_waiting(monkeypatch) -> None:
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    asked = 0

    def health() -> str:
        nonlocal asked
        asked += 1
        return "too much for the buffers of a connection" * 500_000

    served = probes("127.0.0.1:0", OperatorMetrics(), health=health, readiness=lambda: None)
    async with served as address, httpx.AsyncClient(base_url=address, trust_env=False) as http:
        calls = [await asyncio.open_connection(*address.removeprefix("http://").split(":")) for _ in range(3)]
        for _, writer in calls:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        await eventually(lambda: asked == 6, why="each second answer waits for the reader of the first")
        assert (await http.get("/readyz")).status_code == 200
        for _, writer in calls:
            writer.close()
