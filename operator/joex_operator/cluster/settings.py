"""The settings of the operator: each is a flag, and ``JOEX_OPERATOR_<FIELD>`` in the environment."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from joex.config import Address, Duration, Names

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class OperatorSettings(BaseSettings):
    """All settings."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="JOEX_OPERATOR_", extra="forbid", frozen=True
    )

    namespace: str = Field("", description="namespace of the Lease; empty: that of the operator's pod, or 'default'")
    namespaces: Names = Field([], description="namespaces to watch, separated by commas; empty: the whole cluster")
    image: str = Field("joex:latest", min_length=1, description="image of executors whose pool names none")
    http_address: Address = Field("127.0.0.1:7879", description="host:port of probes and metrics; empty: serve none")
    http_tls_certificate: str = Field(
        "", description="file of a certificate (PEM), to serve HTTPS instead; read again when it changes; empty: HTTP"
    )
    http_tls_key: str = Field("", description="file of its key; empty: the key is in the certificate's file")
    identity: str = Field("", description="name of this operator in the Lease; empty: its host's name")
    lease_name: str = Field("joex-operator", min_length=1, description="name of the Lease for leader election")
    poll_interval: Duration = Field(timedelta(seconds=15), description="reconcile each pool at least this often")
    resync_period: Duration = Field(timedelta(minutes=5), description="list all objects in the cluster this often")
    migrate: bool = Field(True, description="migrate the pools' databases to this version's schema")  # noqa: FBT003
    pools_config_map: str = Field("", description="ConfigMap with manifests of bootstrap pools; empty: none")
    strict_x509: bool = Field(
        True,  # noqa: FBT003
        description="refuse an API server whose certificates lack key usage or key identifiers, as Python 3.13 does",
    )
    log_format: str = Field("console", pattern="^(console|json)$", description="console or json")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @field_validator("poll_interval", "resync_period")
    @classmethod
    def _check_period(cls, value: timedelta) -> timedelta:
        if value < timedelta(milliseconds=100):
            raise ValueError("expected at least 100ms")
        return value

    @property
    def own_namespace(self) -> str:
        """The namespace of this operator."""
        if self.namespace:
            return self.namespace
        return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else "default"

    @property
    def release(self) -> str:
        """The name that the operators of one installation share: those that elect a leader by the same Lease."""
        return f"{self.own_namespace}/{self.lease_name}"

    @property
    def own_identity(self) -> str:
        """The name of this operator. In a pod it is the pod's: after a restart it need not wait for its own Lease."""
        return self.identity or socket.gethostname()
