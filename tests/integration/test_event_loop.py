"""Connections by a name on the event loop of an executor."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from joex.event_loop import new_event_loop
from tests.support.cluster.pki import Authority

T = TypeVar("T")


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run this on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("name", ["localhost", "example.org"])
def test_tls_checks_the_name_of_the_host_though_the_connection_is_to_its_address(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    certificate = authority.server("server", f"DNS:{name}", "IP:127.0.0.1")
    of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    of_server.load_cert_chain(certificate.certificate, certificate.key)
    of_client = ssl.create_default_context(cafile=str(authority.own.certificate))

    async def main() -> bytes:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=of_server) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("localhost", port, ssl=of_client)
            answer = await reader.read()
            writer.close()
            return answer

    if name == "localhost":
        assert run(main) == b"hello"
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
            run(main)


def test_a_name_whose_addresses_all_refuse_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(ConnectionRefusedError):
        run(lambda: asyncio.open_connection("localhost", port))


def test_of_a_name_with_several_addresses_the_first_that_answers_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def look_up_two(host: str, port: Any, *args: Any, **more: Any) -> Any:
        if host != "two" or more.get("flags"):
            return look_up(host, port, *args, **more)
        found = [look_up(address, port, *args, **more) for address in ("127.0.0.2", "127.0.0.1")]
        return [one for each in found for one in each]

    async def main() -> Any:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            _, writer = await asyncio.open_connection("two", server.sockets[0].getsockname()[1])
            writer.close()
            return writer.get_extra_info("peername")[0]

    monkeypatch.setattr(socket, "getaddrinfo", look_up_two)
    assert run(main) == "127.0.0.1"


def test_a_connection_to_an_address_asks_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop has two of its own for that, which look-ups of names for datagrams occupy."""
    loop = uvloop.Loop
    asked: list[str] = []
    original = loop.getaddrinfo

    def ask(self: Any, host: str, *args: Any, **more: Any) -> Any:
        asked.append(host)
        return original(self, host, *args, **more)

    async def main() -> None:
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("localhost", port)
            writer.close()
            with socket.socket() as sock:
                sock.settimeout(0)
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))

    monkeypatch.setattr(loop, "getaddrinfo", ask)
    run(main)
    assert asked == []
