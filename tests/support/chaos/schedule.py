"""The schedule of a run: its faults and its load, which a seed repeats. Pure."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

ProcessFault = Literal["kill", "drain", "pause", "cut", "refuse", "freeze", "slow"]
ServerFault = Literal["restart", "crash", "kill the server", "replication", "promotion", "disk", "clock", "connections"]
T = TypeVar("T")
Act = Literal["submit", "transaction", "keyed", "patient", "cancel", "pause", "resume", "weight", "retry", "priority"]

PROCESS_FAULTS: dict[ProcessFault, tuple[float, float]] = {
    "kill": (0, 2),
    "drain": (0, 2),
    "pause": (0.5, 22),
    "cut": (0, 0),
    "refuse": (2, 16),
    "freeze": (1, 22),
    "slow": (2, 12),
}
"""The faults of a process or its link, with the shortest and the longest time, in seconds."""
SERVER_FAULTS: dict[ServerFault, tuple[float, float]] = {
    "restart": (0, 6),
    "crash": (0, 10),
    "kill the server": (0, 10),
    "replication": (1, 8),
    "promotion": (0, 10),
    "disk": (2, 8),
    "clock": (2, 8),
    "connections": (2, 8),
}
"""The faults of the servers, and of the link between them, likewise. One happens at a time."""

EVEN = {"even short": 1, "even long": 1, "even double": 2}
"""Groups whose jobs always wait, with their weights."""
LONG = "limited long"
LIMITED = {"limited one": 1, "limited two": 2, LONG: 6}
"""Groups with a limit of running jobs; all of their jobs are exclusive. Those of ``LONG`` always wait."""
LONG_WEIGHT = 4
BUSY = ("busy one", "busy two", "busy three")
PAUSED = "busy three"
"""A group that clients pause and resume."""

# At most. (Some are longer than leases, so that others take over their jobs while they go on; but where few may run at
# a time they would pile up.)
_SECONDS = (0, 0.1, 0.3, 2, 2, 15)
_TASKS: Sequence[tuple[str, int]] = (
    ("work", 5),
    ("thread", 2),
    ("exclusive", 4),
    ("commit", 5),
    ("flaky", 2),
    ("fail", 1),
)
_ACTS: Sequence[tuple[Act, int]] = (
    ("submit", 40),
    ("transaction", 6),
    ("keyed", 8),
    ("patient", 6),
    ("cancel", 5),
    ("pause", 1),
    ("resume", 2),
    ("weight", 1),
    ("retry", 1),
    ("priority", 2),
)


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        at: when it begins, in seconds from the start; later if the one before of its kind has not ended.
        kind: what breaks.
        target: the number of the process; of the servers' faults: 0.
        seconds: for how long.
        amount: between 0 and 1; its meaning depends on the fault.
    """

    at: float
    kind: ProcessFault | ServerFault
    target: int
    seconds: float
    amount: float


@dataclass(frozen=True)
class Step:
    """Something that a client does.

    Attributes:
        at: when, in seconds from the start.
        act: what.
        task, group, priority, seconds: of the job that it submits.
        chance: between 0 and 1: chooses what the act is about.
    """

    at: float
    act: Act
    task: str
    group: str
    priority: str
    seconds: float
    chance: float


def faults(seed: int, seconds: float, processes: int) -> tuple[list[Fault], list[Fault]]:
    """The faults of processes and those of servers: each kind once before any comes again."""
    dice = random.Random(f"faults {seed}")
    of_processes = list(_faults(dice, seconds, PROCESS_FAULTS, (1, 5), processes))
    return of_processes, list(_faults(dice, seconds, SERVER_FAULTS, (4, 14), 1))


def load(seed: int, seconds: float, rate: float) -> Iterator[Step]:
    """What clients do, about ``rate`` times a second."""
    dice = random.Random(f"load {seed}")
    at = dice.expovariate(rate)
    while at < seconds:
        group = dice.choice([*BUSY, "limited one", "limited two"])
        yield Step(
            at=at,
            act=_weighted(dice, _ACTS),
            task="exclusive" if group in LIMITED else _weighted(dice, _TASKS),
            group=group,
            priority=dice.choice(("high", "low")),
            seconds=round(dice.choice(_SECONDS if group in BUSY else _SECONDS[:-1]) * dice.uniform(0.5, 1), 3),
            chance=dice.random(),
        )
        at += dice.expovariate(rate)


def _faults(
    dice: random.Random, seconds: float, kinds: dict, pauses: tuple[float, float], targets: int
) -> Iterator[Fault]:
    at = dice.uniform(*pauses)
    deck: list = []
    while True:
        if not deck:
            deck = dice.sample(list(kinds), len(kinds))
        kind = deck.pop()
        fault = Fault(round(at, 3), kind, dice.randrange(targets), round(dice.uniform(*kinds[kind]), 3), dice.random())
        if fault.at + fault.seconds > seconds:
            return
        yield fault
        # Those of processes overlap; a server's next fault begins after this one.
        at += dice.uniform(*pauses) + (fault.seconds if targets == 1 else 0)


def _weighted(dice: random.Random, choices: Sequence[tuple[T, int]]) -> T:
    return dice.choices([name for name, _ in choices], [weight for _, weight in choices])[0]
