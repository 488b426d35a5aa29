"""The workflows that the owner of the repository may switch on, as far as a test can read them."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = r"[\w-]+(/[\w-]+)+@([0-9a-f]{40}|v\d+|release/v\d+)"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_versions_and_targets_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(PINNED, step["uses"]), step
        for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
            assert target in targets
    assert workflow["permissions"] == {"contents": "read"}, "a job that needs more says so itself"


def test_a_release_waits_until_the_owner_has_switched_it_on() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    for name, job in jobs.items():
        assert job.get("if") == "vars.RELEASES == 'on'" or job["needs"] in jobs, name
