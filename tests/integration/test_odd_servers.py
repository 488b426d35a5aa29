"""Servers that are none, or whose owner means harm: an operator connects to the servers of many owners."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from joex.errors import DatabaseUnavailable
from joex.store.database import borrowed, close_pool, connect, create_pool
from tests.support.cluster.pki import Authority
from tests.support.tls import tls_in_front_of
from tests.support.waiting import PATIENCE

TLS_REQUEST = (80877103).to_bytes(4)
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def message(kind: bytes, content: bytes) -> bytes:
    return kind + (len(content) + 4).to_bytes(4) + content


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[int]:
    """A port at which a server answers to the first message, in any way."""

    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4) == TLS_REQUEST:
                writer.write(b"N")
            await answer(reader, writer)
            await reader.read()
        writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as made:
        yield made.sockets[0].getsockname()[1]
        await asyncio.gather(*handlers)


@asynccontextmanager
async def reached(port: int, way: str, authority: Authority) -> AsyncIterator[str]:
    """A URL of the server."""
    if way != "encrypted":
        yield f"postgresql://joex:secret@127.0.0.1:{port}/shop?sslmode={'disable' if way == 'plain' else 'prefer'}"
        return
    postgres: Any = SimpleNamespace(port=port)
    async with tls_in_front_of(postgres, authority.server("server", "IP:127.0.0.1")) as outer:
        yield f"postgresql://joex:secret@127.0.0.1:{outer}/shop?sslmode=require"


@pytest.fixture(params=["plain", "plain after all", "encrypted"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def authority(tmp_path: Any) -> Authority:
    return Authority(tmp_path / "authority")


async def test_a_server_that_wants_endless_iterations_for_a_login_is_refused(way: str, authority: Authority) -> None:
    """The key would be derived on the event loop: of a thousand millions, nothing else would happen for minutes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SCRAM)
        first = await reader.readexactly(int.from_bytes((await reader.readexactly(5))[1:]) - 4)
        nonce = first.split(b"r=")[1] + b"more"
        salt = base64.b64encode(b"salt")
        for byte in message(b"R", (11).to_bytes(4) + b"r=" + nonce + b",s=" + salt + b",i=200001"):
            writer.write(bytes([byte]))  # so that no piece has all of it
            await writer.drain()

    async with server(answer) as port, reached(port, way, authority) as url:
        with pytest.raises(DatabaseUnavailable, match="the server wants more than 200000 iterations"):
            await connect(url)


LOGGED_IN = message(b"R", bytes(4))
SCRAM = message(b"R", (10).to_bytes(4) + b"SCRAM-SHA-256\0\0")
OUT_OF_TURN = message(b"R", (11).to_bytes(4) + b"r=x,s=eA==,i=4096")
READY = LOGGED_IN + message(b"S", b"server_version\x0018.0\0") + message(b"K", bytes(8)) + message(b"Z", b"I")
SET_UP = message(b"C", b"SELECT 1\0") + message(b"Z", b"I")


@pytest.mark.parametrize(
    "said",
    [
        b"\0\0\0\0\4",
        bytes(50),
        LOGGED_IN + message(b"\0", b""),
        b"Z\0\0\0\0",
        message(b"R", b""),
        OUT_OF_TURN,
        LOGGED_IN + SCRAM,
        2 * SCRAM,
        SCRAM + message(b"R", (12).to_bytes(4) + b"v=eA=="),
        SCRAM + b"R" + (100_000).to_bytes(4) + (11).to_bytes(4),  # and the rest later
    ],
    ids=[
        *("of the kind 0", "zeros", "logged in", "of no length", "empty", "out of turn", "too late", "twice"),
        *("too soon", "too long"),
    ],
)
async def test_a_server_that_speaks_no_postgresql_is_refused(said: bytes, way: str, authority: Authority) -> None:
    """asyncpg alone would read a message of the kind 0 for ever, and end the process by SIGSEGV at the last one."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    async with server(answer) as port, reached(port, way, authority) as url:
        with pytest.raises(DatabaseUnavailable, match="the server does not speak PostgreSQL's protocol"):
            await connect(url)


@pytest.mark.parametrize(
    "said",
    [
        message(b"Z", b"I"),
        message(b"S", b"server_version\0new\0") + message(b"Z", b"I"),
        message(b"S", b"client_encoding\0klingon\0") + message(b"Z", b"I"),
        message(b"S", b"server_version\x0018.0\0") + message(b"Z", b""),
        message(b"K", b"") + message(b"Z", b"I"),
    ],
    ids=["no version", "an odd version", "an unknown encoding", "no state", "no key"],
)
async def test_a_server_whose_login_ends_in_nonsense_is_refused_and_left(
    said: bytes, way: str, authority: Authority
) -> None:
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LOGGED_IN + said)
        with suppress(OSError):
            await reader.read()
        left.set()

    async with server(answer) as port, reached(port, way, authority) as url:
        with pytest.raises(DatabaseUnavailable, match="the server does not speak PostgreSQL's protocol"):
            await connect(url)
        await asyncio.wait_for(left.wait(), PATIENCE)


async def test_a_server_that_speaks_something_else_after_the_login_is_left(way: str, authority: Authority) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        await reader.readexactly(5)  # a query
        writer.write(message(b"\0", b""))

    async with server(answer) as port, reached(port, way, authority) as url:
        with pytest.raises(DatabaseUnavailable):
            await connect(url)


async def test_a_connection_whose_messages_the_driver_has_lost_track_of_is_used_no_more() -> None:
    """It would read what comes next from the middle of a message, where nothing checks it: perhaps for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        await reader.readexactly(5)  # the setup
        writer.write(SET_UP)
        await reader.readuntil(b"SELECT\0")
        writer.write(message(b"A", b"Z\0\0") + message(b"\1", bytes(4092)))  # Z of 256 bytes, for the driver

    async with server(answer) as port:
        pool = await create_pool(f"postgresql://joex:secret@127.0.0.1:{port}/shop?sslmode=disable", most=1)
        with pytest.raises(DatabaseUnavailable, match="the connection to the database was lost"):
            async with borrowed(pool) as connection:
                await connection.fetch("SELECT")
        left = pool.get_size()
        await close_pool(pool)
    assert left == 0


async def test_a_server_that_answers_unasked_is_left_without_a_traceback() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        await reader.readexactly(5)  # the setup
        writer.write(SET_UP + message(b"E", b"\0") + message(b"Z", b"I"))
        with suppress(OSError):
            while await reader.read(2**16):
                pass
        left.set()

    async with server(answer) as port:
        connection = await connect(f"postgresql://joex:secret@127.0.0.1:{port}/shop?sslmode=disable")
        await asyncio.wait_for(left.wait(), PATIENCE)
        assert connection.is_closed()
    assert told == []
