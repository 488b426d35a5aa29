"""Streams of changes, without a database."""

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID, uuid4

from joex.notifications.streams import Changes, Streams
from joex.store.subscriptions import Version


async def _read(_connection: Any, _ids: Collection[UUID]) -> Mapping[UUID, str]:
    return {}


async def test_in_a_new_session_a_version_that_was_seen_may_be_another_one_and_what_is_the_same_does_not_come_again():
    """Transaction ids that asynchronous replication has lost come again on the promoted standby."""
    changed, same = uuid4(), uuid4()
    streams, version = Streams(), Version(900, "running")
    changes = Changes([changed, same], _read, None)
    streams.add(changes)
    for job_id in (changed, same):
        changes.put(job_id, version, "before")
        assert not changes.wants(job_id, version)
    assert [await anext(changes) for _ in range(2)] == [(changed, "before"), (same, "before")]
    streams.unsettled.clear()
    streams.begin_anew()
    assert streams.unsettled == {changed, same}
    assert changes.wants(changed, version)
    changes.put(same, version, "before")
    changes.put(changed, version, "after")
    assert await anext(changes) == (changed, "after")
