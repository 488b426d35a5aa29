"""Services of the local cluster: a process that listens on their addresses and forwards to pods that are ready.

``python -m tests.support.cluster.service_proxy KUBECONFIG HOSTS``. It reads the pods itself, because the API refuses
endpoints on loopback, where the local cluster's pods are. In the file HOSTS it writes the services' names and
addresses, as in ``/etc/hosts``, for `joex_program.py`.
"""

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cluster.connection import Connection, Object

Address = tuple[str, int]
_CHUNK = 65536


@dataclass(frozen=True)
class Port:
    """A port of a service: its address, and the port of the pods that serve it."""

    address: Address
    namespace: str
    selector: frozenset[tuple[str, str]]
    target: int | str
    also_unready: bool


def ports(service: Object) -> list[Port]:
    """The TCP ports of a service that has an address and selects pods."""
    spec, metadata = service["spec"], service["metadata"]
    host, selector = spec.get("clusterIP", "None"), frozenset(spec.get("selector", {}).items())
    also_unready = bool(spec.get("publishNotReadyAddresses"))
    if host in ("", "None") or not selector:
        return []
    return [
        Port((host, port["port"]), metadata["namespace"], selector, port["targetPort"], also_unready)
        for port in spec.get("ports", [])
        if port.get("protocol", "TCP") == "TCP"
    ]


def backends(port: Port, pods: list[Object]) -> list[Address]:
    """The present backends of a service's port."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        is_selected = (
            port.selector <= set(metadata.get("labels", {}).items()) and metadata["namespace"] == port.namespace
        )
        is_usable = (
            status.get("podIP") and not metadata.get("deletionTimestamp") and (port.also_unready or _ready(status))
        )
        number = _number(port.target, pod)
        if is_selected and is_usable and number is not None:
            found.append((status["podIP"], number))
    return found


def _ready(status: Mapping[str, Any]) -> bool:
    return any(found["type"] == "Ready" and found["status"] == "True" for found in status.get("conditions", []))


def _number(target: int | str, pod: Object) -> int | None:
    if isinstance(target, int):
        return target
    named = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    return next((port["containerPort"] for port in named if port.get("name") == target), None)


class ServiceProxy:
    """Listens for all services."""

    def __init__(self, connection: Connection, hosts: Path) -> None:
        self._connection = connection
        self._hosts = hosts
        self._pods: list[Object] = []
        self._servers: dict[Port, asyncio.Server] = {}
        self._refused: set[Port] = set()

    async def run(self) -> None:
        """Follow services and pods, for ever."""
        await asyncio.gather(self._follow_services(), self._follow_pods())

    async def _follow_pods(self) -> None:
        async with aclosing(self._states("pods")) as states:
            async for self._pods in states:
                pass

    async def _follow_services(self) -> None:
        async with aclosing(self._states("services")) as states:
            async for services in states:
                wanted = {port for service in services for port in ports(service)}
                for port in self._servers.keys() - wanted:
                    self._servers.pop(port).close()
                self._refused &= wanted
                for port in wanted - self._servers.keys() - self._refused:
                    await self._listen(port)
                self._write(services)

    def _write(self, services: list[Object]) -> None:
        aside = self._hosts.with_suffix(".new")
        aside.write_text("".join(map(_line, services)))
        aside.replace(self._hosts)

    def _states(self, plural: str) -> AsyncGenerator[list[Object], None]:
        return self._connection.states(f"/api/v1/{plural}")

    async def _listen(self, port: Port) -> None:
        try:
            self._servers[port] = await asyncio.start_server(self._forwarder(port), *port.address)
        except OSError as error:  # a port below 1024 needs root
            self._refused.add(port)
            print(f"{port}: {error}", file=sys.stderr, flush=True)

    def _forwarder(self, port: Port) -> Callable[..., Any]:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, back = await asyncio.open_connection(*random.choice(backends(port, self._pods)))
            except (IndexError, OSError):  # it has no backend
                writer.transport.abort()
                return
            pumps = [asyncio.ensure_future(_pump(reader, back)), asyncio.ensure_future(_pump(there, writer))]
            await asyncio.wait(pumps)
            for end in (writer, back):
                end.close()

        return forward


def _line(service: Object) -> str:
    """The line of ``/etc/hosts`` for a service, if it has an address."""
    metadata, host = service["metadata"], service["spec"].get("clusterIP", "None")
    name = f"{metadata['name']}.{metadata['namespace']}.svc"
    return "" if host in ("", "None") else f"{host} {name} {name}.cluster.local\n"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
            return
    writer.transport.abort()


async def main(kubeconfig: Path, hosts: Path) -> None:
    """Serve all services of a cluster."""
    async with Connection(kubeconfig) as connection:
        await ServiceProxy(connection, hosts).run()


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
