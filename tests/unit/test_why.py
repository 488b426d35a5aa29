"""Why a job is not running, in words."""

from typing import Any

import pytest

from joex.client.explain import Reason

HELD = {"app_id": "prod/documents-0", "since": "2026-01-01T00:00:00+00:00", "cancel_requested": False, "alone": False}
STARTS = "it is about to start on prod/documents-0 since 2026-01-01T00:00:00+00:00"
SAID: list[tuple[str, dict[str, Any], str]] = [
    ("finished", {"state": "success", "at": "noon", "error": "an old one"}, "it is finished: success at noon"),
    ("scheduled", HELD, STARTS),
    (
        "scheduled",
        {**HELD, "alone": True},
        f"{STARTS}, as soon as nothing else runs there, because executors died while they held it",
    ),
    (
        "running",
        {**HELD, "cancel_requested": True},
        "it runs on prod/documents-0 since 2026-01-01T00:00:00+00:00, and a client has asked to cancel it",
    ),
    ("not_due", {"at": "noon", "seconds": 90.2, "retry": False, "failures": 0}, "it is not due before noon, in 1m30s"),
    ("no_executor", {"queue": "mail", "draining": 2}, "no executor serves the queue 'mail' (2 drain)"),
    ("slots_busy", {"slots": 4, "executors": 2}, "all slots are busy: 4, of 2 executors of its queue"),
    (
        "queue_paused",
        {"queue": "new mail", "since": "noon", "by": None},
        "its queue 'new mail' is paused since noon: joex queues set 'new mail' --resume",
    ),
    (
        "group_paused",
        {"group": "acme", "queue": "default"},
        "its group 'acme' is paused: joex groups set acme --resume",
    ),
    (
        "group_paused",
        {"group": "$(id)", "queue": "new mail"},
        "its group '$(id)' is paused: joex groups set '$(id)' --queue 'new mail' --resume",
    ),
    ("group_at_limit", {"group": "acme", "running": 2, "limit": 2}, "its group 'acme' runs 2 of 2 jobs it may"),
    (
        "queue_held",
        {"queue": "a", "session": 7, "role": "me"},
        "session 7 of the role me holds the lock of the queue 'a', so takes are late: SELECT pg_terminate_backend(7)",
    ),
    (
        "behind",
        {"retries": 1, "same": 1000, "other": 0},
        "jobs of its group come before it: 1 due retries, 1000 or more of its own priority",
    ),
    ("turn", {"places": 1, "at_least": False}, "1 group is served before its own"),
    ("turn", {"places": 100, "at_least": True}, "at least 100 groups are served before its own"),
    ("next", {}, "nothing blocks it: the next take gets it"),
]


@pytest.mark.parametrize(("reason", "detail", "said"), SAID)
def test_a_reason_is_a_sentence(reason: str, detail: dict[str, Any], said: str) -> None:
    assert Reason(reason, detail).message == said
