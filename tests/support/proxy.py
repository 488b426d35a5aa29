"""A TCP proxy in front of PostgreSQL, for tests that cut links.

A link can be cut (both sides see it end), frozen (no data
arrives and neither side gets an error, as with a pulled cable) or refused. A trap does this to a link at a statement:
when a client prepares it, or with the answer to its first execution.
"""

import asyncio
import contextlib
import enum
import re
import socket
from types import TracebackType
from typing import Self

_SMALL = 100_000
_NAME = re.compile(rb"__asyncpg_stmt_[0-9a-f]+__")
_EXECUTE = b"E\0\0\0\x09\0\0\0\0\0"  # the unnamed portal, all of its rows


class At(enum.Enum):
    """The effect of a trap on a link, and its moment."""

    FREEZE = enum.auto()  # the statement does not arrive, and the link is silent from then on
    CUT = enum.auto()  # the statement does not arrive, and the link ends
    FREEZE_ANSWER = enum.auto()  # the statement is executed, its answer does not arrive, and the link is silent
    CUT_ANSWER = enum.auto()  # the statement is executed, its answer does not arrive, and the link ends
    DELAY = enum.auto()  # the statement arrives when the link thaws, even if the client has given up by then


class Trap:
    """The effect on the next link on which a client sends a text.

    Attributes:
        sprung: the statement is here.
        is_late_answered: the server has answered a statement that was late.
    """

    def __init__(self, text: str, at: At) -> None:
        self.text = text.encode()
        self.at = at
        self.sprung = asyncio.Event()
        self.is_late_answered = asyncio.Event()


class Proxy:
    """Forwards to a port of this host.

    Attributes:
        port: on which the proxy listens.
        target: the port to which it forwards new links.
        reaches: while this is clear, new links wait for their connection to the target.
        url: of a database, through the proxy.
        slowness: seconds that each piece (of 64 KiB at most) takes to the server.
        large_answers: while this is clear, an answer of the server stops after its first 100 kB.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.url = ""
        self.slowness = 0.0
        self.large_answers = asyncio.Event()
        self.large_answers.set()
        self.target = target
        self.reaches = asyncio.Event()
        self.reaches.set()
        self._listener: socket.socket | None = None
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._frozen = False
        self._traps: list[Trap] = []

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    async def accept(self) -> None:
        """Accept connections (again), on the same port."""
        # (No server of asyncio: closed while it accepts, it leaves transports that nobody closes.)
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._listener.setblocking(False)  # noqa: FBT003 - takes no name
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept_one, self._listener)

    async def refuse(self) -> None:
        """Cut all links, and accept no more connections."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self.cut()

    async def cut(self) -> None:
        """End all links. Clients can open new ones."""
        for link in list(self._links):
            link.cut()
        await asyncio.gather(*(link.ended.wait() for link in list(self._links)))

    def freeze(self) -> None:
        """Stop forwarding, on old and new links."""
        self._frozen = True
        self.freeze_links()

    def freeze_links(self) -> None:
        """Stop forwarding for good on the present links; new ones work."""
        for link in self._links:
            link.flow.clear()

    def thaw(self) -> None:
        """Forward again, beginning with the data that was held back."""
        self._frozen = False
        for link in self._links:
            link.flow.set()

    def trap(self, text: str, at: At) -> Trap:
        """Do this to the next link on which a client prepares a statement with this text."""
        trap = Trap(text, at)
        self._traps.append(trap)
        return trap

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has given up
        link = _Link(self)
        if self._frozen:
            link.flow.clear()
        self._links[link] = asyncio.ensure_future(self._connect(link, connection))

    async def _connect(self, link: "_Link", connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            try:
                await self.reaches.wait()
                server = await asyncio.open_connection("127.0.0.1", self.target)
                await link.forward(await asyncio.open_connection(sock=connection), server)
            finally:
                del self._links[link]
                link.ended.set()

    def sprung(self, data: bytes) -> Trap | None:
        """The trap that this data triggers."""
        for trap in self._traps:
            if trap.text in data:
                self._traps.remove(trap)
                return trap
        return None


class _Link:
    """A client's connection, and the one to the server."""

    def __init__(self, proxy: Proxy) -> None:
        self.flow = asyncio.Event()
        self.flow.set()
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._cut = asyncio.Event()
        self._answer_trap: Trap | None = None  # triggered; waits for the statement's execution
        self._late: Trap | None = None  # waits for the answer
        self._name = b""  # of that statement
        self._is_executed = False
        self._answered = 0  # bytes since the client sent something

    def cut(self) -> None:
        self._cut.set()

    async def forward(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        tasks = [
            asyncio.ensure_future(self._forward_to_server(client[0], server[1])),
            asyncio.ensure_future(self._forward_to_client(server[0], client[1])),
            asyncio.ensure_future(self._cut.wait()),
        ]
        try:
            # When the client has closed, the server still gets the data that was sent before, and closes then.
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for _, writer in (client, server):
                writer.transport.abort()

    async def _forward_to_server(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await client.read(65536):
                self._watch_statement(data)
                self._answered = 0
                await self.flow.wait()
                await asyncio.sleep(self._proxy.slowness)
                if self._cut.is_set():
                    return
                server.write(data)
                await server.drain()
        await self.flow.wait()
        with contextlib.suppress(OSError):
            server.write_eof()

    async def _forward_to_client(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(65536):
                if self._is_executed and self._answer_trap is not None:
                    self._spring(self._answer_trap, freeze=self._answer_trap.at is At.FREEZE_ANSWER)
                if self._late is not None:
                    self._late.is_late_answered.set()
                await self.flow.wait()
                self._answered += len(data)
                if self._answered > _SMALL:
                    await self._proxy.large_answers.wait()
                if self._cut.is_set():
                    return
                with contextlib.suppress(OSError):  # the client has gone
                    client.write(data)
                    await client.drain()

    def _watch_statement(self, data: bytes) -> None:
        if self._answer_trap is not None:
            if self._name not in data:
                return
            self._is_executed = True  # the client sends nothing else before it has the answer
            if self._answer_trap.at is At.DELAY:
                self._spring(self._answer_trap, freeze=True)
                self._late, self._answer_trap = self._answer_trap, None
            return
        trap = self._proxy.sprung(data)
        if trap is None:
            return
        if trap.at in (At.FREEZE, At.CUT):
            self._spring(trap, freeze=trap.at is At.FREEZE)
        else:
            self._answer_trap = trap
            # (A simple query is executed as it is. asyncpg prepares others first, and may ask for the types of their
            # parameters in between; psycopg does both at once.)
            names = _NAME.findall(data, 0, data.find(trap.text))
            self._name = names[-1] if names else b""
            self._is_executed = data.startswith(b"Q") or _EXECUTE in data

    def _spring(self, trap: Trap, *, freeze: bool) -> None:
        trap.sprung.set()
        if freeze:
            self.flow.clear()
        else:
            self._cut.set()
