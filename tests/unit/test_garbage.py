"""The collector of garbage pauses while large values are read, and no longer."""

import gc
import json
import os
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from joex import InvalidJob, garbage
from joex.garbage import collection_paused
from joex.http import bodies
from joex.store.bounded import read_each
from joex.store.json_text import json_text, read_json
from tests.support.waiting import PATIENCE

MANY: dict[str, list[list[Any]]] = {"x": [[] for _ in range(60_000)]}


@pytest.fixture
def collections():
    """The generations that were collected, each time."""
    found: list[int] = []

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


@pytest.mark.parametrize(
    "read",
    [
        partial(json_text, "args", MANY),
        partial(read_json, json.dumps(MANY)),
        partial(read_each, read_json, [json.dumps({"x": [[]] * 1_000})] * 60),
        partial(bodies.parse, json.dumps(MANY).encode()),
        partial(bodies.parse, json.dumps([MANY] * 3).encode(), write=partial(bodies._written, largest=None)),
    ],
    ids=["written", "read", "read in a list", "parsed", "parsed and written"],
)
def test_while_a_large_value_is_read_no_garbage_is_collected(read, collections):
    gc.collect()
    del collections[:]
    kept = read()
    found = list(collections)
    assert kept
    assert len(found) <= 1  # afterwards, where the value is kept
    assert gc.isenabled()


@pytest.mark.parametrize(
    "body",
    [
        '{"args": %s}', '{"payload": %s}', '{"payload": [%s]}', '{"result": %s}', '{"opts": {"data": %s}}',
        '{"opts": {"free": %s}}', '{"log": %s}', '{"args": [%s]}', "[%s]",
        '{"args": %s, "x": NaN}', '{"args": %s} x', '{"args": %s, "args": 1}',
        '{"args": %s, "opts": {"data": {"x": "\\u0000"}}}', '{"result": %s, "args": {"x": "\\ud800"}}',
    ],
)  # fmt: skip
def test_when_the_pause_for_a_large_body_ends_its_lists_and_objects_are_gone(body, monkeypatch):
    """The collector walked over five million lists, one in another, for nine seconds."""
    left: list[int] = []

    @contextmanager
    def paused():
        with collection_paused():
            before = len(gc.get_objects())
            yield
            left.append(len(gc.get_objects()) - before)

    monkeypatch.setattr(bodies, "collection_paused", paused)
    monkeypatch.setattr(bodies, "_LARGEST_IN_C", 1000)
    with suppress(ValueError, InvalidJob):
        kept = bodies._read((body % json.dumps(MANY)).encode(), None, is_of_many=False)
        assert kept is not None
    assert left[-1] < 1000


def test_the_pause_ends_with_its_last_reader_in_whichever_thread():
    begun, ends = threading.Event(), threading.Event()

    def read():
        with collection_paused():
            begun.set()
            ends.wait(PATIENCE)

    thread = threading.Thread(target=read)
    with collection_paused():
        thread.start()
        assert begun.wait(PATIENCE)
    assert not gc.isenabled()
    ends.set()
    thread.join()
    assert gc.isenabled()


def test_readers_that_come_one_after_the_other_do_not_prolong_the_pause_without_end(monkeypatch):
    now = 100.0
    monkeypatch.setattr("joex.garbage.time.monotonic", lambda: now)
    first, second = collection_paused(), collection_paused()
    with first:
        now += garbage._LONGEST
        second.__enter__()
    assert gc.isenabled()
    second.__exit__(None, None, None)
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_process_that_never_collects_goes_on_so():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # a fork is what this tests
def test_a_fork_during_the_pause_of_another_thread_collects_garbage():
    begun, ends = threading.Event(), threading.Event()

    def read():
        with collection_paused(), garbage._pause.lock:
            begun.set()
            ends.wait(PATIENCE)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(PATIENCE)
    if (fork := os.fork()) == 0:
        os._exit(0 if gc.isenabled() and garbage._pause.lock.acquire(blocking=False) else 1)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
