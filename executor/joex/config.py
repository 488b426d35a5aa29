"""Settings of an executor: defaults, then ``joex.toml``, then the environment (``JOEX_...``), then flags."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from joex.core.duration import parse_duration
from joex.core.job import check_name
from joex.core.priority_turns import CountingScheme
from joex.core.url import check_database_url
from joex.errors import ConfigError

_LAST_PORT = 65535
SECRETS = ("database_url", "api_token")
"""Settings that a file can give instead, because other users see the arguments of a command in the process list."""

Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""A duration: ``30s``, ``1m``, ``1h30m``, ``30 minutes``, or a number of seconds."""


def _scheme(value: object) -> object:
    return CountingScheme.parse(value) if isinstance(value, str) else value


def split_texts(value: object) -> object:
    """The parts of a text between commas; another value as it is."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _check_address(value: str) -> str:
    if value and split_address(value) is None:
        raise ValueError("expected host:port, such as 127.0.0.1:7878 or [::1]:7878")
    return value


Scheme = Annotated[CountingScheme, NoDecode, BeforeValidator(_scheme)]
Names = Annotated[list[str], NoDecode, BeforeValidator(split_texts)]
"""Names, separated by commas."""
Address = Annotated[str, AfterValidator(_check_address)]
"""host:port; or empty."""


class Settings(BaseSettings):
    """All settings: each field is also ``JOEX_<FIELD>`` in the environment and a key of ``joex.toml``."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="JOEX_", toml_file="joex.toml", extra="forbid", frozen=True, arbitrary_types_allowed=True,
        hide_input_in_errors=True,
    )  # fmt: skip

    database_url: SecretStr | None = Field(None, description="PostgreSQL URL; none: the embedded server")
    database_url_file: str = Field("", description="file with this URL, instead of database_url")
    app_id: str = Field("", description="stable name of this executor; none: the pod's slot, or the host's name")
    pod_name: str = Field("", description="name of the pod (downward API)")
    pod_namespace: str = Field("", description="namespace of the pod (downward API)")
    pod_uid: str = Field("", description="uid of the pod (downward API)")
    pool_size: int = Field(2, ge=1, le=100_000, description="jobs to run at a time")
    processes: bool = Field(
        default=False, description="run plain functions in processes, unless their tasks say otherwise"
    )
    process_slots: int | None = Field(
        None, ge=1, description="most jobs that run in processes at a time; further ones wait; none: pool_size"
    )
    queues: Names = Field(["default"], min_length=1, description="queues to serve in turn, separated by commas")
    counting_scheme: Scheme = Field(CountingScheme(4, 1), description="turns for high and low priority within a group")
    retries: int = Field(
        5, ge=0, le=1_000_000, description="retries of a failed job, unless the task or the job sets them"
    )
    retry_delay: Duration = Field(
        timedelta(minutes=1), description="delay before the first retry; it doubles each time, up to 7 days"
    )
    retry_jitter: float = Field(0.1, ge=0, le=1, description="lengthen each of these delays by up to this share of it")
    most_losses: int = Field(5, ge=0, le=1000, description="fail a job when more executors than this died holding it")
    timeout: Duration | None = Field(None, description="longest time of a run, unless the task sets one")
    log_buffer_size: int = Field(
        500,
        ge=1,
        le=1_000_000,
        description="most log lines that wait to be written, a long one counting as several; beyond it, the group that "
        "has the most loses lines",
    )
    wakeup_period: Duration = Field(
        timedelta(minutes=30), description="look for work at least this often, even without a notification"
    )
    poll_interval: Duration | None = Field(
        None, description="poll this often instead of LISTEN; none: LISTEN, or 1s behind a pooler"
    )
    lease: Duration = Field(timedelta(seconds=6), description="silence after which a dead executor's jobs move on")
    outage_patience: Duration = Field(
        timedelta(minutes=1),
        description="the longest outage of the database that interrupts no run, except of exclusive tasks; 0: none",
    )
    drain_timeout: Duration | None = Field(None, description="longest a drain waits for running jobs; none: no limit")
    signal_timeout: Duration | None = Field(
        None, description="longest a drain waits if a signal started it; none: as drain_timeout"
    )
    startup_wait: Duration = Field(
        timedelta(0), description="wait this long at the start for the database, and for a schema in it"
    )
    retention: Duration = Field(timedelta(days=7), description="keep finished jobs and their logs this long")
    retention_failed: Duration = Field(timedelta(days=30), description="keep failed jobs and their logs this long")
    http_address: Address = Field("127.0.0.1:7878", description="host:port of the HTTP interface; empty: none")
    http_tls_certificate: str = Field(
        "", description="file of a certificate (PEM), to serve HTTPS instead; read again when it changes; empty: HTTP"
    )
    http_tls_key: str = Field("", description="file of its key; empty: the key is in the certificate's file")
    api_token: SecretStr | None = Field(
        None, description="the owner's bearer token for HTTP; none: programs on this machine may call without a token"
    )
    api_token_file: str = Field("", description="file with this token, instead of api_token")
    log_format: str = Field("console", pattern="^(console|json)$", description="console or json, on standard error")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no .env files: joex.toml is the file
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags override the environment, which overrides the file."""
        prefix = cls.model_config["env_prefix"]
        toml = TomlConfigSettingsSource(settings_cls)
        return (
            _SecretFiles(settings_cls, init_settings, _flag), _GivenToken(settings_cls, init_settings),
            _SecretFiles(settings_cls, env_settings, lambda name: prefix + name.upper()),
            _GivenToken(settings_cls, env_settings),
            _SecretFiles(settings_cls, toml, _key), toml,
        )  # fmt: skip

    @field_validator("database_url")
    @classmethod
    def _check_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        check_database_url(value.get_secret_value())
        return value

    @field_validator("api_token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        # An empty token counts as none: with it, any caller would be served. Callers send all others in a header.
        if value is None or not value.get_secret_value():
            return None
        if not re.fullmatch(r"[!-~]{16,}", value.get_secret_value()):
            raise ValueError(
                "expected at least 16 visible ASCII characters, no spaces; 'openssl rand -hex 32' prints a good token"
            )
        return value

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("each queue once")
        for name in value:
            check_name("queue", name)
        return value

    @field_validator("lease")
    @classmethod
    def _check_lease(cls, value: timedelta) -> timedelta:
        if not timedelta(milliseconds=300) <= value <= timedelta(hours=1):
            raise ValueError("expected 300ms to 1h")
        return value

    @field_validator("wakeup_period", "poll_interval")
    @classmethod
    def _check_period(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta(milliseconds=10):
            raise ValueError("expected at least 10ms")
        return value

    @model_validator(mode="after")
    def _check_app_id(self) -> Settings:
        check_name("app_id", self.effective_app_id)
        return self

    @property
    def url(self) -> str | None:
        """The database URL in clear text, if there is one."""
        return self.database_url.get_secret_value() if self.database_url else None

    @property
    def effective_app_id(self) -> str:
        """The app-id: as given; else from the pod (namespace and slot name); else from the host."""
        if self.app_id:
            return self.app_id
        if self.pod_name:
            slot = re.sub(r"-[a-z0-9]{5,10}-[a-z0-9]{5}$", "", self.pod_name)
            return f"{self.pod_namespace}/{slot}" if self.pod_namespace else slot
        return socket.gethostname() or "localhost"


class _GivenToken(PydanticBaseSettingsSource):
    """A source whose empty token counts as not given: an empty variable must not take away the token of the file."""

    def __init__(self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._source = source

    def __call__(self) -> dict[str, Any]:
        """The settings by their names."""
        return {name: value for name, value in self._source().items() if name != "api_token" or value}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """See `PydanticBaseSettingsSource.get_field_value`."""
        return self._source.get_field_value(field, field_name)


class _SecretFiles(PydanticBaseSettingsSource):
    """The secrets from the files that a source names, unless a stronger source gives them.

    ``place``: how the source calls a setting, for messages.
    """

    def __init__(
        self, settings_cls: type[BaseSettings], source: PydanticBaseSettingsSource, place: Callable[[str], str]
    ) -> None:
        super().__init__(settings_cls)
        self._source = source
        self._place = place

    def __call__(self) -> dict[str, Any]:
        """The secrets by their names.

        Raises:
            ConfigError: the source also gives the secret itself, or the file can't be read.
        """
        found = {name: self.get_field_value(self.settings_cls.model_fields[name], name)[0] for name in SECRETS}
        return {name: secret for name, secret in found.items() if secret is not None}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """See `PydanticBaseSettingsSource.get_field_value`."""
        del field
        given = self._source()
        secret = None
        path = given.get(f"{field_name}_file")
        if path and isinstance(path, str) and field_name not in self.current_state:
            where = self._place(f"{field_name}_file")
            if given.get(field_name):
                raise ConfigError(f"{where}: {self._place(field_name)} is given too: give only one of them")
            secret = read_secret(where, path)
        return secret, field_name, False


def read_secret(where: str, path: str) -> str:
    """The text of a file without the white space around it. ``where``: the setting that names it, for messages.

    Raises:
        ConfigError: the file can't be read, or has no text. Neither its content nor its path is shown: users give
            secrets for paths by mistake.
    """
    text, problem = "", "the file is empty"
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except UnicodeError:
        problem = "the file is no text in UTF-8"
    except (OSError, ValueError) as error:
        problem = f"can't read this file: {getattr(error, 'strerror', None) or 'it is no path'}"
    if not text:  # (outside of the except blocks: those errors, which show the path, would be the context of this one)
        raise ConfigError(f"{where}: {problem}")
    return text


_Model = TypeVar("_Model", bound=BaseSettings)


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Load the settings of an executor; see `load`."""
    return load(Settings, flags or {})


