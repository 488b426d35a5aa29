"""Settings of the operator: wrong ones get one line that names them."""

from datetime import timedelta

import pytest

from joex.config import load
from joex.errors import ConfigError
from joex_operator.cluster.settings import OperatorSettings


def test_defaults_watch_the_whole_cluster() -> None:
    settings = load(OperatorSettings, {})
    assert settings.namespaces == []
    assert settings.poll_interval == timedelta(seconds=15)
    assert settings.own_namespace == "default"


def test_flags_come_before_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("JOEX_OPERATOR_NAMESPACES", "a, b")
    monkeypatch.setenv("JOEX_OPERATOR_IMAGE", "joex:1")
    settings = load(OperatorSettings, {"image": "joex:2", "identity": None})
    assert (settings.namespaces, settings.image) == (["a", "b"], "joex:2")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("POLL_INTERVAL", "soon", "JOEX_OPERATOR_POLL_INTERVAL: "),
        ("POLL_INTERVAL", "1ms", "JOEX_OPERATOR_POLL_INTERVAL: expected at least 100ms"),
        ("HTTP_ADDRESS", "7879", "JOEX_OPERATOR_HTTP_ADDRESS: expected host:port"),
        ("LOG_FORMAT", "xml", "JOEX_OPERATOR_LOG_FORMAT: "),
        ("MIGRATE", "maybe", "JOEX_OPERATOR_MIGRATE: "),
        ("IMAGE", "", "JOEX_OPERATOR_IMAGE: "),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, variable: str, value: str, expected: str) -> None:
    monkeypatch.setenv(f"JOEX_OPERATOR_{variable}", value)
    with pytest.raises(ConfigError) as caught:
        load(OperatorSettings, {})
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--resync-period: "):
        load(OperatorSettings, {"resync_period": "never"})
