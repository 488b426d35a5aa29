"""Which failures of a service are worth a log line, and when it tries again."""

import pytest

from joex.core.events import DatabaseTrouble, TroubleOver
from joex.trouble import Trouble


class Service:
    """A service whose tries fail or succeed, at times of its own clock; ``lines`` has what is worth a line."""

    def __init__(self):
        self.now = 0.0
        self.events = []
        self.lines = []
        self.trouble = Trouble("taker", self._emit, first=0.1, longest=2.0, clock=lambda: self.now)

    def _emit(self, event):
        self.events.append(event)
        match event:
            case DatabaseTrouble(is_news=True):
                self.lines.append((self.now, event.error, event.seconds))
            case TroubleOver():
                self.lines.append((self.now, "over", event.seconds))

    def fails(self, *times, why="refused"):
        for self.now in times:
            self.trouble.failed(OSError(why))

    def works(self, *times):
        for self.now in times:
            self.trouble.over()


@pytest.fixture
def service():
    return Service()


def test_a_trouble_has_a_line_at_its_begin_each_minute_and_at_its_end(service):
    service.works(0.0)
    service.fails(*range(1, 200))
    service.works(200.0, 201.0)
    assert service.lines == [
        (1, "refused", 0),
        (61, "refused", 60),
        (121, "refused", 120),
        (181, "refused", 180),
        (200.0, "over", 199.0),
    ]
    assert len(service.events) == 199 + 1, "each failure is counted"


def test_a_reason_that_changes_has_a_line_and_two_that_take_turns_have_one_each(service):
    service.fails(1)
    service.fails(2, why="no answer in time")
    service.fails(3)
    service.fails(4, why="no answer in time")
    service.fails(61)
    service.fails(62, why="no answer in time")
    assert [(at, why) for at, why, _ in service.lines] == [
        (1, "refused"),
        (2, "no answer in time"),
        (61, "refused"),
        (62, "no answer in time"),
    ]


def test_the_same_trouble_has_its_lines_again_when_it_comes_back(service):
    service.fails(1, 2)
    service.works(5)
    service.fails(20, 21)
    service.works(22)
    assert service.lines == [(1, "refused", 0), (5, "over", 4), (20, "refused", 0), (22, "over", 2)]


def test_a_trouble_that_comes_and_goes_has_few_lines(service):
    for second in range(100):
        service.fails(second)
        service.works(second + 0.5)
    assert len(service.lines) == 2 * 10


def test_a_trouble_that_comes_back_at_once_and_stays_has_a_line_soon(service):
    service.fails(1)
    service.works(2)
    service.fails(*range(3, 30))
    assert service.lines == [(1, "refused", 0), (2, "over", 1), (11, "refused", 8)]


def test_the_tries_come_less_and_less_often_at_random_times_and_soon_again_after_a_success(service):
    def delays():
        return [service.trouble.failed("refused") for _ in range(10)]

    for _ in range(3):
        for nr, delay in enumerate(delays()):
            most = min(0.1 * 2**nr, 2.0)
            assert most / 2 <= delay <= most
        service.works(0)
    first, second = delays()[-5:], delays()[-5:]
    assert len(set(first + second)) > 1
    assert service.trouble.failed("refused", 7.0) == 7.0
