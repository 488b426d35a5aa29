"""The first pools of the chart: whatever is in the ConfigMap, the other pools are applied."""

import json
import logging
from typing import Any

import yaml

from joex_operator.cluster.bootstrap_pools import apply_bootstrap_pools
from tests.unit.joex_operator.builders import manifest

_ALIASES = "".join(f"  a{nr}: &a{nr} [{', '.join([f'*a{nr - 1}'] * 10)}]\n" for nr in range(1, 6))


class Api:
    """An API server with a ConfigMap, which notes what is applied."""

    def __init__(self, **data: str) -> None:
        self.data = data
        self.applied: list[str] = []

    async def get(self, _path: str) -> dict[str, Any]:
        return {"metadata": {"name": "first", "uid": "u"}, "data": self.data}

    async def patch(self, path: str, body: Any, *_: Any, **__: Any) -> None:
        json.dumps(body, allow_nan=False).encode()
        self.applied.append(path.rpartition("/")[2])


async def test_a_pool_that_can_not_be_read_is_told_in_a_line_and_stops_no_other(caplog):
    wrong = {
        "date": "2026-02-30",
        "deep": "a: " + "[" * 2000 + "]" * 2000,
        "deletion": yaml.safe_dump(manifest(metadata={"deletionTimestamp": "yesterday"})),
        "metadata": yaml.safe_dump({**manifest(), "metadata": ["a"]}),
        "aliases": yaml.safe_dump(manifest("bomb"))
        + "  template:\n    a0: &a0 [x]\n"
        + _ALIASES.replace("  a", "    a"),
        "number": "a: " + "1" * 5000,
        "set": yaml.safe_dump(manifest("set", template={"x": {1, 2}})),
    }
    api: Any = Api(**wrong, good=yaml.safe_dump(manifest("good")), empty="", date_in_text="---\n" + _dated())
    with caplog.at_level(logging.ERROR, "joex.operator"):
        assert await apply_bootstrap_pools(api, "joex", "first")
    assert api.applied == ["good", "dated"]
    assert [line.split(": ")[0] for line in caplog.messages] == [f"ConfigMap first, {key}" for key in wrong]
    assert not [line for line in caplog.messages if "\n" in line]


def _dated() -> str:
    return yaml.safe_dump(manifest("dated")).replace("prod", "prod\n  annotations: {since: 2026-02-03}")
