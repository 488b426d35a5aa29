"""Holds the history of a run, and what the database has in the end, to the guarantees. Pure."""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from tests.support.chaos.history import History, Run, Sample

FINAL = ("success", "failed", "cancelled")
SHARE_BOUND = 1.5
"""How many times as many slots, for its weight, one of the even groups may have held than another, on average."""
ENOUGH_SAMPLES = 60
"""With fewer samples, shares are not judged."""
EVENED_AFTER = 3.0
"""Seconds for which jobs of all even groups must have waited: longer than any of their jobs takes."""
NOTICED_AFTER = 100
"""Samples after which a disturbance explains no death any more: they take longer than five leases. These are samples
and not seconds, because there are none while the database is away, and few while the machine is busy."""
LONGEST_GAP = 1.0
"""Seconds between samples after which that time begins anew."""

GUARANTEES = {
    "lost": "each submission that was acknowledged is in the database, and has ended",
    "ends": "each job ends once, by the run that has it, and stays as it ended",
    "effects": "each effect in ctx.transaction() is there once, and with the end of its run",
    "submissions": "a job is there if and only if the transaction of its submission committed, and once",
    "exclusive": "no two runs of an exclusive job are at work at a time",
    "limits": "no group has more jobs at a time than its limit",
    "shares": f"groups in which jobs always wait share the slots by weight, within a factor of {SHARE_BOUND}",
    "periodic": "no time of a periodic task makes two jobs, and its jobs do not overlap",
    "living": "no executor that was left alone is declared dead",
    "waits": "each wait for a job is answered with its end",
}


@dataclass(frozen=True)
class Job:
    """A job, as the database has it in the end."""

    state: str
    task: str
    group: str = "default"
    why: str = ""


@dataclass(frozen=True)
class End:
    """A job ended: the lock of the run that had it, and the lock that the run returned as its result."""

    job: str
    state: str
    lock: str | None
    result: str | None


@dataclass(frozen=True)
class Decision:
    """A time of a periodic task was decided."""

    task: str
    time: str
    job: str | None


