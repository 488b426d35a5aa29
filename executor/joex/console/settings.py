"""The settings of the console: each is a flag, and ``JOEX_CONSOLE_<FIELD>`` in the environment."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from joex.config import Address, Names, split_texts
from joex.core.access import Scope

_HEADER = re.compile(r"[A-Za-z0-9-]+")


def _networks(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return [ip_network(text.strip()) for text in value.split(",") if text.strip()]
    except ValueError as error:
        raise ValueError(f"expected addresses or networks, such as 10.0.0.0/8: {error}") from None


Networks = Annotated[list[IPv4Network | IPv6Network], NoDecode, BeforeValidator(_networks)]
Scopes = Annotated[list[Scope], NoDecode, BeforeValidator(split_texts)]


class ConsoleSettings(BaseSettings):
    """All settings."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="JOEX_CONSOLE_", extra="forbid", frozen=True
    )

    http_address: Address = Field("127.0.0.1:7880", min_length=1, description="host:port of the console")
    http_tls_certificate: str = Field(
        "", description="file of a certificate (PEM), to serve HTTPS instead; read again when it changes; empty: HTTP"
    )
    http_tls_key: str = Field("", description="file of its key; empty: the key is in the certificate's file")
    proxies: Networks = Field(
        [], description="addresses or networks of proxies that sign users in, separated by commas; empty: none"
    )
    user_header: str = Field("X-Forwarded-User", description="header in which such a proxy names the user")
    user_scopes: Scopes = Field(
        [Scope.VIEW], min_length=1, description="scopes of users whom a proxy has signed in, separated by commas"
    )
    operators: Names = Field(
        [], description="users of a proxy who have also the scopes payloads and operate, separated by commas"
    )
    log_format: str = Field("console", pattern="^(console|json)$", description="console or json, on standard error")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @field_validator("user_header")
    @classmethod
    def _check_header(cls, value: str) -> str:
        if not _HEADER.fullmatch(value):
            raise ValueError("expected the name of a header, such as X-Forwarded-User")
        return value
