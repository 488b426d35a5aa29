"""Kubeconfig files: written for the tests' own clusters, and read for any cluster, one context at a time."""

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


class KubeconfigError(Exception):
    """There is no such context, or it can't be used."""


@dataclass(frozen=True)
class Access:
    """The address of an API, and the credentials for it."""

    server: str
    cluster: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)

    def ssl_context(self) -> ssl.SSLContext:
        """A context that trusts the cluster's authority, and presents the user's certificate."""
        authority = _content(self.cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if self.cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate, key = _content(self.user, "client-certificate"), _content(self.user, "client-key")
        if certificate and key:
            with tempfile.NamedTemporaryFile() as file:  # a context reads its own certificate from files only
                file.write(certificate + b"\n" + key)
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def token(self) -> str | None:
        """The user's token, if the user authenticates by one. Tokens in files change, so read it for each request."""
        if path := self.user.get("tokenFile"):
            return Path(path).read_text().strip()
        if "exec" in self.user:
            return _token_of_program(self.user["exec"])
        token: str | None = self.user.get("token")
        return token


def write(path: Path, access: Access) -> Path:
    """Write a kubeconfig with one context, ``default``. JSON is YAML."""
    path.write_text(json.dumps(document(access)))
    path.chmod(0o600)
    return path


def document(access: Access) -> dict[str, Any]:
    """A kubeconfig with one context, ``default``."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": {"server": access.server, **access.cluster}}],
        "users": [{"name": "default", "user": access.user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "current-context": "default",
    }


def read(*paths: Path, context: str | None = None) -> Access:
    """The settings of a context (None: the current one) in one or more kubeconfigs; the first wins.

    Raises:
        KubeconfigError: there is no such context.
    """
    named: dict[str, dict[str, Any]] = {"clusters": {}, "users": {}, "contexts": {}}
    for path in paths:
        if path.exists():
            config = yaml.safe_load(path.read_text()) or {}
            context = context or config.get("current-context")
            for kind, entries in named.items():
                for entry in config.get(kind) or []:
                    entries.setdefault(entry["name"], _with_full_paths(entry[kind[:-1]], path.parent))
    if context not in named["contexts"]:
        raise KubeconfigError(f"no context {context!r} in {_names(paths)}; there are: {_names(named['contexts'])}")
    chosen = named["contexts"][context]
    cluster = named["clusters"][chosen["cluster"]]
    return Access(cluster["server"], cluster, named["users"].get(chosen.get("user"), {}))


def paths_of_user() -> list[Path]:
    """The kubeconfigs of the tests' user."""
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [Path.home() / ".kube" / "config"]


def _names(things: Iterable[Any]) -> str:
    return ", ".join(map(str, things)) or "none"


def _with_full_paths(settings: dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    files = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    return {key: str(folder / value) if key in files else value for key, value in (settings or {}).items()}


def _content(settings: dict[str, Any], name: str) -> bytes | None:
    if f"{name}-data" in settings:
        return base64.b64decode(settings[f"{name}-data"])
    return Path(settings[name]).read_bytes() if settings.get(name) else None


def _token_of_program(program: dict[str, Any]) -> str:
    environment = {**os.environ, **{entry["name"]: entry["value"] for entry in program.get("env") or []}}
    question = {"apiVersion": program["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(question)
    command = [program["command"], *(program.get("args") or [])]
    answer = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout
    token = json.loads(answer).get("status", {}).get("token")
    if not token:
        raise KubeconfigError(f"{program['command']} gave no token")
    return str(token)
