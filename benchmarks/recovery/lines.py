"""What the lines of a worker tell of its jobs, each of which has a group of its own; and URLs through a proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlsplit

from benchmarks.peers.drive import Line
from tests.support.proxy import Proxy

DRIVER = {"RECOVERY": "1"}
"""The environment of the drivers."""


def begun(lines: Sequence[Line]) -> dict[str, float]:
    """When the last run of each job began, by its group."""
    return {line["group"]: line["began"] for line in lines if "began" in line}


def disturbed(lines: Sequence[Line], groups: Sequence[str]) -> int:
    """How many of these jobs did not run once, from the beginning to the end.

    >>> whole = [{"group": "a", "began": 1.0}, {"group": "a", "end": 2.0}]
    >>> disturbed(whole, ["a"]), disturbed([*whole, {"group": "a", "began": 3.0}], ["a"]), disturbed(whole[:1], ["a"])
    (0, 1, 1)
    """
    starts = Counter(line["group"] for line in lines if "began" in line)
    ends = Counter(line["group"] for line in lines if "end" in line)
    return sum((starts[group], ends[group]) != (1, 1) for group in groups)


def through(url: str, link: Proxy) -> str:
    """The URL of a database through a proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{link.port}")).geturl()
