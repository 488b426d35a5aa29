"""The arithmetic of the benchmarks: fairness, advantages, and the parts of the page."""

import doctest
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks import page, report
from benchmarks.__main__ import MEASUREMENTS
from benchmarks.peers import race
from benchmarks.peers.drive import Line, RaceError
from benchmarks.peers.figures import Run, all_backlogged
from benchmarks.peers.race import Entrants
from benchmarks.peers.speed import DRAIN, MEDIAN
from benchmarks.peers.systems import JOEX, PEERS
from benchmarks.peers.verdicts import verdicts
from benchmarks.recovery import lines
from benchmarks.recovery.documented import DOCUMENTED
from benchmarks.recovery.lost import FAULTS, GIVE_UP, TOLD
from benchmarks.recovery.measure import LOST, OUTAGES, lost_figures, outage_figures
from benchmarks.recovery.outage import Passed
from benchmarks.report import Figure
from benchmarks.storm import figures as storm
from benchmarks.storm.observed import MIB, Sample
from benchmarks.storm.run import Seen, Size
from tests.support.proxy import Proxy


@pytest.mark.parametrize("module", [report, lines, storm])
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


def test_the_page_has_what_was_measured_and_keeps_the_rest(monkeypatch, tmp_path):
    measured = [Figure(name, 1.5, "ms", "below 2", met=True, measurement=name) for name in (*MEASUREMENTS, "take")]
    every = page.write(measured, {"cpus": "2"}, tmp_path).read_text()
    for name in MEASUREMENTS:
        assert f"<!-- begin joex {name} -->\ncpus 2\n\n| what | value | unit | aim |  |\n" in every
    monkeypatch.setattr(page, "_TEXT", tmp_path / "benchmarks.md")
    later = page.write([replace(measured[0], value=1.25)], {"cpus": "4"}, tmp_path).read_text()
    assert "<!-- begin joex take -->\ncpus 4\n\n" in later
    assert "\n| take | 1.25 | ms | below 2 | met |\n<!-- end joex take -->" in later
    assert later.count("| 1.5 |") == every.count("| 1.5 |") - 2  # of the others nothing has changed


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
    with pytest.raises(ValueError, match="expected <!-- begin joex take --> and <!-- end joex take --> once; found 0"):
        page.write([Figure("take", 1.5, "ms", measurement="take")], {}, tmp_path)


def _lost_workers():
    found = {(fault.what, system): [9.0, 1.0, 2.0] for fault in FAULTS for system in ("joex", "pgqueuer")}
    found[TOLD.what, "joex"] = [0.1]
    return lost_figures(found, ["joex", "pgqueuer", "river"])


def _outages(disturbed):
    passed = [Passed(seconds=0.5, disturbed=0, exits=0), Passed(seconds=11, disturbed=disturbed, exits=1)]
    names = ("PostgreSQL restarted", "standby promoted")
    return outage_figures({(what, "joex"): passed for what in names}, ["joex"])


def test_lost_workers_have_median_and_worst_and_a_documented_time_says_so():
    [table] = report.side_by_side(_lost_workers(), LOST)
    assert [row[:2] for row in table] == [
        ["system", "worker killed (kill -9) (s)"],
        ["joex", "2 (worst 9)"],
        ["pgqueuer", "2 (worst 9)"],
        ["river", "3,600, by its documents"],
    ]
    assert report.side_by_side(_lost_workers()) == []


def test_a_recovery_that_the_benchmark_did_not_see_is_a_lower_bound():
    figures = lost_figures({(fault.what, "awa"): [3.0, GIVE_UP, GIVE_UP] for fault in FAULTS}, ["awa"])
    assert report.side_by_side(figures, LOST)[0][1][1] == "over 150"
    figures = lost_figures({(fault.what, "awa"): [3.0, 4.0, GIVE_UP] for fault in FAULTS}, ["awa"])
    assert report.side_by_side(figures, LOST)[0][1][1] == "4 (worst 150)"


