"""The settings of the console."""

from ipaddress import ip_network

import pytest

from joex.config import load
from joex.console.settings import ConsoleSettings
from joex.core.access import Scope
from joex.errors import ConfigError


def test_the_defaults_serve_this_machine_alone():
    settings = load(ConsoleSettings, {})
    assert (settings.http_address, settings.proxies, settings.operators) == ("127.0.0.1:7880", [], [])


def test_texts_with_commas_are_lists(monkeypatch):
    monkeypatch.setenv("JOEX_CONSOLE_PROXIES", "10.0.0.0/8, ::1")
    monkeypatch.setenv("JOEX_CONSOLE_USER_SCOPES", "view, payloads")
    monkeypatch.setenv("JOEX_CONSOLE_OPERATORS", "ann,bob")
    settings = load(ConsoleSettings, {})
    assert settings.proxies == [ip_network("10.0.0.0/8"), ip_network("::1")]
    assert settings.user_scopes == [Scope.VIEW, Scope.PAYLOADS]
    assert settings.operators == ["ann", "bob"]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("proxies", "10.0.0.0/8,nonsense", "expected addresses or networks, such as 10.0.0.0/8"),
        ("proxies", "10.0.0.1/8", "has host bits set"),
        ("user_header", "X User", "expected the name of a header"),
        ("user_scopes", "view,everything", "'view', 'payloads'"),
        ("user_scopes", "", "at least 1 item"),
        ("http_address", "nonsense", "expected host:port"),
        ("http_address", "", "at least 1 character"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(monkeypatch, name, value, line):
    monkeypatch.setenv(f"JOEX_CONSOLE_{name.upper()}", value)
    with pytest.raises(ConfigError, match=f"^JOEX_CONSOLE_{name.upper()}: ") as caught:
        load(ConsoleSettings, {})
    assert line in str(caught.value)
