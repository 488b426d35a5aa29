"""The log lines of an executor, from events."""

import io
import json
import logging
from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

import pytest
import structlog

from joex.config import Settings
from joex.core import events
from joex.core.job import State, TakenJob
from joex.core.outcome import Verdict
from joex.observe.log_lines import LogLines, capture_logging, capture_structlog, fan_out

JOB = TakenJob(UUID(int=1), UUID(int=2), 1, "default", "acme", "mail.send", "{}", "low", "", "", 2, 2, None, 0.0)

EXAMPLES: dict[type, Any] = {
    events.Registered: events.Registered("host", 7, 0),
    events.AppIdInUse: events.AppIdInUse("host", "pid 7 on host"),
    events.AppIdRetired: events.AppIdRetired("prod/documents-3"),
    events.Taken: events.Taken(1, 1, 0.001),
    events.RunStarted: events.RunStarted(JOB),
    events.RunEnded: events.RunEnded(JOB, Verdict(State.SUCCESS), 0.1),
    events.WorkerConflict: events.WorkerConflict(UUID(int=1), "mail.send"),
    events.RunNotWritten: events.RunNotWritten(UUID(int=1), "mail.send", "end", "the database refused a statement"),
    events.Rescued: events.Rescued("other", 6, 3),
    events.Overdue: events.Overdue("other", 3),
    events.FellAsleep: events.FellAsleep(None),
    events.Woken: events.Woken("default"),
    events.PeriodicNotRegistered: events.PeriodicNotRegistered("shop/nightly"),
    events.Repeated: events.Repeated("nightly", "default", "default", "submitted", UUID(int=1), None),
    events.LogLinesDropped: events.LogLinesDropped(1, "buffer full"),
    events.TrustEnded: events.TrustEnded(1),
    events.PatienceEnded: events.PatienceEnded(1),
    events.LeaseEnded: events.LeaseEnded(7),
    events.DatabaseTrouble: events.DatabaseTrouble("taker", "refused", 1.0, 0.0, is_news=True),
    events.TroubleOver: events.TroubleOver("taker", 7.0),
    events.Draining: events.Draining(1),
    events.Left: events.Left(7, 0),
}
ENDS = (State.SUCCESS, State.STUCK, State.FAILED, State.CANCELLED, State.WAITING)


def lines(*given, log_format="json", log_level="info"):
    stream = io.StringIO()
    emit = LogLines(Settings(log_format=log_format, log_level=log_level), stream)
    for event in given:
        emit(event)
    text = stream.getvalue().splitlines()
    return [json.loads(line) for line in text] if log_format == "json" else text


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("kind", get_args(events.Event))
def test_every_event_has_one_line(kind, log_format):
    assert len(lines(EXAMPLES[kind], log_format=log_format, log_level="debug")) == 1


@pytest.mark.parametrize("state", ENDS)
def test_every_end_of_a_run_has_one_line(state):
    assert len(lines(events.RunEnded(JOB, Verdict(state), 0.1), log_level="debug")) == 1


def test_a_line_tells_what_the_event_tells():
    (line,) = lines(events.Rescued("other", 6, 3))
    assert line.pop("timestamp")
    assert line == {
        "level": "warning",
        "event": "an executor has died: its jobs wait again",
        "app_id": "other",
        "executor": 6,
        "jobs": 3,
    }


def test_a_failed_run_is_told_with_its_job_error_and_retry():
    (line,) = lines(events.RunEnded(JOB, Verdict(State.STUCK, timedelta(minutes=1), "ValueError: no"), 1.23456))
    assert line["level"] == "warning"
    assert line["job"] == str(JOB.id)
    assert (line["task"], line["group"], line["queue"]) == ("mail.send", "acme", "default")
    assert (line["attempt"], line["seconds"], line["retry_in"]) == (3, 1.235, 60)
    assert line["error"] == "ValueError: no"


def test_the_usual_is_told_only_when_somebody_debugs():
    usual = (
        EXAMPLES[events.RunStarted],
        EXAMPLES[events.RunEnded],
        EXAMPLES[events.Taken],
        EXAMPLES[events.FellAsleep],
    )
    assert lines(*usual) == []
    assert [line["level"] for line in lines(*usual, log_level="debug")] == ["debug"] * 4


