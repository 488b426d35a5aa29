"""All tests, in lanes side by side: ``python -m tests.support.lanes``, which ``make test`` runs.

Most of the time a test waits, for the end of a lease or the start of a process: one lane computes while others wait.
One session of pytest collects all tests, once, and then forks into the lanes. Each lane ends like a session of its own,
with its own servers, folders and ports. A lane takes the next file that no lane has taken (it makes the file
``NAME.taken`` in a folder that they share), until none is left, so that all lanes end at about the same time. Two kinds
of files have restrictions:

- Two lanes, each with its own cluster, run the files of the tier cluster (one lane would need more than half of all
  time), after the programs of the cluster have been built: in the background, which takes minutes the first time. When
  such a lane dies, another one makes a cluster. When no file of the tier is left, a lane ends its cluster, which would
  compute until the lane ends: nodes report, leases are renewed.
- Files with a test that is marked ``heavy`` run one at a time, and not beside that build.

Files of both kinds run as early as possible, because few lanes run them, and then files with a test that is marked
``long``. The files of the tiers faults, which mostly wait, and acceptance and integration, which mostly compute, follow
in turn, and then the other tiers: the last files are short, so that no lane runs alone for long.

Each finished file gets a line at once, with its failures, because a test may end its lane; its seconds of CPU are those
of the lane and its processes, without PostgreSQL's. The skips and durations of
pytest come at the end, lane after lane, and then a line for each tier. What has failed then runs once more, alone
(`tests.support.reruns`), and the last lines name what is flaky and what has failed.
"""

import argparse
import faulthandler
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from tests.support import reruns
from tests.support.parent import die_with_parent
from tests.support.reruns import Failure

LANES = min(7, 4 * (os.cpu_count() or 1))
CLUSTERS = ("cluster 1", "cluster 2")
TIERS = ("unit", "property", "integration", "acceptance", "faults", "browser", "cluster")

SHARED = "JOEX_TEST_LANES"
"""The variable with the folder that the lanes share."""

END_CLUSTER = pytest.StashKey[Callable[[], None]]()
"""Ends the cluster of a lane, if there is one: in the stash of pytest's configuration."""

_CODES = "the exit codes"
_BUILD = "the build"
_HEAVY = "a heavy one"
_PAUSE = 1
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
_ROOT = Path(__file__).parents[2]


# The session that forks into the lanes: the plugin of pytest that `-p tests.support.lanes` loads.


