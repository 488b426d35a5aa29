"""The files in the commands of README and docs exist, and the secret that they copy is the chart's."""

import re
from pathlib import Path

import pytest
import yaml

from joex_operator.api.names import ALLOWED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/joex-up.md", "docs/reference/chart.md"])
def test_the_files_of_a_pages_commands_are_there(page: str) -> None:
    commands = re.findall(
        r"^\$ (?:kubectl apply|joex up|joex simulate|helm install \w+) .*$", (ROOT / page).read_text(), re.MULTILINE
    )
    named = {word for command in commands for word in command.split() if word.startswith(("examples/", "charts/"))}
    assert named
    for path in named:
        assert (ROOT / path).exists(), path
    assert not [command for command in commands if re.search(r"-f (?!examples/)\S+\.yaml", command)]


def test_the_secret_of_the_example_pool_is_the_one_that_the_page_makes() -> None:
    pool = yaml.safe_load((ROOT / "examples" / "joexpool.yaml").read_text())
    for page in ("README.md", "docs/learn/cluster.md"):
        name, text = pool["spec"]["database"]["secretName"], (ROOT / page).read_text()
        assert f"$ kubectl create secret generic {name} " in text
        assert f"$ kubectl label secret {name} {'='.join(ALLOWED)}\n" in text
    trial = (ROOT / "charts" / "joex" / "templates" / "postgresql.yaml").read_text()
    assert re.search(r"^  url: ", trial, re.MULTILINE)
