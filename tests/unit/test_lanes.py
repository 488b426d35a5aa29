"""The lanes of `make test`: side by side they run each test once, report the results, and end on request."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pytest

from tests.support.lanes import CLUSTERS, LANES, TIERS, Share
from tests.support.reruns import FOLDER, MOST, PROMISES
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from tests.support.lanes import run
print(run([sys.executable, "-uc", *sys.argv[1:]]))
"""
FORK = """
import sys
from tests.support.lanes import fork
forked = fork(2)
if isinstance(forked, int):
    exec(sys.argv[1 + forked])
else:
    print(*forked)
"""
# Like pytest, it continues after Ctrl-C, until the test releases it. The pipe is open while it lives.
UNTIL_CTRL_C = """
import signal, sys
pipe, go = open({pipe!r}, "w"), open({go!r}, "rb", buffering=0)
try:
    print("ready", file=pipe, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("ending", file=pipe, flush=True)
    go.read(1)
    print("{name} is torn down")
    sys.exit({code})
"""


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    return fifo(tmp_path / "pipe")


@pytest.fixture
def go(tmp_path: Path) -> Iterator[BinaryIO]:
    """A pipe in which a byte releases one of them; open for reading too, so that no open waits for the other side."""
    with Path(fifo(tmp_path / "go")).open("r+b", buffering=0) as go:
        yield go


@contextmanager
def running(first: str, second: str) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-uc", RUN, FORK, first, second]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True) as process:
        yield process
        process.kill()


@contextmanager
def running_until_ctrl_c(pipe: str, go: BinaryIO) -> Iterator[tuple[subprocess.Popen, TextIO]]:
    first = UNTIL_CTRL_C.format(pipe=pipe, go=go.name, name="first", code=2)
    second = UNTIL_CTRL_C.format(pipe=pipe, go=go.name, name="second", code=4)
    # Open for writing here too until both have opened it, so that reading does not end before.
    with running(first, second) as process, Path(pipe).open("r+b", buffering=0) as here, Path(pipe).open() as lines:
        assert [lines.readline(), lines.readline()] == ["ready\n", "ready\n"]
        here.close()
        yield process, lines


