"""For how long a database has refused logins."""

import socket
import time
from types import SimpleNamespace

import asyncpg
import pytest

from joex.store import connector
from joex.store.connector import Connector, Logins


def test_an_outage_after_a_refused_login_counts_as_no_refusal(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    logins, error = Logins(), asyncpg.InvalidPasswordError()
    logins.refuse(error)
    now = 100.0
    assert logins.refused_for == 0
    logins.refuse(error)
    assert logins.refused_for == 100
    logins.accept()
    now = 200.0
    logins.refuse(error)
    assert logins.refused_for == 0


async def test_an_outage_between_two_refused_logins_counts_as_no_refusal(monkeypatch):
    now = 0.0
    monkeypatch.setattr(connector, "time", SimpleNamespace(monotonic=lambda: now))
    logins, error = Logins(), asyncpg.InvalidPasswordError()
    logins.refuse(error)
    with socket.socket() as away:
        away.bind(("127.0.0.1", 0))
        url = f"postgresql://joex@127.0.0.1:{away.getsockname()[1]}/joex"
        with pytest.raises(OSError, match="refused"):
            await Connector(url, "joex", None, {}, pooled=False, logins=logins)()
    assert logins.refused is error
    now = 100.0
    logins.refuse(error)
    assert logins.refused_for == 0
    now = 160.0
    logins.refuse(error)
    assert logins.refused_for == 60
