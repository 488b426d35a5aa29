"""TLS: the certificate, read again when its files change, and the limits of its callers."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joex.errors import ConfigError
from joex.http.slow_callers import LEAST_READ, MOST_CONNECTIONS, READ_WITHIN

HANDSHAKE_WITHIN = 10.0
"""Seconds from the connection to the end of its handshake."""

MOST_HANDSHAKES = 100
"""Handshakes at a time, besides the connections that may still be opened (`MOST_CONNECTIONS`).

Beyond, each new one ends the oldest, so that callers who begin and stop leave descriptors.
"""

_PAUSE = 0.1
"""Seconds after a connection that could not be accepted."""

_log = logging.getLogger("joex")


class Certificate:
    """A certificate and its key, as the TLS context for the next connection.

    Args:
        certificate: the file of the certificate, with those of its intermediate authorities, in PEM.
        key: the file of its key; empty: the same file.
        setting: what names the certificate's file, for messages.

    Raises:
        ConfigError: the files can't be read, or don't belong together.
    """

    def __init__(self, certificate: str, key: str, setting: str) -> None:
        self._certificate = certificate
        self._key = key or certificate
        self._setting = setting
        self._seen = self._look()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection: of the files as they are now, or else the last that was sound.

        Files are replaced one after the other, so for a moment they may not belong together.
        """
        # (The look comes before the read, which may meet half of a file: then the next connection looks again.)
        found = self._look()
        if found != self._seen:
            self._seen = found
            try:
                self._context = self._read()
            except ConfigError as error:
                _log.warning("%s; the certificate that was read before stays in use", error)
            else:
                _log.info("%s: the certificate has changed, and was read again", self._setting)
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_version(Path(name)) for name in (self._certificate, self._key)]

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            # (Without a password OpenSSL would ask for it at the terminal, if the key has one.)
            context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._setting}: can't use this certificate and its key: {_why(error)}") from error
        return context


def certificate_of(certificate: str, key: str, prefix: str) -> Certificate | None:
    """The certificate that the settings name; None: they name none.

    Args:
        certificate: the setting ``http_tls_certificate``.
        key: the setting ``http_tls_key``.
        prefix: of the settings' names, for messages.

    Raises:
        ConfigError: as `Certificate`; or there is a key alone.
    """
    setting = f"{prefix}HTTP_TLS_CERTIFICATE"
    if certificate:
        return Certificate(certificate, key, setting)
    if key:
        raise ConfigError(f"{prefix}HTTP_TLS_KEY: a key needs the certificate that it belongs to: set {setting} too")
    return None


async def accept(
    listener: socket.socket,
    certificate: Certificate,
    protocol: Callable[[], asyncio.Protocol],
    connections: Collection[object],
) -> NoReturn:
    """Accept connections, and let ``protocol`` serve each one whose handshake has ended, until cancelled.

    ``connections``: those that are open.

    Not by asyncio's servers: they know no limit of handshakes, and have one certificate. (Nor by a protocol that begins
    TLS by itself: uvloop would give it what is for TLS.)
    """
    loop = asyncio.get_running_loop()
    handshakes: dict[asyncio.Task[None], None] = {}
    listener.setblocking(False)  # noqa: FBT003 - that is its signature
    try:
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # the caller has gone, or the process has no descriptor left
                await asyncio.sleep(_PAUSE)
                continue
            handshake = loop.create_task(_shake(connection, certificate, protocol), name="joex http handshake")
            handshakes[handshake] = None
            handshake.add_done_callback(lambda done: handshakes.pop(done, None))
            if len(handshakes) > MOST_HANDSHAKES + max(MOST_CONNECTIONS - len(connections), 0):
                oldest = next(iter(handshakes))
                del handshakes[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # while callers wait in the queue, accepting them does not give way
    finally:
        for handshake in handshakes:
            handshake.cancel()


async def _shake(connection: socket.socket, certificate: Certificate, protocol: Callable[[], asyncio.Protocol]) -> None:
    # A caller that speaks no TLS, trusts another authority, is too slow or has gone: all of these are OSErrors.
    with suppress(OSError):
        await asyncio.get_running_loop().connect_accepted_socket(
            protocol,
            connection,
            ssl=certificate.context(),
            ssl_handshake_timeout=HANDSHAKE_WITHIN,
            ssl_shutdown_timeout=READ_WITHIN,  # for what is left of the last answer
        )


def in_parts(app: ASGIApp) -> ASGIApp:
    """The application, whose answers come in parts of the size that a caller must read in `READ_WITHIN`.

    TLS passes a part on at once, and waits for its caller only with the next one.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            body = message.get("body", b"")
            while len(body) > LEAST_READ:
                await send({"type": "http.response.body", "body": body[:LEAST_READ], "more_body": True})
                body = body[LEAST_READ:]
                message = {**message, "body": body}
            await send(message)

        await app(scope, receive, send_parts)

    return answer


def _version(path: Path) -> tuple[int, int, int] | None:
    """What another content of a file has differently; None: there is no file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"they are no pair in PEM without a password ({error.reason or error})"
    return str(getattr(error, "strerror", None) or error)
