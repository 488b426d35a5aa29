"""The schedule of `make chaos`: a seed repeats it, and all faults and acts are in it."""

from itertools import pairwise

from tests.support.chaos.schedule import LIMITED, PROCESS_FAULTS, SERVER_FAULTS, faults, load


def test_a_seed_repeats_faults_and_load_and_another_one_has_others():
    assert faults(1, 600, 6) == faults(1, 600, 6)
    assert list(load(1, 60, 4)) == list(load(1, 60, 4))
    assert faults(1, 600, 6) != faults(2, 600, 6)
    assert list(load(1, 60, 4)) != list(load(2, 60, 4))


def test_each_kind_of_fault_comes_before_any_comes_again():
    for of_processes, of_servers in (faults(seed, 600, 6) for seed in range(20)):
        for found, kinds in ((of_processes, PROCESS_FAULTS), (of_servers, SERVER_FAULTS)):
            for start in range(0, len(found) - len(kinds), len(kinds)):
                assert {fault.kind for fault in found[start : start + len(kinds)]} == set(kinds)
        assert {fault.target for fault in of_processes} == set(range(6))


def test_faults_end_in_time_and_those_of_servers_come_one_after_the_other():
    for of_processes, of_servers in (faults(seed, 600, 6) for seed in range(20)):
        assert all(fault.at >= 0 and fault.at + fault.seconds <= 600 for fault in of_processes + of_servers)
        assert all(one.at <= other.at for one, other in pairwise(of_processes))
        assert all(one.at + one.seconds <= other.at for one, other in pairwise(of_servers))


def test_the_load_has_all_acts_and_tasks_at_its_rate_and_jobs_of_limited_groups_are_exclusive():
    steps = list(load(3, 600, 4))
    assert 2000 < len(steps) < 2800
    assert len({step.act for step in steps}) == 10
    assert {step.task for step in steps} == {"work", "thread", "exclusive", "commit", "flaky", "fail"}
    assert {step.task for step in steps if step.group in LIMITED} == {"exclusive"}
    assert all(one.at <= other.at <= 600 for one, other in pairwise(steps))
