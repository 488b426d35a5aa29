"""The files in the commands of README and docs exist, and the secret that they copy is the chart's.

The commands that the pages of the console show exist, with their options.
"""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from joex.cli.app import app
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


def test_the_commands_that_the_pages_of_the_console_show_exist() -> None:
    found = [
        (path.name, command)
        for path in sorted((ROOT / "executor" / "joex" / "console" / "templates").glob("*.html"))
        for command in re.findall(r"<code>(joex .*?)</code>|check\((\"joex .*?), \"joex\.\w+\"\)", path.read_text())
    ]
    assert len(found) > 15
    for page, (in_code, in_check) in found:
        shown = re.sub(r"\{\{.*?\}\}", "NAME", in_code) or re.sub(r'" ~ .*?( ~ "|$)', "NAME", in_check).strip('"')
        for one in shown.split(" | "):
            assert _complaint(shlex.split(one)) is None, (page, one, _complaint(shlex.split(one)))


def _complaint(words: list[str]) -> str | None:
    """What the command line does not know in a command; None: it knows all."""
    command = typer.main.get_command(app)
    for nr, word in enumerate(words[1:], 1):
        if word == "--":
            break
        if word.startswith("--"):
            if not any(word in param.opts for param in command.params):
                return f"no option {word}"
        elif hasattr(command, "commands") and not words[nr - 1].startswith("--"):
            if word not in command.commands:
                return f"no command {word}"
            command = command.commands[word]
    return None
