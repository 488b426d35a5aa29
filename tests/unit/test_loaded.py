"""The processes of tests that are forked with Joex loaded behave as started ones."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.support.cluster.processes import runs
from tests.support.loaded import Fork
from tests.support.loaded import command as command_of
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ENDS = """
import atexit, concurrent.futures, threading, time
atexit.register(print, "at exit", end="")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 0)
print("end")
"""
ITSELF = """
import gc, json, os, signal, sys, threading, time
state = {
    "argv": sys.argv[1:],
    "environment": dict(os.environ),
    "shown": open("/proc/self/environ", "rb").read().rstrip(b"\\0").decode().split("\\0"),
    "folder": os.getcwd(),
    "path": sys.path,
    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "timezone": time.tzname[0],
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": threading.active_count(),
    "collects": gc.isenabled(),
    "streams": [
        [stream.encoding, stream.errors, stream.line_buffering, stream.write_through, type(stream.buffer).__name__]
        for stream in (sys.stdout, sys.stderr)
    ],
    "writes": not sys.dont_write_bytecode,
    "tests": [name for name in sys.modules if name.startswith("tests")],
}
print(json.dumps(state))
"""
LOCALE = {name: value for name, value in os.environ.items() if name == "LANG" or name.startswith("LC_")}
ENVIRONMENT = {"PATH": os.environ["PATH"], "TZ": "UTC+3", "PYTHONPATH": "/one:/two", "JOEX_TEST_SELF": "ä", **LOCALE}


@pytest.fixture
def output() -> Iterator[BinaryIO]:
    """The output of a process."""
    with tempfile.TemporaryFile() as file:
        yield file


def said(output: BinaryIO) -> str:
    return os.pread(output.fileno(), 2**20, 0).decode()


def program(folder: Path, code: str) -> str:
    path = folder / "program.py"
    path.write_text(code)
    return str(path)


@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONDONTWRITEBYTECODE": "1"}], ids=str)
def test_a_fork_is_like_a_started_process(tmp_path: Path, output: BinaryIO, more: dict[str, str]) -> None:
    environment, path = {**ENVIRONMENT, **more}, program(tmp_path, ITSELF)
    fork = Fork(path, ["a", "--b"], environment=environment, folder=tmp_path, output=output.fileno())
    assert fork.wait(30) == 0, said(output)
    started = subprocess.run(  # -P: the folder of a program is not on the path
        [sys.executable, "-P", path, "a", "--b"], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    forked, plain = json.loads(said(output)), json.loads(started.stdout)
    assert forked == {**plain, "tests": forked["tests"]}
    assert forked["tests"] == []
    assert sorted(forked["shown"]) == sorted(f"{name}={value}" for name, value in environment.items())


def test_joex_runs_with_the_current_folder_on_its_path(tmp_path: Path, output: BinaryIO) -> None:
    (tmp_path / "own_app.py").write_text("import sys\nsys.exit(f'{sys.path[0]} {__name__}')\n")
    fork = Fork(
        "joex", ["executor", "--app", "own_app:app"], environment=ENVIRONMENT, folder=tmp_path, output=output.fileno()
    )
    assert fork.wait(30) == 1
    assert said(output) == f"{tmp_path} own_app\n"


def test_the_library_of_kubernetes_reads_the_environment_of_the_fork(tmp_path: Path, output: BinaryIO) -> None:
    code = "from kubernetes.aio.config import kube_config; print(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)"
    environment = {**ENVIRONMENT, "KUBECONFIG": "/its/own"}
    fork = Fork(program(tmp_path, code), [], environment=environment, folder=tmp_path, output=output.fileno())
    assert fork.wait(30) == 0, said(output)
    assert said(output) == "/its/own\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError", 1),
        ("import os; os._exit(9)", 9),
        ("print('unflushed')", 0),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_its_exit_code_is_that_of_a_started_process(
    tmp_path: Path, output: BinaryIO, code: str, exit_code: int
) -> None:
    fork = Fork(program(tmp_path, code), [], environment=ENVIRONMENT, folder=tmp_path, output=output.fileno())
    assert fork.wait(30) == exit_code, said(output)
    assert fork.poll() == exit_code
    assert said(output) == ("unflushed\n" if "print" in code else said(output))


def test_it_ends_after_its_threads_and_what_atexit_has(tmp_path: Path, output: BinaryIO) -> None:
    fork = Fork(program(tmp_path, ENDS), [], environment=ENVIRONMENT, folder=tmp_path, output=output.fileno())
    assert fork.wait(30) == 0, said(output)
    assert said(output).split("\n") == ["end", "thread", "at exit"]


def test_output_that_nobody_can_take_is_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        fork = Fork(program(tmp_path, "print(0)"), [], environment=ENVIRONMENT, folder=tmp_path, output=full.fileno())
        assert fork.wait(30) == 120


def test_signals_reach_it_and_after_its_end_nobody(tmp_path: Path, output: BinaryIO) -> None:
    fork = Fork(
        program(tmp_path, "import time; time.sleep(1000)"),
        [],
        environment=ENVIRONMENT,
        folder=tmp_path,
        output=output.fileno(),
    )
    assert fork.poll() is None
    fork.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.01)
    fork.send_signal(signal.SIGKILL)
    assert fork.wait(30) == -9
    fork.send_signal(signal.SIGKILL)


def test_what_can_not_start_is_an_error(tmp_path: Path, output: BinaryIO) -> None:
    with pytest.raises(OSError, match="has not started"):
        Fork("joex", [], environment=ENVIRONMENT, folder=tmp_path / "none", output=output.fileno())
    with pytest.raises(OSError, match="has not started"):
        Fork("joex", [], environment={**ENVIRONMENT, "PYTHONUTF8": "1"}, folder=tmp_path, output=output.fileno())


# ---- commands that stand for a fork


@contextmanager
def standing(folder: Path, code: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """A command that stands for a fork; the fork has printed its pid in the first line."""
    beginning = "import os, sys; print(os.getpid(), flush=True)\n"
    command = [*command_of(program(folder, beginning + code)), *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_command_gives_its_fork_streams_arguments_folder_and_environment(tmp_path: Path) -> None:
    code = "print(sys.stdin.read(), sys.argv[1:], os.getcwd(), os.environ['TZ']); print('wrong', file=sys.stderr)"
    with standing(tmp_path, f"{code}; sys.exit(7)", "a", "--b") as process:
        first_line(process)
        assert process.communicate(b"given") == (f"given ['a', '--b'] {tmp_path} UTC+3\n".encode(), b"wrong\n")
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_command_passes_signals_on_and_ends_by_that_of_its_fork(tmp_path: Path, number: signal.Signals) -> None:
    # (Python handles SIGINT, and a process that nohup has started ignores SIGHUP, as do those that it starts.)
    code = "import signal; signal.signal(int(sys.argv[1]), signal.SIG_DFL); print(0, flush=True); signal.pause()"
    with standing(tmp_path, code, str(int(number))) as process:
        first_line(process), first_line(process)
        process.send_signal(number)
        assert process.wait(30) == -number


def test_a_command_writes_each_line_at_once_to_a_terminal(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    code = "print(sys.stdout.isatty()); sys.stdin.read()"
    with subprocess.Popen(
        command_of(program(tmp_path, f"import sys; {code}")), env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=end
    ) as process:
        os.close(end)
        assert os.read(terminal, 100) == b"True\r\n"
        process.communicate()
    os.close(terminal)


async def test_the_fork_of_a_killed_command_is_killed(tmp_path: Path) -> None:
    with standing(tmp_path, "import signal; signal.pause()") as process:
        pid = first_line(process)
        assert runs(pid)
        process.kill()
        await eventually(lambda: not runs(pid), why="the fork has ended")


async def test_all_end_with_the_process_of_the_tests_and_leave_nothing(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
from pathlib import Path
from tests.support.loaded import Fork, address
naps = {program(tmp_path, "import time; time.sleep(1000)")!r}
fork = Fork(naps, [], environment=dict(os.environ), folder=Path("/"), output=2)
parent = int(Path(f"/proc/{{fork.pid}}/stat").read_text().rpartition(")")[2].split()[1])
print(fork.pid, parent, address(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: ASYNC221
    assert done.returncode == -9, done.stderr
    *pids, path = done.stdout.split()
    assert len(pids) == 2
    await eventually(lambda: not any(runs(int(pid)) for pid in pids), why="both have ended")
    assert not Path(path).parent.exists()