def load(model: type[_Model], flags: Mapping[str, Any]) -> _Model:
    """Load settings; ``flags`` override all other sources (None: not given).

    Raises:
        ConfigError: one line that names the wrong setting, where it comes from, and what is expected.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    prefix = model.model_config["env_prefix"]
    try:
        return model(**given)
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(problem, given, prefix) for problem in error.errors())) from error
    except (ValueError, OSError) as error:  # joex.toml is not TOML, or can't be read
        raise ConfigError(f"joex.toml ({Path.cwd()}): {' '.join(str(error).split())}") from error


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of ``host:port``; None if it is something else."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\[\]\s]+):(\d{1,5})", address)
    if match is None or int(match[2]) > _LAST_PORT:
        return None
    return match[1].strip("[]"), int(match[2])


def _problem(problem: Any, flags: Mapping[str, Any], prefix: str) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    message = problem["msg"].removeprefix("Value error, ")
    if not name:
        return str(message)
    where = _given_at(f"{name}_file", flags, prefix) if name in SECRETS else None
    where = where or _given_at(name, flags, prefix) or _key(name)
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such setting"
    shown = "" if "token" in name or "url" in name else f"; got {problem['input']!r}"
    return f"{where}: {message}{'' if 'got' in message else shown}"


def _given_at(name: str, flags: Mapping[str, Any], prefix: str) -> str | None:
    """The flag or the variable that gives a setting; None: neither does."""
    variable = prefix + name.upper()
    if name in flags:
        return _flag(name)
    return variable if any(key.upper() == variable for key in os.environ) else None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _key(name: str) -> str:
    return f"{name} (joex.toml)"
