"""``joex timeouts``, in separate processes."""

import json
from pathlib import Path

import pytest

from joex import Client
from tests.acceptance.test_cli import Joex


@pytest.fixture
def joex(tmp_path: Path, database_url: str) -> Joex:
    return Joex(tmp_path, database_url)


async def test_timeouts_are_set_listed_and_cleared(joex, client):
    assert await joex.done("timeouts") == "no type has a timeout"
    assert await joex.done("timeouts", "set", "mail.send", "--activity", "1m30s") == "mail.send: activity 1m30s"
    assert await joex.done("timeouts", "set", '#["resize",2]', "--visibility", "90") == '#["resize",2]: visibility 90'
    assert json.loads(await joex.done("timeouts", "--json")) == [
        {"type": '#["resize",2]', "activity": None, "visibility": 90},
        {"type": "mail.send", "activity": 90, "visibility": None},
    ]
    listed = await joex.done("timeouts", "list")
    assert [line.split() for line in listed.splitlines()] == [
        ["TYPE", "ACTIVITY", "VISIBILITY"],
        ['#["resize",2]', "-", "1m30s"],
        ["mail.send", "1m30s", "-"],
    ]
    assert await joex.done("timeouts", "clear", "mail.send") == "mail.send: no timeout"
    assert len(json.loads(await joex.done("timeouts", "list", "--json"))) == 1


async def test_a_timeout_that_was_set_holds(joex, client: Client):
    await joex.done("timeouts", "set", '#["resize",2]', "--visibility", "50ms")
    await client.keyed.add(("resize", 2), 1)
    lost = await client.keyed.accept(("resize", 2))
    again = await client.keyed.accept(("resize", 2), wait="30s")
    assert lost is not None
    assert again is not None
    assert (again.id, again.attempt) == (lost.id, 2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("set", "t"), "timeouts set: give either --activity or --visibility"),
        (
            ("set", "t", "--activity", "1s", "--visibility", "1s"),
            "timeouts set: give either --activity or --visibility",
        ),
        (("set", "t", "--activity", "soon"), "activity: expected something like '30s'"),
        (("set", "t", "--visibility", "0"), "visibility: expected more than 0; got '0'"),
        (("set", "", "--activity", "1s"), "type: must not be empty"),
        (("--json", "clear", "t"), "timeouts clear: give its options after it"),
    ],
    ids=str,
)
async def test_a_wrong_call_says_what_to_mend(joex, arguments, complaint):
    answer = await joex("timeouts", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.complaint.startswith(complaint)