@dataclass
class Database:
    """What the database has in the end.

    Attributes:
        jobs: all jobs.
        ends: each end of a job, as it was written.
        effects: the job and the lock of each effect in a transaction that ended its run.
        orders: the job of each order that was made in the transaction of its submission.
        decisions: each decision about a time of a periodic task.
        marks: the submission of each job of a client that submits again when its connection is lost.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    effects: list[tuple[str, str]] = field(default_factory=list)
    orders: dict[str, str] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rules:
    """What holds for tasks and groups of the run.

    Attributes:
        commits: the tasks that end in a transaction with an effect.
        ordered: the task of the jobs that orders submit.
        periodic: the task of periodic jobs.
        limits: the limit of running jobs, by group.
        weights: the groups that share evenly, with their weights.
        lease: in seconds.
    """

    commits: frozenset[str]
    ordered: str
    periodic: str
    limits: Mapping[str, int]
    weights: Mapping[str, int]
    lease: float


@dataclass(frozen=True)
class Breach:
    """A guarantee that did not hold, and how."""

    guarantee: str
    what: str


def check(history: History, database: Database, rules: Rules) -> list[Breach]:
    """Each breach of a guarantee."""
    checks: dict[str, Iterable[str]] = {
        "lost": _lost(history, database),
        "ends": _ends(history, database),
        "effects": _effects(database, rules),
        "submissions": _submissions(history, database, rules),
        "exclusive": _overlaps(history, rules, lambda run: run.job if run.is_exclusive else None, lambda _: 1),
        "limits": _limits(history, rules),
        "shares": _shares(history, rules),
        "periodic": _periodic(history, database, rules),
        "living": _living(history),
        "waits": _waits(history, database),
    }
    return [Breach(guarantee, what) for guarantee, found in checks.items() for what in found]


def shares(history: History, weights: Mapping[str, int]) -> tuple[int, dict[str, float]]:
    """How many slots each of these groups held for its weight, on average, and of how many samples.

    A sample counts if jobs of all these groups had been waiting for a while: what a group got while another one had no
    jobs, it keeps until its jobs end. And they must hold enough slots to share: groups that get less than a slot
    take turns, however long their jobs are.
    """
    full: list[Sample] = []
    since, before = None, 0.0
    for sample in history.samples:
        if not all(sample.waiting.get(group) for group in weights):
            since = None
        elif since is None or sample.at - before > LONGEST_GAP:
            since = sample.at
        before = sample.at
        is_even = since is not None and sample.at - since >= EVENED_AFTER
        if is_even and sum(sample.held.get(group, 0) for group in weights) >= sum(weights.values()):
            full.append(sample)
    held = {
        group: sum(sample.held.get(group, 0) for sample in full) / weight / max(len(full), 1)
        for group, weight in weights.items()
    }
    return len(full), held


def _lost(history: History, database: Database) -> Iterator[str]:
    for job, at in history.submitted.items():
        if job not in database.jobs and not _may_be_lost(history, at):
            yield f"job {job} was submitted, and is gone"
    for name, found in database.jobs.items():
        if found.state not in FINAL:
            yield f"job {name} ({found.task}, {found.group}) has not ended: {found.state}; {found.why}"


def _ends(history: History, database: Database) -> Iterator[str]:
    counts = Counter(end.job for end in database.ends)
    for job, count in counts.items():
        if count > 1 + history.retried.get(job, 0):
            yield f"job {job} has ended {count} times"
    for end in database.ends:
        if end.state == "success" and end.result != end.lock:
            yield f"job {end.job} was ended by the run {end.result}, while the run {end.lock} had it"
    for name, (state, at) in history.ended.items():
        now = database.jobs[name].state if name in database.jobs else "gone"
        if now != state and name not in history.retried and not _may_be_lost(history, at):
            yield f"job {name} was seen to have ended as {state}, and is {now}"


def _effects(database: Database, rules: Rules) -> Iterator[str]:
    found = Counter(database.effects)
    for (job, lock), count in found.items():
        if count > 1:
            yield f"the effect of job {job}, run {lock}, is there {count} times"
    ended = {
        (end.job, end.lock)
        for end in database.ends
        if end.state == "success" and end.job in database.jobs and database.jobs[end.job].task in rules.commits
    }
    for job, lock in set(found) - ended:
        yield f"the effect of job {job}, run {lock}, is there without the end of the run"
    for job, ended_by in ended - set(found):
        yield f"job {job} was ended by its run {ended_by}, whose effect is not there"


def _submissions(history: History, database: Database, rules: Rules) -> Iterator[str]:
    jobs = {name for name, job in database.jobs.items() if job.task == rules.ordered}
    for order, job in database.orders.items():
        if job not in jobs:
            yield f"order {order} was stored, and its job {job} was not"
    for job in jobs - set(database.orders.values()):
        yield f"job {job} was submitted, and its order was not stored"
    for order in history.undone & set(database.orders):
        yield f"order {order} was rolled back, and is there"
    for order, at in history.ordered.items():
        if order not in database.orders and not _may_be_lost(history, at):
            yield f"order {order} was committed, and is gone"
    for mark, count in Counter(database.marks).items():
        if count > 1:
            yield f"the submission {mark} has stored {count} jobs"


def _limits(history: History, rules: Rules) -> Iterator[str]:
    for sample in history.samples:
        for group, limit in rules.limits.items():
            if sample.held.get(group, 0) > limit:
                yield f"executors held {sample.held[group]} jobs of {group} at {sample.at:.1f}; its limit is {limit}"
    yield from _overlaps(
        history,
        rules,
        lambda run: run.group if run.is_exclusive and run.group in rules.limits else None,
        lambda group: rules.limits[group],
    )


def _shares(history: History, rules: Rules) -> Iterator[str]:
    samples, held = shares(history, rules.weights)
    if samples < ENOUGH_SAMPLES:
        return
    for one, other in combinations(held, 2):
        less, more = sorted((one, other), key=lambda group: held[group])
        if held[more] > SHARE_BOUND * held[less]:
            yield (
                f"{more} held {held[more]:.2f} slots for its weight, and {less} held {held[less]:.2f}, "
                f"while jobs of both waited ({samples} samples)"
            )


def _periodic(history: History, database: Database, rules: Rules) -> Iterator[str]:
    for (task, time), count in Counter((each.task, each.time) for each in database.decisions).items():
        if count > 1:
            yield f"the time {time} of {task} was decided {count} times"
    decided = Counter(each.job for each in database.decisions if each.job is not None)
    for job, count in decided.items():
        if count > 1:
            yield f"job {job} was made for {count} times"
    for name in {name for name, job in database.jobs.items() if job.task == rules.periodic} - set(decided):
        yield f"job {name} of a periodic task was made for no time"
    yield from _overlaps(history, rules, lambda run: run.group if run.task == rules.periodic else None, lambda _: 1)


def _living(history: History) -> Iterator[str]:
    samples = [sample.at for sample in history.samples]
    for pid, at in history.dead:
        since = max((each for each in history.disturbed.get(pid, ()) if each <= at), default=None)
        if since is None:
            yield f"process {pid} was declared dead at {at:.1f}, and nothing had happened to it"
        elif bisect(samples, at) - bisect(samples, since) > NOTICED_AFTER:
            yield f"process {pid} was declared dead at {at:.1f}, and nothing had happened to it since {since:.1f}"


def _waits(history: History, database: Database) -> Iterator[str]:
    for job, at in history.asked.items():
        if job not in history.ended and (job in database.jobs or not _may_be_lost(history, at)):
            yield f"a wait for job {job} was not answered"


def _overlaps(
    history: History, rules: Rules, key_of: Callable[[Run], str | None], limit_of: Callable[[str], int]
) -> Iterator[str]:
    """The runs that began while as many others of their key were at work as may be."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(history.runs.values(), key=lambda run: run.began):
        if (key := key_of(run)) is not None and not _begins_late(history, run, rules):
            runs[key].append(run)
    for key, in_order in runs.items():
        at_work: list[tuple[float, Run]] = []
        for run in in_order:
            at_work = [(until, other) for until, other in at_work if until > run.began]
            if len(at_work) >= limit_of(key):
                others = ", ".join(f"run {other.lock} in process {other.pid}" for _, other in at_work)
                yield f"run {run.lock} of {key} in process {run.pid} began at {run.began:.2f} beside {others}"
            at_work.append((_proven(history, run), run))


def _proven(history: History, run: Run) -> float:
    """Until when a run counts.

    A process that is stopped notices the end of its lease when it goes on; and a run whose take a promoted standby
    lacks is at work beside the next one.
    """
    stops = [stop.at for stop in history.stops if stop.pid == run.pid and run.began <= stop.at]
    lost = [promotion.since for promotion in history.lossy if promotion.until >= run.began]
    return min([run.last, *stops, *lost])


def _begins_late(history: History, run: Run, rules: Rules) -> bool:
    """Whether a run began just when its process went on, so that it had not noticed yet that it had lost its job."""
    return any(stop.pid == run.pid and stop.at <= run.began <= stop.until + rules.lease for stop in history.stops)


def _may_be_lost(history: History, at: float) -> bool:
    """Whether a promoted standby may lack what was acknowledged then."""
    return any(promotion.since <= at <= promotion.until for promotion in history.lossy)