def test_the_level_holds():
    given = [EXAMPLES[events.Registered], EXAMPLES[events.TrustEnded]]
    assert [line["level"] for line in lines(*given)] == ["info", "warning"]
    assert [line["level"] for line in lines(*given, log_level="warning")] == ["warning"]
    assert lines(*given, log_level="error") == []


def test_an_app_id_in_use_is_told_with_its_mend():
    (line,) = lines(EXAMPLES[events.AppIdInUse], log_format="console")
    assert "JOEX_APP_ID" in line
    assert "app_id='host'" in line
    assert "other='pid 7 on host'" in line


def test_a_file_gets_no_colours_and_no_name_steers_a_terminal():
    evil = TakenJob(UUID(int=1), UUID(int=2), 1, "default", "\x1b[31mred", "t", "{}", "low", "", "", 0, 0, None, 0.0)
    (line,) = lines(events.RunEnded(evil, Verdict(State.FAILED, error="first\nsecond"), 0.1), log_format="console")
    assert line.isprintable()
    assert r"group='\x1b[31mred'" in line
    assert r"error='first\nsecond'" in line


def test_a_terminal_gets_colours():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    LogLines(Settings(), stream)(EXAMPLES[events.Registered])
    assert "\x1b[" in stream.getvalue()


def test_a_stream_that_is_gone_does_no_harm():
    stream = io.StringIO()
    emit = LogLines(Settings(), stream)
    stream.close()
    emit(EXAMPLES[events.Registered])


def test_events_go_to_each_place():
    first: list[events.Event] = []
    second: list[events.Event] = []
    fan_out(first.append, second.append)(EXAMPLES[events.Left])
    assert first == second == [EXAMPLES[events.Left]]


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers, level = before
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_what_libraries_log_comes_out_in_the_same_form():
    stream = io.StringIO()
    capture_logging(Settings(log_format="json"), stream)
    logging.getLogger("library").info("%s of %s", 1, 2)
    logging.getLogger("library").debug("not told")
    try:
        int("no")
    except ValueError:
        logging.getLogger("library").exception("oh")
    told, error = map(json.loads, stream.getvalue().splitlines())
    assert (told["event"], told["level"], told["logger"]) == ("1 of 2", "info", "library")
    assert "ValueError: invalid literal" in error["exception"]


@pytest.mark.usefixtures("root_logger")
def test_a_line_that_cannot_be_made_raises_nothing_though_a_task_has_closed_standard_error(monkeypatch):
    """The handler of exceptions of an event loop logs; where that raises, it ends the loop."""
    closed, stream = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    capture_logging(Settings(), stream)
    logging.getLogger("shop").info("%d", "no")
    assert "arguments: ('no',)" in stream.getvalue()


@pytest.mark.usefixtures("root_logger")
def test_what_tasks_log_and_raise_steers_no_terminal():
    """Submitters choose the arguments that tasks name there."""
    stream = io.StringIO()
    capture_logging(Settings(log_format="console"), stream)
    logging.getLogger("shop").info("order of %s,\n%s", "\x1b[31mred", "\N{RIGHT-TO-LEFT OVERRIDE}eht")
    try:
        int("\x1b[2J\n")
    except ValueError as error:
        error.add_note("\x1b[31mred")
        logging.getLogger("shop").exception("oh")
    said = stream.getvalue()
    assert "order of \\x1b[31mred,\n\\u202eeht" in said
    assert "Traceback (most recent call last):\n" in said
    assert said.endswith("\n\\x1b[31mred\n")
    assert all(line.isprintable() for line in said.split("\n"))


def test_no_name_of_a_field_steers_a_terminal():
    """A task may log its arguments as fields, whose names submitters choose as well."""
    stream = io.StringIO()
    capture_structlog(Settings(log_format="console"), stream)
    try:
        structlog.get_logger().info("called", **{"\x1b[31mred": "\x1b[2J"})
    finally:
        structlog.reset_defaults()
    assert "\\x1b[31mred='\\x1b[2J'\n" in stream.getvalue()
