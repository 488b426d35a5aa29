"""The arithmetic of the benchmarks: fairness, advantages, and the parts of the page."""

import doctest

import pytest

from benchmarks import page, report
from benchmarks.peers import race
from benchmarks.peers.drive import RaceError
from benchmarks.peers.figures import Run, all_backlogged
from benchmarks.peers.race import Entrants
from benchmarks.peers.speed import DRAIN, MEDIAN
from benchmarks.peers.systems import JOEX, PEERS
from benchmarks.peers.verdicts import verdicts
from benchmarks.report import Figure


@pytest.mark.parametrize("module", [report])
def test_the_examples_are_true(module):
    assert doctest.testmod(module).failed == 0


def test_the_window_ends_when_the_first_group_has_nothing_left_that_waits():
    runs = [Run("a", 0, 1, 2), Run("b", 0, 1, 3), Run("a", 0, 2, 3), Run("b", 0, 4, 5)]
    assert all_backlogged(runs, {"a": 2, "b": 9}) == (1, 2)


def test_the_window_lasts_to_the_end_where_no_group_has_run_dry():
    runs = [Run("a", 0, 1, 2), Run("b", 0, 3, 4)]
    assert all_backlogged(runs, {"a": 2, "b": 2}) == (1, 3)


def test_verdicts_are_about_the_peers_that_were_measured():
    found = {(DRAIN, "joex"): 100.0, (DRAIN, "pgqueuer"): 50.0, (MEDIAN, "joex"): 2.0, (MEDIAN, "graphile-worker"): 4.0}
    assert [(figure.value, figure.met) for figure in verdicts(found)] == [(2.0, False), (0.5, True)]


def test_an_unknown_peer_is_named_with_those_there_are():
    with pytest.raises(ValueError, match=r"no peer 'celery'; choose from: pgqueuer, .*river"):
        race.choose("river,celery")
    assert [peer.name for peer in race.choose("river, awa")] == ["river", "awa"]


def test_systems_stand_side_by_side_and_against_joex():
    measured = [
        Figure("drain", 3000, "jobs/s", system="joex"),
        Figure("drain", 1000, "jobs/s", system="river"),
        Figure("wait", 2, "ms", system="joex"),
        Figure("wait", 5, "ms", system="river"),
        Figure("wait", 3, "ms", system="river --fair"),
        Figure("index", 0.5, "", system="joex"),
        Figure("index", 0.25, "", system="river"),
        Figure("drain", 500, "jobs/s"),
    ]
    assert report.side_by_side(measured) == [
        [["system", "drain (jobs/s)", "index"], ["joex", "3,000", "0.5"], ["river", "1,000", "0.25"]],
        [["system", "wait (ms)"], ["joex", "2"], ["river", "5"], ["river --fair", "3"]],
    ]
    assert report.advantages(measured) == [
        [["joex against", "drain"], ["river", "3 x"]],
        [["joex against", "wait"], ["river", "2.5 x"], ["river --fair", "1.5 x"]],
    ]


def test_the_page_has_what_was_measured_and_keeps_the_rest(tmp_path):
    before = page.write([Figure("take", 1.5, "ms", "below 2", met=True)], {"cpus": "2"}, tmp_path)
    text = before.read_text()
    assert "<!-- begin joex -->\n| what | value | unit | aim |  |\n" in text
    assert "| take | 1.5 | ms | below 2 | met |" in text
    assert "## What the figures don't say" in text


def test_the_page_of_a_race_has_its_tables_and_plots(tmp_path):
    measured = [Figure(DRAIN, 3000, "jobs/s", system="joex"), Figure(DRAIN, 1000, "jobs/s", system="river")]
    text = page.write(measured, {"cpus": "2", "river": "1.0 on go 1"}, tmp_path).read_text()
    assert "- river: 1.0 on go 1" in text
    assert f"| system | {DRAIN} (jobs/s) |" in text
    assert "| joex | 3,000 |" in text
    assert "| river | 3 x |" in text
    assert sorted(path.name for path in (tmp_path / "benchmarks").iterdir()) == ["drain.png", "drain.svg"]


async def test_a_peer_that_is_not_installed_is_told_of_and_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await race.versions([PEERS["river"]]) == {}
    entrants = Entrants([PEERS["river"]])
    await entrants.install()
    [figure] = entrants.figures()
    assert figure.what == "river can't be measured: Go is not installed: there is no go on the PATH"
    assert figure.met is False


async def test_a_peer_that_fails_is_told_of_and_left_out():
    entrants, turns = Entrants([JOEX, PEERS["river"], PEERS["awa"]]), []

    async def turn(system):
        turns.append(system.name)
        if system.name == "river":
            raise RaceError("river: first line\nit ended")
        return {DRAIN: float(len(turns))}

    await entrants.turns("a turn", turn)
    await entrants.turns("a turn", turn)
    assert turns == ["joex", "river", "awa", "joex", "awa"]
    assert [(figure.what, figure.system, figure.value) for figure in entrants.figures()][:2] == [
        (DRAIN, "joex", 2.5),
        (DRAIN, "awa", 4),
    ]
    assert entrants.figures()[-1].what == "river can't be measured: it ended"


def test_a_page_without_a_place_for_the_figures_is_told_of(monkeypatch, tmp_path):
    (tmp_path / "text.md").write_text("<!-- begin settings -->\n<!-- end settings -->\n")
    monkeypatch.setattr(page, "_TEXT", tmp_path / "text.md")
    with pytest.raises(ValueError, match="expected <!-- begin joex --> and <!-- end joex --> once; found 0"):
        page.write([Figure("take", 1.5, "ms")], {}, tmp_path)
