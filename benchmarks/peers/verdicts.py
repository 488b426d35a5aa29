"""The aims of Joex in the race, and whether it reaches them."""

from __future__ import annotations

from benchmarks.peers.sharing import JAIN
from benchmarks.peers.speed import BATCHES, DRAIN, DRAIN_MANY, LATE, MEDIAN, SINGLY
from benchmarks.report import Figure

FAIR = " --fair"
"""Ends the name of a system that ran with its settings for fairness."""

Found = dict[tuple[str, str], float]
"""Values by figure and system."""

_JOEX = "joex"
_DRAIN_RATIOS = [
    (DRAIN, "graphile-worker", 1.2),
    (DRAIN, "pgqueuer", 2.5),
    (DRAIN, "awa", 5.0),
    (DRAIN_MANY, "graphile-worker", 1.0),
]
_JAIN_AIM = 0.99


def verdicts(found: Found) -> list[Figure]:
    """Joex against its aims; without peers that were not measured."""
    return [*_drains(found), *_submissions(found), *_latencies(found), *_fairness(found)]


def _drains(found: Found) -> list[Figure]:
    return [
        Figure(f"{what}: joex against {peer}", ratio, "x", f"at least {aim:g}", ratio >= aim)
        for what, peer, aim in _DRAIN_RATIOS
        if (ratio := _ratio(found, what, peer)) is not None
    ]


def _submissions(found: Found) -> list[Figure]:
    figures = []
    for what in (BATCHES, SINGLY):
        others = {system: value for (name, system), value in found.items() if name == what and system != _JOEX}
        if (what, _JOEX) in found and others:
            best = max(others, key=lambda system: others[system])
            ratio = found[what, _JOEX] / others[best]
            figures.append(Figure(f"{what}: joex against the fastest peer, {best}", ratio, "x", "above 1", ratio > 1))
    return figures


def _latencies(found: Found) -> list[Figure]:
    peer = "graphile-worker"
    return [
        Figure(f"{what}: joex against {peer}", ratio, "x", "at most 1", ratio <= 1)
        for what in (MEDIAN, LATE)
        if (ratio := _ratio(found, what, peer)) is not None
    ]


def _fairness(found: Found) -> list[Figure]:
    if (JAIN, _JOEX) not in found:
        return []
    index = found[JAIN, _JOEX]
    return [Figure(f"{JAIN}: joex", index, "", f"at least {_JAIN_AIM:g}", index >= _JAIN_AIM)]


def _ratio(found: Found, what: str, peer: str) -> float | None:
    if (what, _JOEX) not in found or (what, peer) not in found:
        return None
    return found[what, _JOEX] / found[what, peer]
