"""Numbers for Prometheus, from events."""

import inspect
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from joex.core import events
from joex.core.job import State, TakenJob
from joex.core.outcome import Verdict
from joex.observe import metrics as module
from joex.observe.metrics import Metrics
from joex.runtime import job_log_writer

TASKS = {"mail.send", "mail.read"}
"""The tasks of the app."""


def job(task="mail.send", queue="default", waited=0.0, group="acme"):
    return TakenJob(UUID(int=1), UUID(int=2), 1, queue, group, task, "{}", "low", "", "", 0, 0, None, waited)


@pytest.fixture
def metrics():
    return Metrics(slots=4, busy=lambda: 3, tasks=TASKS)


def value(metrics, name, **labels):
    page, _ = metrics.render()
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def test_runs_are_counted_by_result_and_finished_jobs_by_task_from_its_first_run_on(metrics):
    metrics(events.RunEnded(job(), Verdict(State.STUCK), 0.2))
    assert value(metrics, "joex_task_jobs_finished_total", task="mail.send", result="success") == 0
    assert value(metrics, "joex_task_jobs_finished_total", task="mail.send", result="failed") == 0
    metrics(events.RunEnded(job(), Verdict(State.SUCCESS), 0.2))
    metrics(events.RunEnded(job(queue="slow"), Verdict(State.SUCCESS), 0.2))
    metrics(events.RunEnded(job(), Verdict(State.FAILED), 0.2))
    assert value(metrics, "joex_task_jobs_finished_total", task="mail.send", result="success") == 2
    assert value(metrics, "joex_task_jobs_finished_total", task="mail.send", result="failed") == 1
    ended = {state: value(metrics, "joex_runs_ended_total", result=state) for state in ("success", "failed", "stuck")}
    assert ended == {"success": 2, "failed": 1, "stuck": 1}
    assert value(metrics, "joex_runs_ended_total", result="cancelled") == 0


def test_the_seconds_of_runs_are_summed_up_by_task_if_their_code_had_started(metrics):
    metrics(events.RunEnded(job(), Verdict(State.SUCCESS), 2.0))
    metrics(events.RunEnded(job(), Verdict(State.STUCK), 0.5))
    metrics(events.RunEnded(job(), Verdict(State.WAITING), None))
    assert value(metrics, "joex_task_run_seconds_total", task="mail.send") == 2.5


def test_how_long_jobs_have_waited_is_measured_when_their_code_starts(metrics):
    metrics(events.Taken(asked=2, jobs=2, seconds=0.001))
    metrics(events.RunStarted(job("mail.send", waited=0.2)))
    metrics(events.RunStarted(job("mail.read", waited=1800.0)))
    metrics(events.RunEnded(job("mail.send", waited=0.2), Verdict(State.SUCCESS), 1.0))
    assert value(metrics, "joex_job_wait_seconds_count") == 2
    assert value(metrics, "joex_job_wait_seconds_sum") == 1800.2
    assert value(metrics, "joex_job_wait_seconds_bucket", le="1.0") == 1
    assert value(metrics, "joex_job_wait_seconds_bucket", le="3600.0") == 2


def test_an_executor_with_fifty_tasks_and_five_queues_has_less_than_200_series():
    tasks = {f"task.{number}" for number in range(50)}
    metrics = Metrics(slots=4, busy=lambda: 3, tasks=tasks)
    metrics(events.Taken(asked=1, jobs=1, seconds=0.001))
    for number, task in enumerate([*sorted(tasks), "made up"]):
        ran = job(task, queue=f"queue {number % 5}", group=f"tenant {number}")
        for state in State.SUCCESS, State.STUCK, State.FAILED, State.CANCELLED, State.WAITING:
            metrics(events.RunStarted(ran))
            metrics(events.RunEnded(ran, Verdict(state), 0.2))
    samples = [line for line in metrics.render()[0].splitlines() if not line.startswith(b"#")]
    assert len(samples) < 200


def test_takes_are_counted_and_measured(metrics):
    metrics(events.Taken(asked=10, jobs=7, seconds=0.003))
    metrics(events.Taken(asked=10, jobs=0, seconds=0.001))
    assert value(metrics, "joex_jobs_taken_total") == 7
    assert value(metrics, "joex_take_seconds_count") == 2


def test_jobs_of_the_dead_are_counted_by_cause(metrics):
    assert value(metrics, "joex_jobs_reclaimed_total", cause="dead") == 0
    metrics(events.Registered("host", 7, reclaimed=2))
    metrics(events.Rescued("other", 6, jobs=3))
    assert value(metrics, "joex_jobs_reclaimed_total", cause="restart") == 2
    assert value(metrics, "joex_jobs_reclaimed_total", cause="dead") == 3


