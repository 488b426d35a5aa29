"""The chart's files agree with each other and with the project. The tier cluster tests the rendering by helm."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "joex"
FREE = (
    "pool.spec",
    "podSecurityContext",
    "securityContext",
    "metrics.grafanaDashboard.labels",
    "postgresql.resources",
    "operator.resources",
    "console.resources",
)
"""Values whose keys are defined elsewhere: by a pool, by Kubernetes."""


def test_the_chart_is_for_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == project["version"]


def test_the_schema_knows_each_value_and_no_other() -> None:
    """Besides the condition of a chart that is the dependency of another one."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(_known(schema, "")) == sorted([*_given(values, ""), "enabled"])


def test_each_value_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "reference" / "chart.md").read_text()
    rows = text.partition("| value |")[2].partition("\n\n")[0].splitlines()[2:]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(key for row in rows for key in _documented(row)) == sorted(_given(values, ""))


def _documented(row: str) -> Iterator[str]:
    """The values of a row; a value that begins with a dot has the parent of the first."""
    first, *others = re.findall(r"`([\w.]+)`", row.split("|")[1])
    yield first
    for other in others:
        yield first.rpartition(".")[0] + other if other.startswith(".") else other


def _known(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The values of a schema, down to free keys. Checks that the schema is strict on the way."""
    if "properties" not in schema or path in FREE:
        yield path
        return
    assert schema["additionalProperties"] is (path == "global"), path  # a parent has values for its other charts there
    for name, part in schema["properties"].items():
        yield from _known(part, f"{path}.{name}".removeprefix("."))


def _given(values: Any, path: str) -> Iterator[str]:
    if not isinstance(values, dict) or not values or path in FREE:
        yield path
        return
    for name, part in values.items():
        yield from _given(part, f"{path}.{name}".removeprefix("."))