def test_the_goals_of_recovery_are_about_the_worst_of_joex():
    goals = [(figure.what, figure.value, figure.met) for figure in _lost_workers() if not figure.system]
    assert goals[0] == ("worker killed (kill -9), worst", 9, True)
    assert goals[-1] == ("its pod gone, as the operator says (pod_gone), worst", 0.1, True)
    late = lost_figures({(fault.what, "joex"): [1.0, 50.0] for fault in (*FAULTS, TOLD)}, ["joex"])
    assert [figure.met for figure in late if not figure.system] == [False] * 5


def test_disturbed_runs_are_counted_over_all_outages_and_none_is_the_goal():
    figures = _outages(3)
    assert report.side_by_side(figures, OUTAGES)[0][1] == ["joex", *["5.75 (worst 11)", "3", "1"] * 2]
    assert [(figure.what, figure.met) for figure in figures if not figure.system][:2] == [
        ("PostgreSQL restarted: first new job, worst", False),
        ("PostgreSQL restarted: runs disturbed, of 8", False),
    ]
    assert [figure.met for figure in _outages(0) if figure.aim == "0"] == [True, True]


def test_without_joex_there_are_no_goals_of_recovery():
    assert {figure.system for figure in lost_figures({}, ["river"])} == {"river"}


def test_the_part_of_recovery_has_its_tables_sources_and_goals_and_the_others_stay(tmp_path):
    before = page._TEXT.read_text()
    text = page.write([*_lost_workers(), *_outages(0)], {"cpus": "2", "load": "1"}, tmp_path).read_text()
    part = text.partition("<!-- begin recovery -->")[2].partition("<!-- end recovery -->")[0]
    assert part.startswith("\n- cpus: 2\n- load: 1\n\n| system | worker killed (kill -9) (s) |")
    assert f"- river: {DOCUMENTED['river'].text}\n" in part
    assert part.count("| what | value | unit | aim |  |") == 1
    for name in ("machine", "race", "ratios", "joex"):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        assert text.partition(begin)[2].partition(end)[0] == before.partition(begin)[2].partition(end)[0]


def test_a_url_leads_through_a_proxy():
    link = Proxy(5432)
    link.port = 6000
    assert lines.through("postgresql://postgres@127.0.0.1:5432/one", link) == "postgresql://postgres@127.0.0.1:6000/one"


def test_the_last_start_of_a_job_counts():
    told: list[Line] = [
        {"ready": True},
        {"group": "a", "began": 1.0},
        {"group": "a", "began": 5.0},
        {"group": "a", "end": 6.0},
    ]
    assert lines.begun(told) == {"a": 5.0}


async def test_of_systems_that_left_each_is_told_of_in_the_table_it_left():
    entrants = Entrants([PEERS["river"]])
    entrants.leave(PEERS["river"], RaceError("river: it ended"))
    assert entrants.here == []
    assert [(figure.what, figure.table) for figure in entrants.missing(LOST)] == [
        ("river can't be measured: river: it ended", LOST)
    ]


STORM = Size(processes=2, each=5, together=1, seconds=600, longest=40, every=20)


def _storm():
    """What is seen of a storm in which all goes well."""
    samples = [
        Sample(at, 10 * at, MIB + 1000 * at, others=MIB, largest="plan", dead=5, process=80 * MIB, session=6 * MIB)
        for at in range(30, 601, 30)
    ]
    return Seen(
        rest={"lease": 10, "chores": 10, "services": 20},
        busy=[{"lease": 10, "tasks": 60}, {"lease": 10, "tasks": 40}],
        samples=samples,
        happened=Counter(killed=5, drained=3),
        moved_on=[6.5, 7.5],
        submitted=6000,
        done=6000,
        shares=[10.0] * 200,
        waits=[100.0, 200.0],
        others_waits=[4000.0],
    )


def _missed(seen, pooler=""):
    return [figure.what for figure in storm.storm_figures(STORM, seen, pooler) if figure.met is False]


