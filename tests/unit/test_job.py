"""The checks of a submission before it goes to the database."""

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from joex.core.job import NewJob, Priority, State, columns_of, columns_of_plain


def job_with(field: str, value: Any) -> NewJob:
    fields: dict[str, Any] = {"task": "a", field: value}
    return NewJob(**fields)


def test_three_states_are_final_and_four_are_not():
    assert {state for state in State if state.is_final} == {State.CANCELLED, State.FAILED, State.SUCCESS}
    assert len(State) == 7


def test_a_job_needs_no_more_than_a_task():
    job = NewJob("mail.send")
    assert (job.group, job.queue, job.priority, job.args) == ("default", "default", Priority.LOW, {})


@pytest.mark.parametrize("field", ["task", "group", "queue", "tracker"])
def test_a_name_is_not_empty(field):
    with pytest.raises(ValueError, match=f"^{field}: must not be empty$"):
        job_with(field, "")


@pytest.mark.parametrize("field", ["task", "group", "queue", "tracker", "submitter"])
def test_a_name_has_at_most_254_bytes_of_utf8(field):
    job_with(field, "é" * 127)
    with pytest.raises(ValueError, match=f"^{field}: at most 254 bytes; got 256$"):
        job_with(field, "é" * 128)


def test_a_subject_has_at_most_1000_bytes():
    NewJob("a", subject="x" * 1000)
    with pytest.raises(ValueError, match=r"^subject: at most 1000 bytes; got 1001$"):
        NewJob("a", subject="x" * 1001)


@pytest.mark.parametrize("field", ["task", "group", "queue", "tracker", "subject", "submitter"])
@pytest.mark.parametrize(("value", "problem"), [("a\0b", "NUL"), ("a\ud800b", "lone surrogate"), (7, "expected text")])
def test_text_that_postgresql_cannot_store_is_refused_with_the_name_of_the_field(field, value, problem):
    with pytest.raises(ValueError, match=f"^{field}: .*{problem}"):
        job_with(field, value)


def test_each_text_has_a_limit_of_its_own_and_the_first_wrong_one_is_named():
    NewJob("t" * 254, group="g" * 254, queue="q" * 254, tracker="r" * 254, subject="s" * 1000, submitter="b" * 254)
    with pytest.raises(ValueError, match=r"^group: at most 254 bytes; got 255$"):
        NewJob("a", group="g" * 255, tracker="", subject="\0")


@pytest.mark.parametrize("priority", ["urgent", "", " high", None, 1])
def test_a_priority_is_high_or_low(priority):
    with pytest.raises(ValueError, match=r"^priority: expected 'high' or 'low'"):
        NewJob("a", priority=priority)


@pytest.mark.parametrize("priority", ["High", "HIGH", "hIGH", "Low"])
def test_a_priority_may_be_written_in_whichever_case(priority):
    assert NewJob("a", priority=priority).priority is Priority(priority.lower())


def test_a_time_needs_a_zone():
    NewJob("a", not_before=datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match=r"^not_before: expected a time with a time zone"):
        NewJob("a", not_before=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the mistake


@pytest.mark.parametrize("retries", [-1, 1_000_001, True])
def test_retries_have_limits(retries):
    with pytest.raises(ValueError, match=f"^retries: expected 0 to 1000000; got {retries}$"):
        NewJob("a", retries=retries)


@pytest.mark.parametrize("args", [[1], "x", 7, None])
def test_arguments_are_names_and_values(args):
    with pytest.raises(ValueError, match=r"^args: expected an object"):
        NewJob("a", args)


def test_a_job_cannot_be_changed_once_it_is_made():
    with pytest.raises(AttributeError):
        NewJob("a").task = "b"  # type: ignore[misc]


PLAIN: list[dict[str, Any]] = [
    {"task": "a"},
    {"task": "b", "args": {"n": [1, None]}, "group": "g", "queue": "q", "subject": "s", "submitter": "me"},
    {"task": "c", "args": {}, "group": "default", "queue": "default", "subject": "", "submitter": ""},
    {"task": "d", "args": None},
]


def test_plain_jobs_have_the_columns_that_they_have_when_looked_at_one_by_one():
    for jobs in (PLAIN, PLAIN[:1], PLAIN[2:]):
        plain = columns_of_plain(jobs)
        assert plain is not None
        one_by_one = columns_of([NewJob(**{**job, "args": job.get("args") or {}}) for job in jobs])
        for name, each in plain._asdict().items():
            default = "default" if name == "groups" else None
            assert (each or [default] * len(jobs)) == getattr(one_by_one, name), name


@pytest.mark.parametrize(
    "fields",
    [
        *(
            {name: value}
            for name in ("task", "group", "queue")
            for value in ("", "x" * 255, "é", "a\0b", 7, None, b"x")
        ),
        *({name: value} for name in ("subject", "submitter") for value in ("x" * 255, "é", "a\0b", 7, None)),
        {"args": []},
        {"args": ""},
        {"args": 0},
        {"args": [1]},
        {"args": MappingProxyType({})},
        {"priority": "low"},
        {"not_before": "1h"},
        {"tracker": "t"},
        {"retries": 1},
        {"colour": "red"},
    ],
    ids=repr,
)
def test_what_may_be_wrong_or_is_not_usual_is_looked_at_one_by_one(fields):
    assert columns_of_plain([*PLAIN, {"task": "a", **fields}]) is None


def test_what_is_no_plain_dict_is_looked_at_one_by_one():
    assert columns_of_plain([]) is None
    assert columns_of_plain([*PLAIN, NewJob("a")]) is None
    assert columns_of_plain([*PLAIN, {"group": "g"}]) is None