def test_what_the_second_prints_comes_after_all_of_the_first_and_both_tell_how_they_ended(pipe, tmp_path):
    life = fifo(tmp_path / "life")  # of the first: its other side ends with it
    first = f"life = open({life!r}, 'w'); print('a'); print(open({pipe!r}).read()); raise SystemExit(3)"
    second = f"life = open({life!r}); print('b'); open({pipe!r}, 'w').write('c'); life.read(); print('d')"
    with running(first, second) as process:
        assert process.communicate(timeout=PATIENCE)[0].split() == ["a", "c", "b", "d", "3", "0", "0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_both_end_what_is_theirs(pipe, go, number):
    with running_until_ctrl_c(pipe, go) as (process, lines):
        os.killpg(process.pid, number)  # all processes to which a terminal would send it
        assert [lines.readline(), lines.readline()] == ["ending\n", "ending\n"]
        go.write(b"!!")
        assert process.communicate(timeout=PATIENCE)[0].splitlines() == [
            "first is torn down",
            "second is torn down",
            "2 4",
            "0",
        ]


def test_they_are_killed_with_the_one_that_runs_them(pipe, go):
    with running_until_ctrl_c(pipe, go) as (process, lines):
        process.kill()
        assert process.communicate(timeout=PATIENCE)[0] == ""
        assert list(lines) == []  # read to the end, which comes when none of them has it open


# The tests of a project, whose tiers are markers as here.

SETTINGS = "\n    ".join(["[pytest]\nmarkers =", "heavy", *TIERS])
# The record of the lanes: when and where each test runs, and when session fixtures end.
CONFTEST = """
import json, os, pathlib, time
import pytest
from tests.support.lanes import END_CLUSTER
@pytest.fixture(scope="session")
def note(request):
    def write(*what):
        path = pathlib.Path({notes!r}, f"{{os.getpid()}} {{time.monotonic_ns()}}")
        path.write_text(json.dumps([os.getpid(), *what]))
        path.rename(f"{{path}}.note")
    request.config.stash[END_CLUSTER] = lambda: write("cluster ended", time.monotonic())
    yield write
    write("closed")
@pytest.fixture
def meet():
    def wait_for_another_lane():
        while all(path.name.startswith(str(os.getpid())) for path in pathlib.Path({notes!r}).glob("*.note")):
            time.sleep(0.01)  # (until a file is there, which another process makes)
    return wait_for_another_lane
"""
TEST = """
import os, time
import pytest
pytestmark = [{marks}]
@pytest.mark.parametrize("number", range(2))
def test_it(note, meet, number):
    began = time.monotonic()
    {code}
    note(__file__, number, began, time.monotonic())
"""


class Item:
    """A test of a file that has one."""

    def __init__(self, name: str, *marks: str) -> None:
        self.nodeid, self.path, self._marks = f"{name}::test_it", name, marks

    def get_closest_marker(self, name: str) -> bool:
        return name in self._marks


class Project:
    """Files of tests, and their record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder / "notes"
        self._notes.mkdir()
        (folder / "pytest.ini").write_text(SETTINGS)
        (folder / "conftest.py").write_text(CONFTEST.format(notes=str(self._notes)))

    def file(self, name: str, *marks: str, code: str = "pass") -> None:
        (self.folder / f"test_{name}.py").write_text(
            TEST.format(marks=", ".join(f"pytest.mark.{mark}" for mark in marks), code=code)
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Without a compiler on the PATH, so that no lane builds the programs of a cluster.
        return subprocess.run(
            [sys.executable, "-m", "tests.support.lanes", *arguments],
            env={
                **os.environ,
                "PATH": str(self.folder),
                "PYTHONPATH": str(ROOT),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def promise(self, test: str) -> None:
        (self.folder / PROMISES).parent.mkdir(parents=True)
        (self.folder / PROMISES).write_text(f"| it runs once | `{test}` |")

    def notes(self) -> list[list]:
        return [json.loads(note.read_text()) for note in self._notes.glob("*.note")]

    def ends_of_clusters(self) -> list[tuple[int, float]]:
        """Lane and time, each time that a lane ended the cluster that it may have."""
        return [(lane, what[1]) for lane, *what in self.notes() if what[0] == "cluster ended"]

    def runs(self) -> list[tuple[int, str, int, float, float]]:
        """Lane, file, number, beginning and end of each test that ran."""
        notes = [note for note in self.notes() if note[1] not in ("closed", "cluster ended")]
        return sorted((lane, Path(file).stem, *rest) for lane, file, *rest in notes)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_each_test_runs_once_those_of_the_cluster_in_some_lanes_and_heavy_files_one_after_the_other(project):
    for nr in range(6):
        project.file(f"unit_{nr}", "unit", code="meet()")
        # (Each test takes a moment, so that two that ran side by side would overlap.)
        project.file(f"heavy_{nr}", "faults", "heavy", code="time.sleep(0.02)")
        project.file(f"cluster_{nr}", "cluster", code="time.sleep(0.02)")
        project.file(f"slow_{nr}", "acceptance")
    done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    runs = project.runs()
    names = [(file, number) for _, file, number, *_ in runs]
    assert sorted(names) == sorted(
        (f"test_{kind}_{nr}", number)
        for kind in ("unit", "heavy", "cluster", "slow")
        for nr in range(6)
        for number in range(2)
    )
    assert len({lane for lane, *_ in runs}) > 1
    assert len({lane for lane, file, *_ in runs if "cluster" in file}) <= len(CLUSTERS) < LANES
    for file in {file for _, file, *_ in runs}:
        assert len({lane for lane, name, *_ in runs if name == file}) == 1
    # The short files come last: no lane has taken a longer one after them.
    for first, second in pairwise(sorted(runs, key=lambda run: (run[0], run[3]))):
        assert not (first[0] == second[0] and "unit" in first[1] and "slow" in second[1])
    heavy = sorted((began, ended) for _, file, _, began, ended in runs if "heavy" in file)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(heavy))
    # No lane ends its cluster before its last file of the cluster.
    for lane, when in project.ends_of_clusters():
        assert all(ended < when for each, file, _, _, ended in runs if each == lane and "cluster" in file)
    # Session fixtures last until their lane ends.
    closed = [note[0] for note in project.notes() if note[1] == "closed"]
    assert sorted(closed) == sorted({lane for lane, *_ in runs})
    told = re.findall(r"^\S*test_(\w+)\.py: 2 passed, \d+ s, \d+ s of CPU$", done.stdout, re.MULTILINE)
    assert sorted(told) == sorted({file.removeprefix("test_") for _, file, *_ in runs})
    for tier in ("unit", "faults", "acceptance", "cluster"):
        assert re.search(rf"^test: {tier}: 12 passed, \d+ s, \d+ s of CPU$", done.stdout, re.MULTILINE), done.stdout
    assert "test: property: none ran" in done.stdout
    assert done.stdout.endswith("test: all passed\n")


def test_a_lane_ends_its_cluster_before_it_runs_a_file_when_all_files_of_the_cluster_are_taken(project):
    # (These fixtures are there from the first file of a lane on, and some lane runs two.)
    for nr in range(LANES + 1):
        project.file(f"unit_{nr}", "unit")
    assert project.run().returncode == 0
    began = {(lane, began) for lane, _, number, began, _ in project.runs() if number == 0}
    for lane, when in (ends := project.ends_of_clusters()):
        assert any(each == lane and when < start for each, start in began)
    assert ends


def test_a_cluster_is_needed_until_its_files_are_taken(tmp_path):
    items: Any = [Item(f"test_{name}.py", mark) for name, mark in (("a", "cluster"), ("b", "cluster"), ("c", "unit"))]
    one, other = Share(tmp_path, items), Share(tmp_path, items)
    files, files_of_other = iter(one), iter(other)
    assert next(files)[0] == "test_a.py"
    assert one.needs_cluster("test_c.py")
    assert next(files_of_other)[0] == "test_b.py"
    assert not one.needs_cluster("test_c.py")
    assert other.needs_cluster("test_b.py")


def test_long_files_come_before_all_that_any_lane_can_run(tmp_path):
    marks = ("faults",), ("acceptance",), ("acceptance", "long"), ("acceptance", "heavy"), ("cluster",)
    items: Any = [Item(f"test_{nr}.py", *each) for nr, each in enumerate(marks)]
    names = [name for name, _ in Share(tmp_path, items)]
    assert names == ["test_4.py", "test_3.py", "test_2.py", "test_0.py", "test_1.py"]


FIRST_TIME = "first = not os.path.exists(f'{__file__}.{number}'); open(f'{__file__}.{number}', 'w').close(); "
"""Code whose `first` is true when a test runs for the first time."""


def test_what_fails_twice_what_is_skipped_and_what_ends_its_lane_is_told(project):
    project.file("good", "unit")
    compute = "number or os.system(f'{sys.executable} -c \"import time\\nwhile time.process_time() < 0.6: pass\"')"
    project.file("bad", "unit", code=f"import sys; {compute}; print('seed 4711'); assert number == 1, 'broken'")
    project.file("left_out", "faults", code="pytest.skip('there is no moon')")
    for nr in range(len(CLUSTERS)):
        project.file(f"deadly_{nr}", "cluster", code="os._exit(75)")
    project.file("orphan", "cluster")
    done = project.run()
    assert done.returncode == 1
    for line in (
        r"test_bad.py: 1 passed, 1 FAILED, \d+ s, [1-9]\d* s of CPU",
        r"test_left_out.py: 2 SKIPPED, \d+ s, \d+ s of CPU",
    ):
        assert re.search(rf"^{line}$", done.stdout, re.MULTILINE), done.stdout
    assert "there is no moon" in done.stdout
    # The last lane makes a cluster when those that had one have died.
    assert re.search(r"^test_orphan.py: 2 passed, \d+ s, \d+ s of CPU$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^test: lane \d: exit code 75$", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-4:] == [
        "FAILED: test_bad.py::test_it[0]: AssertionError: broken; seed 4711",
        "FAILED: test_deadly_0.py: NOT finished",
        "FAILED: test_deadly_1.py: NOT finished",
        "test: NOT passed",
    ], done.stdout


def test_what_passes_when_it_runs_once_more_is_flaky_and_told_with_both_outputs(project):
    project.file("flaky", "unit", code=f"{FIRST_TIME} assert number == 1 or not first, 'too early'")
    project.file("deadly_once", "faults", code=f"{FIRST_TIME} number or (first and os._exit(75))")
    (project.folder / FOLDER).mkdir(parents=True)
    (project.folder / FOLDER / "9-first.txt").write_text("of an earlier run")
    done = project.run()
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-4:] == [
        f"flaky: 2, with both outputs in {FOLDER}:",
        "flaky: test_deadly_once.py: NOT finished",
        "flaky: test_flaky.py::test_it[0]: AssertionError: too early",
        "test: all passed",
    ], done.stdout
    outputs = {path.name: path.read_text() for path in (project.folder / FOLDER).iterdir()}
    assert sorted(outputs) == ["1-first.txt", "1-second.txt", "2-first.txt", "2-second.txt"]
    assert "2 passed" in outputs["1-second.txt"]
    assert "AssertionError: too early" in outputs["2-first.txt"]
    assert "1 passed" in outputs["2-second.txt"]


def test_flaky_is_red_where_one_looks_for_it(project):
    project.file("flaky", "unit", code=f"{FIRST_TIME} assert not first, 'too early'")
    done = project.run("--flaky-is-red")
    assert done.returncode == 1
    assert "flaky: 2, with" in done.stdout
    assert done.stdout.endswith("test: NOT passed\n")


def test_many_failures_are_no_accident_and_none_runs_again(project):
    for nr in range(MOST):
        project.file(f"flaky_{nr}", "unit", code=f"{FIRST_TIME} assert not first, 'too early'")
    done = project.run()
    assert done.returncode == 1
    assert f"{2 * MOST} first failures are more than {MOST}" in done.stdout
    assert not (project.folder / FOLDER).exists()
    assert done.stdout.count("AssertionError: too early") >= 2 * MOST


def test_a_test_of_a_promise_runs_again_only_if_a_wait_ran_out(project):
    errors = {
        "doubled": "AssertionError('it ran twice')",
        "late": "__import__('tests.support.waiting').support.waiting.NotInTime('no job')",
        "later": "ExceptionGroup('of tasks', [TimeoutError('no answer')])",
    }
    for name, error in errors.items():
        project.file(name, "unit", code=f"{FIRST_TIME}\n    if first and number == 0: raise {error}")
    project.promise("test_it")
    done = project.run()
    assert done.returncode == 1
    assert re.findall(r"^(flaky|FAILED): test_(\w+)\.py::test_it\[0\]: ", done.stdout, re.MULTILINE) == [
        ("flaky", "late"),
        ("flaky", "later"),
        ("FAILED", "doubled"),
    ], done.stdout


def test_a_test_of_a_promise_runs_again_if_python_warns_in_it_of_what_any_test_has_left_behind(project):
    unclosed = f"{FIRST_TIME}\n    if first and number == 0: open(__file__)"
    project.file("left", "unit", 'filterwarnings("error")', code=unclosed)
    project.promise("test_it")
    done = project.run()
    assert done.returncode == 0, done.stdout
    assert "flaky: test_left.py::test_it[0]: pytest.PytestUnraisableExceptionWarning: " in done.stdout


def test_a_file_that_can_not_be_collected_is_told_and_no_lane_begins(project):
    project.file("good", "unit")
    (project.folder / "test_wrong.py").write_text("import nothing_of_that_name")
    done = project.run()
    assert done.returncode == 1
    assert "nothing_of_that_name" in done.stdout
    assert "test: collection: exit code 2\n" in done.stdout
    assert project.runs() == []


def test_the_tiers_are_those_that_there_are():
    """Except the one that runs only by its name."""
    assert {*TIERS, "node"} == {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("**/test_*.py"))}
