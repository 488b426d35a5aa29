"""The settings of the operator: each is a flag, and ``JOEX_OPERATOR_<FIELD>`` in the environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from joex.config import Duration, split_address
from joex.errors import ConfigError

PREFIX = "JOEX_OPERATOR_"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _names(value: object) -> object:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class OperatorSettings(BaseSettings):
    """All settings."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    namespace: str = Field("", description="namespace of the Lease; empty: that of the operator's pod, or 'default'")
    namespaces: Annotated[list[str], NoDecode, BeforeValidator(_names)] = Field(
        [], description="namespaces to watch, separated by commas; empty: the whole cluster"
    )
    image: str = Field("joex:latest", min_length=1, description="image of executors whose pool names none")
    http_address: str = Field("127.0.0.1:7879", description="host:port of probes and metrics; empty: serve none")
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

    @field_validator("http_address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        if value and split_address(value) is None:
            raise ValueError("expected host:port, such as 127.0.0.1:7879 or [::1]:7879")
        return value

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
    def own_identity(self) -> str:
        """The name of this operator. In a pod it is the pod's: after a restart it need not wait for its own Lease."""
        return self.identity or socket.gethostname()


def load_operator_settings(flags: Mapping[str, Any]) -> OperatorSettings:
    """Read the settings from flags and the environment.

    Raises:
        ConfigError: one line that names the invalid setting and what is expected.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return OperatorSettings(**given)
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(problem, given) for problem in error.errors())) from error


def _problem(problem: Any, flags: Mapping[str, Any]) -> str:
    name = str(problem["loc"][0])
    variable = PREFIX + name.upper()
    in_environment = any(key.upper() == variable for key in os.environ)
    where = variable if in_environment and name not in flags else "--" + name.replace("_", "-")
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if "got" in message else f"{where}: {message}; got {problem['input']!r}"