def test_trouble_is_counted(metrics):
    metrics(events.WorkerConflict(UUID(int=1), "mail.send"))
    metrics(events.LogLinesDropped(12, "the buffer was full"))
    metrics(events.TrustEnded(runs=2))
    metrics(events.DatabaseTrouble("taker", "refused", 1.0, 0.0, is_news=False))
    assert value(metrics, "joex_worker_conflicts_total") == 1
    assert value(metrics, "joex_log_lines_dropped_total", reason="the buffer was full") == 12
    assert value(metrics, "joex_lease_trust_ended_total") == 1
    assert value(metrics, "joex_database_trouble_total", service="taker") == 1


def test_runs_of_which_the_start_or_the_end_is_not_written_are_counted_from_the_start_on(metrics):
    assert value(metrics, "joex_runs_not_written_total", what="start") == 0
    assert value(metrics, "joex_runs_not_written_total", what="end") == 0
    metrics(events.RunNotWritten(UUID(int=1), "mail.send", "end", "permission denied"))
    assert value(metrics, "joex_runs_not_written_total", what="start") == 0
    assert value(metrics, "joex_runs_not_written_total", what="end") == 1


def test_what_a_database_answers_is_no_label(metrics):
    metrics(events.LogLinesDropped(3, 'relation "joex_private.job_log" does not exist'))
    metrics(events.LogLinesDropped(4, "permission denied"))
    assert value(metrics, "joex_log_lines_dropped_total", reason="(others)") == 7


@pytest.mark.parametrize("reason", module._DROPPED)
def test_reasons_for_dropped_lines_are_there_from_the_start_in_the_words_of_the_log_writer(metrics, reason):
    assert value(metrics, "joex_log_lines_dropped_total", reason=reason) == 0
    assert f'"{reason}"' in inspect.getsource(job_log_writer)


def test_the_start_of_the_process_is_told(monkeypatch):
    monkeypatch.setattr("joex.observe.metrics.time.time", lambda: 1_795_000_000.0)
    assert (
        value(Metrics(slots=1, busy=lambda: 0, tasks=TASKS), "joex_executor_start_timestamp_seconds") == 1_795_000_000
    )


def test_slots_are_told_and_the_busy_ones_asked_for_at_each_scrape():
    busy = [0]
    metrics = Metrics(slots=4, busy=lambda: busy[0], tasks=TASKS)
    assert value(metrics, "joex_slots") == 4
    assert value(metrics, "joex_slots_busy") == 0
    busy[0] = 3
    assert value(metrics, "joex_slots_busy") == 3


def test_tasks_that_submitters_make_up_add_no_series_and_leave_those_of_the_app(metrics):
    def series():
        return metrics.render()[0].count(b"\n")

    metrics(events.RunEnded(job("made up"), Verdict(State.FAILED), None))
    metrics(events.RunEnded(job("mail.send"), Verdict(State.SUCCESS), 0.1))
    before = series()
    for number in range(600):
        metrics(events.RunStarted(job(f"task {number}")))
        metrics(events.RunEnded(job(f"task {number}"), Verdict(State.FAILED), None))
    assert series() == before
    metrics(events.RunEnded(job("mail.read"), Verdict(State.SUCCESS), 0.1))
    assert value(metrics, "joex_task_jobs_finished_total", task="mail.read", result="failed") == 0
    assert value(metrics, "joex_task_jobs_finished_total", task="task 1", result="failed") is None
    assert value(metrics, "joex_task_jobs_finished_total", task="(others)", result="failed") == 601


def test_two_executors_in_one_process_count_apart(metrics):
    metrics(events.Taken(1, 1, 0.001))
    assert value(Metrics(slots=1, busy=lambda: 0, tasks=TASKS), "joex_jobs_taken_total") == 0


def test_every_number_has_the_prefix_and_no_label_is_unbounded(metrics):
    metrics(events.RunEnded(job(), Verdict(State.SUCCESS), 0.1))
    metrics(events.LogLinesDropped(1, "the buffer was full"))
    metrics(events.DatabaseTrouble("taker", "refused", 1.0, 0.0, is_news=False))
    page, content_type = metrics.render()
    families = list(text_string_to_metric_families(page.decode()))
    assert content_type.startswith("text/plain")
    assert all(family.name.startswith("joex_") for family in families)
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    assert labels == {"task", "result", "cause", "reason", "service", "outcome", "what", "le"}


def test_an_event_that_moves_no_number_is_welcome(metrics):
    before = metrics.render()
    metrics(events.Woken("default"))
    metrics(events.Left(7, 0))
    assert metrics.render() == before
