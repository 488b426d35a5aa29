"""The operator's HTTP interface."""

import httpx
import pytest

from joex_operator.cluster.probes import probes
from joex_operator.metrics import OperatorMetrics


@pytest.mark.parametrize("page", ["/healthz", "/readyz", "/metrics"])
async def test_each_page_is_served_and_refuses_parameters_for_it_has_none(page):
    async with (
        probes("127.0.0.1:0", OperatorMetrics(), health=lambda: None, readiness=lambda: None) as address,
        httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as http,
    ):
        assert (await http.get(page)).status_code == 200
        refused = await http.get(page, params={"verbose": "1"})
    assert (refused.status_code, refused.text) == (400, "verbose: there is no such parameter: this endpoint has none\n")
