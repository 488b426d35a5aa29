"""An operator that is not ready for long is not alive."""

import subprocess
import sys

from joex_operator.cluster.probes import LastingProblem


class World:
    now = 0.0
    wrong: str | None = None


def test_a_problem_that_lasts_is_told_after_its_time_and_one_that_passes_never_is() -> None:
    world = World()
    lasting = LastingProblem(lambda: world.wrong, 600, lambda: world.now)
    assert (lasting.now(), lasting.for_too_long()) == (None, None)
    world.wrong, world.now = "no answer", 1000.0
    assert (lasting.now(), lasting.for_too_long()) == ("no answer", None)
    world.now = 1600.0
    assert lasting.for_too_long() is None
    world.now = 1601.0
    assert lasting.for_too_long() == "not ready for 601 s: no answer"
    world.wrong = None
    assert lasting.for_too_long() is None
    world.wrong = "something else"
    assert lasting.for_too_long() is None, "its time starts again"


def test_an_operator_starts_without_loading_what_only_executors_serve() -> None:
    code = "import sys, joex_operator.cluster.operator; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "uvicorn" in done.stdout.split()
    assert "fastapi" not in done.stdout.split()
