"""The fixtures that Joex gives to the tests of its users, in sessions of pytest of their own."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

_QUICKLY = [word for name in ("cacheprovider", "hypothesispytest", "schemathesis") for word in ("-p", f"no:{name}")]

SHOP = """
import joex

app = joex.App()


@app.task("orders.book")
async def book(ctx: joex.Context, order: int) -> int:
    return order
"""
INI = "[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
DRAINED = """
import pytest

{mark}
@pytest.mark.parametrize("order", [1, 2])
async def test_an_order_is_booked(joex_client, joex_drain, order):
    job_id = await joex_client.submit("orders.book", {{"order": order}})
    assert [(job.id, job.result) for job in await joex_drain()] == [(job_id, order)], "no job of the other test"


def test_without_an_event_loop(joex_url, joex_drain):
    import asyncio

    assert asyncio.run(joex_drain()) == []
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that the user of the embedded server can enter."""
    with tempfile.TemporaryDirectory(prefix="joex-tests-plugin-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., pytest.RunResult]:
    """Run these tests; ``options`` follow in the configuration."""
    monkeypatch.setenv("JOEX_EMBEDDED_DIR", str(folder / "embedded"))
    pytester.makepyfile(shop=SHOP)

    def run(tests: str, options: str = "", mode: str = "auto") -> pytest.RunResult:
        pytester.makeini(INI.format(mode=mode) + options)
        pytester.makepyfile(test_shop=tests)
        return pytester.runpytest_subprocess(*_QUICKLY, timeout=300)

    return run


@pytest.mark.parametrize(("mode", "mark"), [("auto", ""), ("strict", "@pytest.mark.asyncio")])
def test_each_test_has_a_database_of_its_own_whose_jobs_it_runs(
    run: Callable[..., pytest.RunResult], mode: str, mark: str
) -> None:
    run(DRAINED.format(mark=mark), "joex_app = shop:app", mode).assert_outcomes(passed=3)


def test_fixtures_of_the_user_replace_these(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester, database_url: str
) -> None:
    pytester.makeconftest(f"""
import pytest, shop

@pytest.fixture(scope="session")
def joex_app():
    return shop.app

@pytest.fixture
def joex_url():
    return {database_url!r}
""")
    run("""
async def test_an_order_is_booked(joex_client, joex_drain):
    await joex_client.submit("orders.book", {"order": 7})
    assert [job.result for job in await joex_drain(queues=["default"])] == [7]
    await joex_client.submit("orders.book", {"order": 8})
    async with joex_client.acquire() as connection:
        assert [job.result for job in await joex_drain(connection)] == [8]
""").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "joex_app: name your app in pytest's configuration, such as joex_app = shop.tasks:app"),
        ("joex_app = market:app", "joex_app: there is no module 'market'"),
    ],
)
def test_an_app_that_can_not_be_found_is_one_line(
    run: Callable[..., pytest.RunResult], options: str, told: str
) -> None:
    result = run("def test_it(joex_app): pass", options)
    result.assert_outcomes(errors=1)
    assert told in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_what_a_killed_session_has_left_behind_goes(
    run: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    """Also its server, which the next session uses and stops."""
    killed = run("""
import os, pathlib, signal

def test_it(joex_url):
    pathlib.Path("url").write_text(joex_url)
    os.kill(os.getpid(), signal.SIGKILL)
""")
    assert killed.ret == -9
    left = (pytester.path / "url").read_text()
    run(f"""
import asyncpg, pytest

async def test_it(joex_url):
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect({left!r})
""").assert_outcomes(passed=1)
    server = subprocess.run(["pgrep", "-f", str(left.partition("host=")[2])], capture_output=True, check=False)
    assert server.returncode == 1, server.stdout


def test_a_session_that_asks_for_no_fixture_imports_nothing_of_joex() -> None:
    program = """
import sys, pytest
class Look:
    def pytest_sessionfinish(self):
        print(sorted(name for name in sys.modules if name.startswith(("joex", "asyncpg", "pydantic"))))
pytest.main(["-p", "no:cacheprovider", "-q", "--co", "."], plugins=[Look()])
"""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run([sys.executable, "-c", program], cwd=empty, capture_output=True, text=True, check=False)
    assert "['joex', 'joex.pytest_plugin']" in done.stdout, done.stdout + done.stderr
