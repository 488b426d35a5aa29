"""A certificate and its key in files, read again when they change.

(Apart from `joex.http.tls`, because the command line reads it before it loads the web server, which is slow.)
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from joex.errors import ConfigError

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
        # (Of the folder as it is now: the code of a task may change to another one.)
        self._certificate, self._key = (str(Path(name).absolute()) for name in (certificate, key or certificate))
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
