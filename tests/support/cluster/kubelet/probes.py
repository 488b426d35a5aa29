"""Probes: startup, then liveness and readiness, against the pod's own address."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

import httpx

Command = Callable[[list[str], float], Awaitable[int | None]]

OFTEN = 0.2
"""Seconds between two tries before the first success."""


class Prober:
    """Runs the probes of one container."""

    def __init__(self, container: Mapping[str, Any], address: str, command: Command) -> None:
        self._container = container
        self._address = address
        self._command = command
        self._ports = {port["name"]: port["containerPort"] for port in container.get("ports", []) if "name" in port}

    async def started(self) -> bool:
        """Wait until the startup probe, if there is one, has succeeded or failed for good."""
        probe = self._container.get("startupProbe")
        return probe is None or await self._first_success(probe, within_failures=True)

    async def readiness(self) -> AsyncGenerator[bool, None]:
        """Whether the container is ready, after each change."""
        probe = self._container.get("readinessProbe")
        if probe is None:
            yield True
            return
        while True:
            await self._first_success(probe)
            yield True
            await self._failed(probe)
            yield False

    async def dead(self) -> None:
        """Wait until the liveness probe, if there is one, has failed for good."""
        probe = self._container.get("livenessProbe")
        if probe is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(probe.get("initialDelaySeconds", 0))
            await self._failed(probe)

    async def _first_success(self, probe: Mapping[str, Any], *, within_failures: bool = False) -> bool:
        """Probe often, until the success threshold is reached.

        A failure counts once in a period, however many tries it has.
        """
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        period, successes, started = probe.get("periodSeconds", 10), 0, time.monotonic()
        while True:
            successes = successes + 1 if await self.ask(probe) else 0
            if successes >= probe.get("successThreshold", 1):
                return True
            failures = (time.monotonic() - started) / period
            if within_failures and not successes and failures > probe.get("failureThreshold", 3):
                return False
            await asyncio.sleep(min(period, OFTEN))

    async def _failed(self, probe: Mapping[str, Any]) -> None:
        """Probe once in a period, until the failure threshold is reached."""
        failures = 0
        while failures < probe.get("failureThreshold", 3):
            await asyncio.sleep(probe.get("periodSeconds", 10))
            failures = 0 if await self.ask(probe) else failures + 1

    async def ask(self, probe: Mapping[str, Any]) -> bool:
        """Probe once."""
        seconds = probe.get("timeoutSeconds", 1)
        if "exec" in probe:
            return await self._command(probe["exec"]["command"], seconds) == 0
        if "httpGet" in probe:
            return await self._http(probe["httpGet"], seconds)
        if "tcpSocket" in probe:
            return await self._tcp(probe["tcpSocket"], seconds)
        return False

    async def _http(self, get: Mapping[str, Any], seconds: float) -> bool:
        host, scheme = get.get("host", self._address), get.get("scheme", "HTTP").lower()
        headers = {entry["name"]: entry["value"] for entry in get.get("httpHeaders", [])}
        url = f"{scheme}://{host}:{self._port(get['port'])}/{get.get('path', '/').removeprefix('/')}"
        try:
            async with httpx.AsyncClient(verify=False, trust_env=False, timeout=seconds) as client:  # noqa: S501 - as said
                answer = await client.get(url, headers={"User-Agent": "kube-probe/1", **headers})
        except httpx.HTTPError:
            return False
        return bool(answer.is_success or answer.is_redirect)

    async def _tcp(self, target: Mapping[str, Any], seconds: float) -> bool:
        address = (target.get("host", self._address), self._port(target["port"]))
        try:
            async with asyncio.timeout(seconds):
                _, writer = await asyncio.open_connection(*address)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    def _port(self, port: int | str) -> int:
        return self._ports[port] if port in self._ports else int(port)
