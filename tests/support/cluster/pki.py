"""Certificates of a cluster: its authority, and the certificates that it signs, made by openssl 3.0 or newer."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_CONFIG = """
[req]
distinguished_name = subject
[subject]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign, digitalSignature
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
_OLD_CONFIG = """
[req]
distinguished_name = subject
[subject]
[authority]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = none
authorityKeyIdentifier = none
[leaf]
basicConstraints = critical, CA:FALSE
subjectKeyIdentifier = none
authorityKeyIdentifier = none
"""
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = "30"


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class SigningKey:
    """The files of a pair of keys."""

    private: Path
    public: Path


class Authority:
    """Signs certificates into a folder.

    ``old``: without key usage and key identifiers, as in some clusters; Python refuses these from 3.13 on.
    """

    def __init__(self, folder: Path, *, old: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._config = folder / "openssl.conf"
        self._config.write_text(_OLD_CONFIG if old else _CONFIG)
        self.own = self._make("ca", "/CN=joex-tests", "authority")

    def server(self, name: str, *alternatives: str) -> Certificate:
        """A certificate for a server; alternatives such as ``DNS:localhost`` and ``IP:127.0.0.1``."""
        more = ("extendedKeyUsage=serverAuth", f"subjectAltName={','.join(alternatives)}")
        return self._make(name, f"/CN={name}", "leaf", *more)

    def expired(self, name: str, *alternatives: str) -> Certificate:
        """As `server`, but it ended yesterday."""
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, names = self._folder / f"{name}.csr", f"subjectAltName={','.join(alternatives)}"
        _openssl("req", "-new", *_KEY, "-addext", names, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        signer = ("-CA", self.own.certificate, "-CAkey", self.own.key, "-days", "-1", "-copy_extensions", "copy")
        _openssl("x509", "-req", "-in", request, *signer, "-out", made.certificate)
        return made

    def client(self, user: str, *groups: str) -> Certificate:
        """A certificate that authenticates a user of the API, and the groups the user is in."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._make(user.replace(":", "-"), subject, "leaf", "extendedKeyUsage=clientAuth")

    def signing_key(self, name: str) -> SigningKey:
        """A pair of keys without a certificate."""
        key = SigningKey(self._folder / f"{name}.key", self._folder / f"{name}.pub")
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key.private)
        _openssl("pkey", "-in", key.private, "-pubout", "-out", key.public)
        return key

    def _make(self, name: str, subject: str, section: str, *extensions: str) -> Certificate:
        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        signer = () if section == "authority" else ("-CA", self.own.certificate, "-CAkey", self.own.key)
        request = ("req", "-x509", "-config", self._config, "-extensions", section, *_KEY, "-days", _DAYS, *signer)
        more = [argument for extension in extensions for argument in ("-addext", extension)]
        _openssl(*request, *more, "-subj", subject, "-keyout", made.key, "-out", made.certificate)
        return made


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(map(str, arguments))} failed:\n{done.stderr}")
