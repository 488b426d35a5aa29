"""Reads a trace that ``joex stats --trace`` wrote."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError

from joex.core.job import State
from joex.core.trace import TracedJob
from joex.errors import ConfigError
from joex_operator.api.objects import problem_line
from joex_operator.simulate.jobs import GroupOf, Jobs, SimulatedJob

_Line = TypeAdapter(TracedJob)
_LEAST = {"seconds": 0, "failures": 0, "retries": 0, "waited": 0, "weight": 1, "max_running": 0}
_MOST = 2**31 - 1


def read_trace(lines: Iterable[str], place: str) -> Jobs:
    """The jobs of a trace. The first one arrives at the beginning. The latest settings of a group hold from the start.

    Raises:
        ConfigError: one line about the first invalid line. ``place``: the file, for this message.
    """
    jobs, numbers, tasks = Jobs(), dict[tuple[str, str], int](), dict[str, int]()
    queues = dict[str, str]()  # each name once, however many groups the queue has
    seqs = array("q")
    for number, text in enumerate(lines, start=1):
        if text.strip():
            line = _read(text, f"{place}, line {number}")
            queue = queues.setdefault(line.queue, line.queue)
            group = numbers.setdefault((queue, line.group), len(numbers))
            if group == len(jobs.groups):
                jobs.groups.append(GroupOf(queue, line.group))
            of_group = jobs.groups[group]
            of_group.weight, of_group.max_running = line.weight, line.max_running
            jobs.add(_job(line, group, tasks.setdefault(line.task, len(tasks))))
            seqs.append(line.seq)
    if jobs:
        jobs.sort(seqs)
        jobs.begin = datetime.fromtimestamp(jobs.at[0], UTC)
        jobs.shift(-jobs.at[0])
    return jobs


def _job(line: TracedJob, group: int, task: int) -> SimulatedJob:
    state = State(line.state)
    return SimulatedJob(
        at=line.at.timestamp(),
        group=group,
        seconds=line.seconds,
        task=task,
        is_high=line.priority == "high",
        failures=max(line.failures - (state is State.FAILED), 0),
        state=state,
        retries=line.retries,
        waited=line.waited,
    )


def _read(text: str, place: str) -> TracedJob:
    try:
        line = _Line.validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{place}: {problem_line(error.errors(include_url=False)[0])}") from error
    if line.at.tzinfo is None:
        raise ConfigError(f"{place}: at: expected a time with its zone, such as 2026-01-31T03:00:00Z; got {line.at}")
    for field, least in _LEAST.items():
        value = getattr(line, field)
        if value is not None and not least <= value <= _MOST:
            raise ConfigError(f"{place}: {field}: expected {least} to {_MOST}; got {value!r}")
    return line
