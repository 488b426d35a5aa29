"""Reports on all groups over HTTP: two read at a time, one of each caller, and the callers take turns."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException, Request

from joex.core.access import Scope
from joex.http.caller import Caller
from joex.http.state import ASK_AGAIN, CALLER
from joex.http.turns import Turns, held, line_of_reports
from tests.support.waiting import PATIENCE, eventually


def request_of(name: str, **state: Any) -> Request:
    caller = Caller(name, frozenset({Scope.VIEW}), groups=(name,))
    app = SimpleNamespace(state=SimpleNamespace(closing=asyncio.Event()))

    async def stay() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "headers": [], "app": app, "state": {CALLER: caller, **state}}
    return Request(scope, stay)


async def test_two_callers_read_one_report_each_at_a_time_however_many_they_want():
    reports, begun, may_end = line_of_reports(), list[str](), asyncio.Event()

    async def read(name: str) -> None:
        async with reports.turn(request_of(name)):
            begun.append(name)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:  # (Tasks begin in the order in which they were made.)
        for name in [*["acme"] * 10, "other", "third"]:
            group.create_task(read(name))
        await eventually(lambda: len(begun) >= 2)
        assert begun == ["acme", "other"]
        may_end.set()
    assert begun == ["acme", "other", "third", *["acme"] * 9]


async def test_a_report_is_not_read_if_its_token_was_revoked_while_it_waited():
    async def find_no_more() -> None:
        return None

    with pytest.raises(HTTPException, match="the token has expired, or was revoked"):
        async with line_of_reports().turn(request_of("acme", **{ASK_AGAIN: find_no_more})):
            pytest.fail("it is read")


async def test_a_call_that_waits_to_begin_when_the_server_stops_is_refused():
    turns, closing = Turns(), asyncio.Event()
    begin = turns.beginning("acme", closing).__aenter__
    async with turns.of("acme", 1):
        waiting = asyncio.create_task(begin())
        await eventually(lambda: turns.of("acme", 1)._waiters, why="it waits")
        closing.set()
        with pytest.raises(HTTPException, match="this server stops: try again"):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_a_call_whose_turn_is_free_goes_on_although_the_server_stops():
    turn, closing = asyncio.Semaphore(1), asyncio.Event()
    closing.set()
    async with held(turn, closing):
        assert turn.locked()
    assert not turn.locked()
