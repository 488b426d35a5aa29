"""For how long a database has refused logins."""

import time

import asyncpg

from joex.store.connector import Logins


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
