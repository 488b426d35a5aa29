"""Without a token, an executor serves its own user and root, and no other user of its machine."""

import asyncio
import ctypes
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from joex import Client
from joex.config import Settings
from joex.http.api import create_api
from joex.http.listening import listen
from joex.http.peer import Peer, uid_of
from joex.http.server import serve
from tests.support.asgi import transport

ANOTHER = 65533
UNMAPPED = 65534
NEEDS_A_TOKEN = (
    "without a token, this executor serves only programs of its own user and of root: "
    "set JOEX_API_TOKEN, and send it as 'Authorization: Bearer ...'"
)
WAYS = pytest.mark.parametrize(
    "way",
    [
        ("127.0.0.1:0", socket.AF_INET, "127.0.0.1"),
        ("127.0.0.1:0", socket.AF_INET6, "::ffff:127.0.0.1"),
        ("0.0.0.0:0", socket.AF_INET, "127.0.0.2"),
        ("[::]:0", socket.AF_INET, "127.0.0.1"),
        ("[::]:0", socket.AF_INET6, "::ffff:127.0.0.1"),
        ("[::1]:0", socket.AF_INET6, "::1"),
    ],
    ids=lambda way: f"{way[0]} from {way[1].name} to {way[2]}",
)
"""Where an executor listens, the family of its caller's socket, and what that connects to."""


class Face:
    """A fake executor, which records the calls."""

    app_id, phase, described, ready, alive = "host", "running", "running", True, True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def running(self) -> list[Any]:
        return []

    def drain(self) -> None:
        self.asked.append("drain")

    def wake(self) -> None:
        self.asked.append("wake")


@pytest.fixture
def face() -> Face:
    return Face()


@pytest.fixture
async def api(face: Face) -> AsyncIterator[Any]:
    """An application without a token and without a database."""
    async with Client("postgresql://nobody@127.0.0.1:1/nothing") as nowhere:
        yield create_api(Settings(), nowhere, face, lambda: (b"", "text/plain"))


@pytest.fixture
def anothers_socket(monkeypatch: pytest.MonkeyPatch) -> Callable[[socket.AddressFamily], socket.socket]:
    """Makes sockets of a user who is neither root nor the executor's."""
    if os.geteuid() != 0:  # who can have sockets of no other user: so the executor says to be that one
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
        return socket.socket
    become = ctypes.CDLL(None).setfsuid  # for this thread alone

    def make(family: socket.AddressFamily) -> socket.socket:
        become(ANOTHER)
        try:
            return socket.socket(family)
        finally:
            become(0)

    return make


@asynccontextmanager
async def served(api: Any, address: str) -> AsyncIterator[int]:
    """A server; gives its port."""
    with listen(address) as listener:
        serving = asyncio.create_task(serve(api, listener))
        try:
            yield listener.getsockname()[1]
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def answer_to(connection: socket.socket, to: tuple[str, int], method: str, path: str) -> tuple[int, str]:
    """Call, and return the status and the body of the answer."""
    connection.settimeout(0)  # for the event loop
    await asyncio.get_running_loop().sock_connect(connection, to)
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@WAYS
async def test_no_other_user_of_the_machine_shuts_an_executor_down(api, face, anothers_socket, way):
    address, family, to = way
    async with served(api, address) as port:
        status, body = await answer_to(anothers_socket(family), (to, port), "POST", "/api/v1/shutdownAndExit")
        assert (status, NEEDS_A_TOKEN in body) == (403, True)
        assert (await answer_to(anothers_socket(family), (to, port), "GET", "/api/v1/jobs"))[0] == 403
        assert (await answer_to(anothers_socket(family), (to, port), "GET", "/healthz"))[0] == 200
    assert face.asked == []


@WAYS
async def test_its_own_user_shuts_it_down(api, face, way):
    address, family, to = way
    async with served(api, address) as port:
        status, _ = await answer_to(socket.socket(family), (to, port), "POST", "/api/v1/shutdownAndExit")
    assert (status, face.asked) == (200, ["drain"])


def test_a_socket_that_its_process_has_closed_is_not_taken_for_one_of_root():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ends = client.getsockname(), server.getsockname()
        assert uid_of(*ends) == os.geteuid()
        assert uid_of(*ends, lambda: False) is None  # nothing is read for a caller who has gone: others wait
        with server.accept()[0]:
            client.close()
            assert uid_of(*ends) is None


async def test_a_caller_who_has_gone_is_not_taken_for_the_next_one_with_its_port():
    made: asyncio.Queue[asyncio.Transport] = asyncio.Queue()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made.put_nowait(transport)

    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    to = server.sockets[0].getsockname()
    own = "127.0.0.65"  # (its ports are no other test's: those are given to connections that come from 127.0.0.1)
    with socket.create_connection(to, source_address=(own, 0)) as gone:
        peer = Peer(await made.get())
        port = gone.getsockname()
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # to leave nothing behind
    with socket.create_connection(to, source_address=port):
        assert uid_of(port, to) == os.geteuid()
        assert await peer.uid() is None
        (await made.get()).abort()  # (else the loop may end before it has seen that the caller has gone)
    server.close()


async def test_a_server_that_is_not_joexs_tells_of_no_user(api):
    local = httpx.ASGITransport(api, client=("127.0.0.1", 1234))
    async with httpx.AsyncClient(transport=local, base_url="http://localhost") as http:
        assert (await http.get("/api/v1/running")).status_code == 403


@pytest.mark.parametrize(("caller", "own", "status"), [
    (0, ANOTHER, 200),
    (ANOTHER, ANOTHER, 200),
    (ANOTHER, 0, 403),
    (ANOTHER, 1000, 403),
    (None, 0, 403),
    (UNMAPPED, UNMAPPED, 403),
], ids=["root", "the same", "another one", "another one of no root", "nobody can tell", "one of many"])  # fmt: skip
async def test_root_and_the_same_user_are_served(api, monkeypatch, caller, own, status):
    monkeypatch.setattr(os, "geteuid", lambda: own)
    async with httpx.AsyncClient(transport=transport(api, uid=caller), base_url="http://localhost") as http:
        assert (await http.get("/api/v1/running")).status_code == status