def test_a_storm_without_harm_meets_its_goals():
    found = {figure.what: figure for figure in storm.storm_figures(STORM, _storm()) if not figure.system}
    assert _missed(_storm()) == []
    assert "10 executors, with 5 killed, 3 drained, 0 stopped: jobs submitted" in found
    assert found["table of jobs: bytes that a further job adds, second half against first"].value == pytest.approx(1)
    assert found["tables that keep no jobs: growth in 7.0 minutes"].value == 0
    assert found["connections of an idle executor"].value == 4
    assert found["connections of an executor in the storm, most"].value == 7
    assert found["the same p50, against a job of a backlogged group"].value == pytest.approx(150 / 4000)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"done": 5999}, "jobs lost"),
        ({"done": 5999, "failed": Counter({"failed: it": 1})}, "jobs that failed"),
        ({"twice": 1}, "second effects of a job"),
        ({"disowned": 1}, "living executors declared dead"),
        ({"failures": 1}, "processes that ended by themselves, or with an error"),
        ({"moved_on": [1.0, 21.0]}, "kill -9 to the last job taken from the dead, worst"),
        ({"shares": [10.0] * 190 + [20.0] * 10}, "Jain's index of 200 backlogged groups"),
        ({"rest": {"lease": 41}}, "connections of an idle executor"),
        ({"busy": [{"tasks": 111}]}, "connections of an executor in the storm, most"),
    ],
)
def test_a_storm_misses_a_goal(change, missed):
    assert _missed(replace(_storm(), **change)) == [missed]


@pytest.mark.parametrize(
    ("grown", "missed"),
    [
        ("others", "tables that keep no jobs: growth in 7.0 minutes"),
        ("process", "memory of a process with 5 executors: growth in 7.0 minutes"),
        ("session", "memory of a session of the server: growth in 7.0 minutes"),
    ],
)
def test_what_grows_by_a_tenth_after_the_warm_up_is_not_flat(grown, missed):
    def after(warm_up):
        samples = [
            replace(one, **{grown: round(getattr(one, grown) * (1 + 0.12 * max(one.at - warm_up, 0) / 420))})
            for one in _storm().samples
        ]
        return replace(_storm(), samples=samples)

    assert _missed(after(180)) == [missed]
    before = [replace(one, **{grown: MIB // 2}) if one.at < 180 else one for one in _storm().samples]
    assert _missed(replace(_storm(), samples=before)) == []


def test_a_table_of_jobs_that_swells_is_not_linear():
    samples = [replace(one, jobs=round(MIB + one.at**2)) for one in _storm().samples]
    assert _missed(replace(_storm(), samples=samples)) == [
        "table of jobs: bytes that a further job adds, second half against first"
    ]


def test_through_a_pooler_its_sessions_count_and_the_dead_have_five_leases():
    seen = replace(
        _storm(), rest={"clients": 40, "sessions": 9}, busy=[{"clients": 70, "sessions": 51}], moved_on=[79.0]
    )
    assert _missed(seen, "PgBouncer") == [
        "through PgBouncer: sessions of the server for executors in the storm, most (PgBouncer may open 50)"
    ]


def test_the_part_of_the_storm_has_its_figures_and_five_moments_of_each_run(tmp_path):
    pooled = replace(_storm(), rest={"clients": 40, "sessions": 9}, busy=[{"clients": 70, "sessions": 9}])
    figures = [*storm.storm_figures(STORM, _storm()), *storm.storm_figures(STORM, pooled, "PgBouncer")]
    text = page.write(figures, {"cpus": "2", "load": "1"}, tmp_path).read_text()
    part = text.partition("<!-- begin storm -->")[2].partition("<!-- end storm -->")[0]
    assert part.startswith("\n- cpus: 2\n- load: 1\n\n| what | value | unit | aim |  |")
    assert "| through PgBouncer: jobs lost | 0 | jobs | 0 | met |" in part
    assert "| after | jobs finished | table of jobs (MiB) |" in part
    moments = [line.split(" | ")[0] for line in part.splitlines() if " min" in line and "growth" not in line]
    assert moments == [f"| {at}.0 min{run}" for run in ("", ", PgBouncer") for at in (2, 4, 6, 8, 10)]