class Share:
    """The files of tests that a lane takes, in the folder that the lanes share."""

    def __init__(self, folder: Path, items: Sequence[pytest.Item]) -> None:
        self._folder = folder
        self._cluster = ExitStack()  # the lock of one of CLUSTERS, once this lane has it: until its process ends
        self._has_cluster = False
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        _write(folder / "all", {name: str(tests[0].path) for name, tests in files.items()})
        before = Counter[str]()  # files of the same tier
        places = {}
        for name, tests in files.items():
            places[name] = (*_place(tests), before[_tier(tests)])
            before[_tier(tests)] += 1
        self._left = {name: files[name] for name in sorted(files, key=places.__getitem__)}
        self._of_cluster = {name for name, tests in files.items() if _is(tests, "cluster")}

    def __iter__(self) -> Iterator[tuple[str, list[pytest.Item]]]:
        """Take one file after the other, until none is left for this lane; its locks are held until it has run."""
        while self._left:
            for name in list(self._left):
                with ExitStack() as locks:
                    if self._take(name, locks):
                        yield name, self._left.pop(name)
                        break
            else:
                time.sleep(_PAUSE)  # the remaining files wait for a heavy one, for the build, or for a cluster

    def needs_cluster(self, name: str) -> bool:
        """Whether a file needs a cluster, or one that no lane has taken yet."""
        return name in self._of_cluster or any(
            not self._is_taken(each) for each in self._of_cluster & self._left.keys()
        )

    def _take(self, name: str, locks: ExitStack) -> bool:
        is_of_cluster, is_heavy = (_is(self._left[name], mark) for mark in ("cluster", "heavy"))
        if self._is_taken(name):
            del self._left[name]
            return False
        if is_heavy and not self._lock(_HEAVY, locks):
            return False
        if (is_heavy or is_of_cluster) and not self._lock(_BUILD, locks):
            return False
        if is_of_cluster and not self._has_cluster:
            self._has_cluster = any(self._lock(cluster, self._cluster) for cluster in CLUSTERS)
        return (not is_of_cluster or self._has_cluster) and self._make_taken(name)

    def _is_taken(self, name: str) -> bool:
        return _path(self._folder, name, "taken").exists()

    def _make_taken(self, name: str) -> bool:
        try:
            _path(self._folder, name, "taken").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _lock(self, name: str, locks: ExitStack) -> bool:
        """Hold a lock, if no other process does."""
        # (No file of Python, which would warn that nobody has closed it when this process ends with a cluster.)
        file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT)
        try:
            # Heavy files may not meet, but any number of lanes may find at the same time that the build is over.
            fcntl.flock(file, (fcntl.LOCK_SH if name == _BUILD else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        locks.callback(os.close, file)
        return True


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Fork into the lanes, and in each run its share of the tests."""
    if session.testsfailed:
        return None  # the collection failed: pytest reports it
    folder = Path(os.environ[SHARED])
    share = Share(folder, session.items)
    # The files in which pytest keeps what a test prints: each lane has its own.
    capture = session.config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    forked = fork(LANES)
    if isinstance(forked, list):
        _write(folder / _CODES, forked)
        sys.stdout.flush()
        os._exit(0)  # what ends a session, and its summary, are the lanes'
    capture.start_global_capturing()
    capture.suspend_global_capture()
    for name, items in share:
        if not share.needs_cluster(name):
            session.config.stash.get(END_CLUSTER, lambda: None)()
        _outcomes.clear()
        _failures.clear()
        started, cpu = time.monotonic(), _cpu_seconds()
        # After the last test of a file, pytest tears down the fixtures of the file, and keeps those of the session.
        for item, after in zip(items, [*items[1:], session], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        result = {
            "name": name,
            "tier": _tier(items),
            "seconds": time.monotonic() - started,
            "cpu": max(0.0, _cpu_seconds() - cpu),
            "tests": _outcomes,
            "failures": [asdict(failure) for failure in _failures],
        }
        _write(_path(folder, name, "done"), result)
    session.config.option.tbstyle = "no"  # failures were reported with their file
    return True


def fork(count: int) -> int | list[int]:
    """Fork this process, which has no other threads, into lanes, and wait until all have ended.

    Each lane has an output and a session of its own: this process passes Ctrl-C on to them, also a second one, and each
    ends its children. However this process ends, they end. Their outputs are printed one after the other at the end.

    Returns:
        In a lane its number, from 0. In this process the exit codes of the lanes, as those of `subprocess.Popen`.
    """
    assert threading.active_count() == 1, "a fork has none of the threads whose locks it may need"
    gc.collect()  # tells of what the collection of tests has left open,
    gc.freeze()  # and nothing of that is looked at again, hence copied: the lanes share the memory
    outputs = [os.memfd_create(f"lane {number}") for number in range(count)]
    lanes: list[int] = []

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        for lane in lanes:
            os.kill(lane, signal.SIGINT)  # (no other process has its id: it is never reaped)

    signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)  # until each process has its handlers
    handlers = {number: signal.signal(number, pass_on) for number in _INTERRUPTIONS}
    sys.stdout.flush()
    sys.stderr.flush()
    this = os.getpid()
    for number, output in enumerate(outputs):
        lane = os.fork()
        if not lane:
            die_with_parent()
            if os.getppid() != this:
                os._exit(1)  # it died before that call
            os.setsid()
            for stream in (1, 2):
                os.dup2(output, stream)
            faulthandler.enable(output)  # a crash is told, though pytest keeps the standard error of a test
            for interruption, handler in handlers.items():
                signal.signal(interruption, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
            return number
        lanes.append(lane)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
    codes = []
    for lane in lanes:
        ended = os.waitid(os.P_PID, lane, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        codes.append(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
    for output in outputs:
        with open(output, "rb") as printed:  # noqa: PTH123 - a file descriptor
            printed.seek(0)
            sys.stdout.buffer.write(printed.read())
    return codes


_outcomes: Counter[str] = Counter()  # how the tests of the file that runs have ended
_failures: list[Failure] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the result of a test; one that also fails in its fixtures counts twice."""
    report = yield
    if report.when == "call" or not report.passed:
        _outcomes[report.outcome] += 1
    if report.failed:
        _failures.append(Failure.of(item, report, call.excinfo.value if call.excinfo else None))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus() -> Generator[None, tuple[str, str, Any], tuple[str, str, Any]]:
    """No dots, because each file gets a line."""
    category, _, word = yield
    return category, "", word


def _place(items: Sequence[pytest.Item]) -> tuple[bool, bool, bool, int]:
    """The place of a file in the order: the lowest first."""
    tier = _tier(items)
    step = (*TIERS, "other").index("faults" if tier in {"acceptance", "integration"} else tier)
    return not _is(items, "cluster"), not _is(items, "heavy"), not _is(items, "long"), -step


def _cpu_seconds() -> float:
    """The seconds of CPU so far of this process and all that it has started; servers of PostgreSQL leave it."""
    this, seconds = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])  # its own, and those of its children that have ended
    return seconds


def _tier(items: Sequence[pytest.Item]) -> str:
    return next((tier for tier in TIERS if items[0].get_closest_marker(tier)), "other")


def _is(items: Sequence[pytest.Item], mark: str) -> bool:
    """Whether a file has a test with this mark."""
    return any(item.get_closest_marker(mark) for item in items)


def _path(folder: Path, name: str, kind: str) -> Path:
    return folder / f"{name.replace('/', '.')}.{kind}"


def _write(path: Path, what: Any) -> None:
    """Write a file atomically, because other lanes read it."""
    aside = path.with_name(f"{path.name} {os.getpid()}")
    aside.write_text(json.dumps(what))
    aside.replace(path)


