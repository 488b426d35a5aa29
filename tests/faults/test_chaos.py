"""Two minutes of `make chaos`, with another seed each time: `make soak` runs them."""

import random
from pathlib import Path

import pytest

from tests.support.chaos import report
from tests.support.chaos.session import Plan, run

SECONDS = 120


@pytest.mark.heavy
@pytest.mark.soak
async def test_two_minutes_of_random_faults_and_load_break_no_guarantee(tmp_path: Path) -> None:
    plan = Plan(seed=random.randrange(10**6), seconds=SECONDS)
    print(plan)
    result = await run(plan, tmp_path, print)
    print(_logs(tmp_path))
    assert result.breaches == [], report.to_text(result)


def _logs(folder: Path) -> str:
    """The last lines of all processes."""
    return "\n".join(f"{log.name}:\n{log.read_text()[-20_000:]}" for log in sorted(folder.glob("*.log")))
