"""The checker of `make chaos` tells each breach of a guarantee, and nothing else."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.chaos.checker import (
    ENOUGH_SAMPLES,
    EVENED_AFTER,
    GUARANTEES,
    NOTICED_AFTER,
    Database,
    Decision,
    End,
    Job,
    Rules,
    check,
)
from tests.support.chaos.history import read

RULES = Rules(
    commits=frozenset({"commit", "order"}),
    ordered="order",
    periodic="tick",
    limits={"narrow": 1},
    weights={"one": 1, "double": 2},
    lease=4,
)


def line(what: str, at: float, **fields: Any) -> str:
    return json.dumps({"is": what, "at": at, **fields})


def a_run(
    lock: str, began: float, last: float, *, job: str = "a", task: str = "exclusive", group: str = "g", pid: int = 1
) -> list[str]:
    """An exclusive run."""
    fields = {"job": job, "task": task, "group": group, "pid": pid, "is_exclusive": True}
    return [line("begin", began, lock=lock, **fields), line("beat", last, lock=lock)]


def told(lines: Iterable[str] = (), database: Database | None = None) -> set[str]:
    """The guarantees that were broken."""
    return {breach.guarantee for breach in check(read(lines), database or Database(), RULES)}


SUBMITTED = line("submitted", 1, id="a")
LOSSY = line("lossy", 9, since=5)
BESIDE = [*a_run("l1", 1, 5), *a_run("l2", 4, 6, pid=2)]
COMMITTED = Database(
    jobs={"a": Job("success", "commit")}, ends=[End("a", "success", "l1", "l1")], effects=[("a", "l1")]
)
ORDERED = replace(COMMITTED, jobs={"a": Job("success", "order")}, orders={"o": "a"})


def samples(count: int, held: dict[str, int]) -> list[str]:
    """Samples in which the shares can be judged, after those of a while in which each group held three slots."""
    before = [dict.fromkeys(held, 3)] * int(EVENED_AFTER)
    return [
        line("sample", at, held=each, waiting={"one": 3, "double": 3})
        for at, each in enumerate([*before, *[held] * count])
    ]


def test_a_good_history_breaks_nothing():
    lines = [
        SUBMITTED,
        line("asked", 1, id="a"),
        line("ended", 8, id="a", state="success"),
        line("ordered", 1, id="o"),
        line("undone", 1, id="p"),
        line("fault", 2, kind="kill"),
        line("disturbed", 2, pids=[1]),
        line("dead", 3, pid=1),
        *a_run("l1", 1, 2),
        *a_run("l2", 3, 4, pid=2),
        *a_run("l3", 4.5, 5, job="b", group="narrow"),
        *a_run("l4", 5.5, 6, job="c", group="narrow"),
        *samples(ENOUGH_SAMPLES, {"one": 2, "double": 4}),
        line("sample", 1, held={"narrow": 1}, waiting={}),
    ]
    database = replace(
        ORDERED, decisions=[Decision("t", "12:00", None), Decision("t", "12:01", None)], marks=["m", "n"]
    )
    assert told(lines, database) == set()


BAD: dict[str, list[tuple[list[str], Database]]] = {
    "lost": [([SUBMITTED], Database()), ([], Database(jobs={"a": Job("running", "work")}))],
    "ends": [
        ([], Database(jobs={"a": Job("failed", "work")}, ends=[End("a", "failed", "l1", None)] * 2)),
        ([], Database(jobs={"a": Job("success", "work")}, ends=[End("a", "success", "l2", "l1")])),
        ([line("ended", 2, id="a", state="success")], Database(jobs={"a": Job("failed", "work")})),
    ],
    "effects": [
        ([], replace(COMMITTED, effects=[("a", "l1")] * 2)),
        ([], replace(COMMITTED, effects=[])),
        ([], replace(COMMITTED, effects=[("a", "l1"), ("a", "l2")])),
        ([], Database(jobs={"a": Job("failed", "commit")}, effects=[("a", "l1")])),
    ],
    "submissions": [
        ([], replace(ORDERED, orders={"o": "a", "p": "b"})),
        ([], replace(ORDERED, orders={})),
        ([line("undone", 1, id="o")], ORDERED),
        ([line("ordered", 1, id="q")], ORDERED),
        ([], Database(marks=["m", "m"])),
    ],
    "exclusive": [
        (BESIDE, Database()),
        ([*a_run("l1", 1, 9), *a_run("l2", 2, 3, pid=2), *a_run("l3", 4, 5, pid=3)], Database()),
    ],
    "limits": [
        ([line("sample", 1, held={"narrow": 2}, waiting={})], Database()),
        ([*a_run("l1", 1, 5, group="narrow"), *a_run("l2", 4, 6, job="b", group="narrow", pid=2)], Database()),
    ],
    "shares": [(samples(ENOUGH_SAMPLES, {"one": 4, "double": 4}), Database())],
    "periodic": [
        ([], Database(decisions=[Decision("t", "12:00", None)] * 2)),
        ([], Database(jobs={"a": Job("success", "tick")})),
        ([], Database(decisions=[Decision("t", "12:00", "a"), Decision("t", "12:01", "a")])),
        (
            [*a_run("l1", 1, 5, task="tick", job="a"), *a_run("l2", 4, 6, task="tick", job="b", pid=2)],
            Database(),
        ),
    ],
    "living": [([line("disturbed", 2, pids=[1]), line("dead", 3, pid=1), line("dead", 3, pid=2)], Database())],
    "waits": [([line("asked", 1, id="a")], Database(jobs={"a": Job("success", "work")}))],
}


@pytest.mark.parametrize(
    ("guarantee", "lines", "database"), [(name, *case) for name, cases in BAD.items() for case in cases]
)
def test_a_bad_history_breaks_its_guarantee_and_no_other(guarantee, lines, database):
    assert told(lines, database) == {guarantee}


def test_there_is_a_bad_history_for_each_guarantee():
    assert BAD.keys() == GUARANTEES.keys()


def test_with_few_samples_or_few_slots_shares_are_not_judged():
    assert told(samples(ENOUGH_SAMPLES, {"one": 0, "double": 2})) == set()
    assert told(samples(ENOUGH_SAMPLES, {"one": 1, "double": 4})) == {"shares"}
    assert told(samples(ENOUGH_SAMPLES - 1, {"one": 4, "double": 4})) == set()


def test_after_a_moment_without_jobs_or_samples_shares_are_judged_again_later():
    held = {"one": 4, "double": 4}
    half = samples(ENOUGH_SAMPLES // 2, held)
    again = [json.dumps({**json.loads(each), "at": 1000 + json.loads(each)["at"]}) for each in half]
    assert told([*samples(ENOUGH_SAMPLES, held)]) == {"shares"}
    assert told([*half, *again]) == {"shares"}
    assert told([*half, *again[1:]]) == set(), "one sample less"
    empty = line("sample", 999, held=held, waiting={"one": 3, "double": 0})
    assert told([*half, empty, *again]) == {"shares"}
    assert told([*half, empty, *again[1:]]) == set()


def test_a_run_whose_process_was_stopped_is_judged_until_the_stop():
    """The process notices that its lease is over when it goes on."""
    stop = line("stop", 6, pid=1, since=3)
    assert told([*BESIDE, stop]) == set()
    assert told([*BESIDE, line("stop", 6, pid=1, since=4.5)]) == {"exclusive"}
    assert told([*BESIDE, line("stop", 6, pid=2, since=3)]) == set(), "the other one, which had just gone on"
    assert told([*BESIDE, line("stop", 6, pid=3, since=3)]) == {"exclusive"}


def test_a_disturbance_explains_no_death_long_after_it():
    before = [line("disturbed", 2, pids=[1]), *(line("sample", 3, held={}, waiting={}) for _ in range(NOTICED_AFTER))]
    one_more = line("sample", 4, held={}, waiting={})
    assert told([*before, line("dead", 5, pid=1)]) == set()
    assert told([*before, one_more, line("dead", 5, pid=1)]) == {"living"}
    assert told([*before, one_more, line("disturbed", 4, pids=[1]), line("dead", 5, pid=1)]) == set()
    assert told([*before, line("dead", 5, pid=1), line("disturbed", 6, pids=[1])]) == set()
    assert told([line("dead", 5, pid=1), line("disturbed", 6, pids=[1])]) == {"living"}
    assert told([line("dead", 5, pid=1), line("disturbed", 6, pids=[1], since=4)]) == set()


def test_a_job_that_was_retried_by_hand_ends_once_more():
    database = Database(
        jobs={"a": Job("success", "work")}, ends=[End("a", "failed", "l1", None), End("a", "success", "l2", "l2")]
    )
    lines = [line("ended", 2, id="a", state="failed")]
    assert told(lines, database) == {"ends"}
    assert told([*lines, line("retried", 2, id="a")], database) == set()


def test_what_asynchronous_replication_may_lose_may_be_gone():
    late = [line("submitted", 6, id="a"), line("ended", 7, id="b", state="success"), line("ordered", 8, id="o"),
            line("asked", 6, id="a")]  # fmt: skip
    running_again = Database(jobs={"b": Job("failed", "work")})
    assert told(late, running_again) == {"lost", "ends", "submissions", "waits"}
    assert told([*late, LOSSY], running_again) == set()
    assert told([SUBMITTED, LOSSY]) == {"lost"}, "it was there when the standby had everything"
    assert told([line("submitted", 10, id="a"), LOSSY]) == {"lost"}


def test_a_run_whose_take_a_promoted_standby_lacks_goes_on_beside_the_next_one():
    beside = [*a_run("l1", 1, 12), *a_run("l2", 10, 11, pid=2)]
    assert told(beside) == {"exclusive"}
    assert told([*beside, LOSSY]) == set()
    assert told([*a_run("l1", 9.5, 12), *a_run("l2", 10, 11, pid=2), LOSSY]) == {"exclusive"}


def test_lines_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="unknown kind: moon"):
        read([line("moon", 1)])