def _read(path: Path) -> Any:
    """What a file says; None: there is none."""
    return json.loads(path.read_text()) if path.exists() else None


# The process that starts the lanes.


def main(arguments: Sequence[str]) -> int:
    """Run all tests (the arguments may select some, as in pytest); the exit code is 0 if all passed, at last."""
    parser = argparse.ArgumentParser(prog="tests.support.lanes", add_help=False, allow_abbrev=False)
    parser.add_argument("--flaky-is-red", action="store_true", help="a test that passes in its second run is a failure")
    given, of_pytest = parser.parse_known_args(arguments)
    colour = ["--color=yes"] if sys.stdout.isatty() else []  # it prints to a file
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.support.lanes"]
    command = [*pytest, "-q", "-o", "console_output_style=classic", "-rfEs", "--durations=10", *colour, *of_pytest]
    with tempfile.TemporaryDirectory(prefix="joex-tests-lanes-", dir="/var/tmp") as name:
        folder, told = Path(name), set[str]()
        for line in tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["markers"][: len(TIERS)]:
            _say(f"test: {line}")
        _say(f"test: in {LANES} lanes; each file is told of when it is done")
        builder = _start_build(folder)
        try:
            code = run(command, lambda: _tell(folder, told), **{SHARED: name})
        finally:
            builder.terminate()
            builder.wait()
        # (None: the session has ended before it had lanes, or with them.)
        codes = {f"lane {number}": code for number, code in enumerate(_read(folder / _CODES) or [], 1)}
        return _summary(folder, codes or {"collection": code}, flaky_is_red=given.flaky_is_red)


def run(command: Sequence[str], tell: Callable[[], None] = lambda: None, **environment: str) -> int:
    """Run a command, print its output once it has ended, and return its exit code.

    It has a session of its own: Ctrl-C at the terminal reaches neither it nor what it has started. This process passes
    it on to the command only; so it does with a second Ctrl-C. However this process ends, the command ends.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
        )
        for number in _INTERRUPTIONS:
            signal.signal(number, lambda _number, _frame: process.send_signal(signal.SIGINT))
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PAUSE)
            tell()
        tell()
        sys.stdout.flush()
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        return process.returncode


def _start_build(folder: Path) -> subprocess.Popen:
    """Build the cluster's programs; each process of the build holds the lock, by an inherited file."""
    with (folder / _BUILD).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "tests.support.cluster.build"]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
        )


def _tell(folder: Path, told: set[str]) -> None:
    """Print a line for each newly finished file."""
    for path in sorted(folder.glob("*.done"), key=lambda path: path.stat().st_mtime):
        if path.name not in told:
            told.add(path.name)
            result = json.loads(path.read_text())
            for failure in result["failures"]:
                _say(failure["text"])
            _say(f"{result['name']}: {_in_words(result['tests'])}, {_time([result])}")


def _summary(folder: Path, codes: dict[str, int], *, flaky_is_red: bool) -> int:
    """Print a line for each tier, run what has failed once more, and print what came of it; returns the exit code."""
    results = [json.loads(path.read_text()) for path in folder.glob("*.done")]
    for tier in (*TIERS, "other"):
        of_tier = [result for result in results if result["tier"] == tier]
        tests: Counter[str] = Counter()
        for result in of_tier:
            tests.update(result["tests"])
        if of_tier or tier in TIERS:
            _say(f"test: {tier}: {_in_words(tests)}, {_time(of_tier)}")
    files = _read(folder / "all") or {}
    lost = sorted(set(files) - {result["name"] for result in results})
    for name in lost:
        _say(f"test: {name}: NOT finished")
    for name, code in codes.items():
        if code:
            _say(f"test: {name}: exit code {code}")
    failed = [Failure(**failure) for result in results for failure in result["failures"]]
    # A lane ends with 1 when tests of it have failed, and with something else only if it lost its file.
    explained = {0} | ({1} if failed else set()) | (set(codes.values()) if lost else set())
    failed = sorted([*failed, *(Failure.unfinished(name, files[name]) for name in lost)], key=lambda one: one.test)
    flaky, bad = ([], failed) if pytest.ExitCode.INTERRUPTED in codes.values() else reruns.run_again(failed, _say)
    reruns.tell(flaky, bad, _say)
    is_good = files and not bad and explained.issuperset(codes.values()) and not (flaky and flaky_is_red)
    _say(f"test: {'all passed' if is_good else 'NOT passed'}")
    return 0 if is_good else 1


def _in_words(tests: dict[str, Any]) -> str:
    words = {"passed": "passed", "failed": "FAILED", "skipped": "SKIPPED"}
    return ", ".join(f"{tests[kind]} {word}" for kind, word in words.items() if tests.get(kind)) or "none ran"


def _time(results: Sequence[dict[str, Any]]) -> str:
    seconds, cpu = (sum(result[name] for result in results) for name in ("seconds", "cpu"))
    return f"{seconds:.0f} s, {cpu:.0f} s of CPU"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
