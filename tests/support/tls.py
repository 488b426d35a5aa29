"""TLS in front of the servers of the tests, which are built without it."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from tests.support.cluster.pki import Authority, Certificate
from tests.support.postgres import TestServer

_SSL_REQUEST = (80877103).to_bytes(4)


@contextlib.asynccontextmanager
async def tls_in_front_of(
    postgres: TestServer, certificate: Certificate, *, clients: Authority | None = None
) -> AsyncIterator[int]:
    """A port in front of the server that requires TLS, with this certificate.

    ``clients``: it admits only those with a certificate of this authority.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    if clients is not None:
        context.load_verify_locations(clients.own.certificate)
        context.verify_mode = ssl.CERT_REQUIRED

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    handlers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            assert (await reader.readexactly(8))[4:] == _SSL_REQUEST
            writer.write(b"S")
            await writer.start_tls(context)
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", postgres.port)
            try:
                await asyncio.gather(forward(reader, inner_writer), forward(inner_reader, writer))
            finally:
                inner_writer.transport.abort()
                writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.create_task(serve(reader, writer)))

    try:
        async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
    finally:
        for handler in handlers:
            handler.cancel()
        # The last aborts take effect in the next round of the loop, which may be the test's last one otherwise.
        await asyncio.gather(*handlers, return_exceptions=True)
        await asyncio.sleep(0)
