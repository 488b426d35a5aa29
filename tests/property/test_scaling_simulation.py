"""Pools under random loads, deaths, orders and operator crashes, in a small model of the world.

The model itself fails when an executor that may be busy is deleted.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from joex_operator.decide.actions import AskDrain, CreateReplica, Why
from joex_operator.decide.history import History
from joex_operator.decide.plan import decide
from joex_operator.decide.replicas import Phase, asked_for, ready
from joex_operator.decide.rollout import may_be_missing, surge
from tests.support.soak import examples
from tests.unit.joex_operator.builders import autoscaled, pool
from tests.unit.joex_operator.world import World

WINDOW = 10

pods = st.integers(0, 1000)


class Pool(RuleBasedStateMachine):
    """Any events, in any order."""

    @initialize(
        least=st.integers(0, 2),
        most=st.integers(2, 6),
        pool_size=st.sampled_from([1, 2, 5]),
        rollout=st.sampled_from([{}, {"maxSurge": 0, "maxUnavailable": 2}, {"maxSurge": 3, "maxUnavailable": 0}]),
    )
    def begin(self, least, most, pool_size, rollout):
        self.world = World(pool(poolSize=pool_size, scaling=autoscaled(least, most, WINDOW), rollout=rollout))
        self.history = History()
        self.decisions = []

    # The operator.

    @rule(done=st.integers(0, 12), later=st.integers(0, 3))
    def operator_looks_and_is_cut_off(self, done, later):
        """It acts on slightly old observations, and may be killed between any two actions."""
        self.look(done, later)

    @rule(seconds=st.integers(1, 8))
    def operator_works(self, seconds):
        for _ in range(seconds):
            self.look()
            self.world.tick()

    @precondition(lambda self: self.decisions)
    @rule(age=st.integers(0, 9))
    def an_operator_that_was_stopped_goes_on(self, age):
        """It carries out an old decision, and does not know that another operator leads now."""
        for action in self.decisions[-1 - age % len(self.decisions)].actions:
            self.world.apply(action)

    def look(self, done=None, later=0):
        seen = self.world.observe()
        # Only stored state is known: a step may be that of an operator that has just started.
        stored = History.from_dict(self.history.to_dict())
        plan = decide(self.world.pool, seen, stored, self.world.now)
        self.history = plan.sizing.history
        self.decisions = [*self.decisions[-9:], plan]
        for _ in range(later):
            self.world.tick()
        for action in plan.actions[:done]:
            self.world.apply(action)
        return plan

    # The world.

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds):
        for _ in range(seconds):
            self.world.tick()

    @rule(jobs=st.lists(st.integers(1, 30), min_size=1, max_size=20))
    def jobs_are_submitted(self, jobs):
        self.world.submit(jobs)

    @rule(which=pods, how=st.sampled_from(["kill_process", "evict_pod", "delete_pod", "silence_node"]))
    def a_pod_dies(self, which, how):
        if found := sorted(self.world.pods):
            getattr(self.world, how)(self.world.pods[found[which % len(found)]])

    @rule()
    def silent_nodes_return(self):
        self.world.return_nodes()

    @rule(room=st.integers(0, 6))
    def the_cluster_has_room_for_so_many_pods(self, room):
        self.world.room = room

    @rule()
    def the_database_goes_or_returns(self):
        self.world.database_is_up = not self.world.database_is_up

    # Users.

    @rule(template=st.sampled_from(["1", "2", "3"]))
    def the_template_changes(self, template):
        self.world.template = template

    @rule(replicas=st.none() | st.integers(0, 4))
    def the_size_is_fixed(self, replicas):
        self.change(replicas=replicas)

    @rule(suspend=st.booleans())
    def it_is_suspended_or_not(self, suspend):
        self.change(suspend=suspend)

    @rule(which=pods, replicas=st.sampled_from([0, 2]))
    def somebody_scales_a_deployment(self, which, replicas):
        if found := sorted(self.world.deployments):
            self.world.deployments[found[which % len(found)]].replicas = replicas

    @rule(which=pods)
    def somebody_deletes_a_deployment(self, which):
        if found := sorted(self.world.deployments):
            name = found[which % len(found)]
            del self.world.deployments[name]
            for pod in self.world.pods.values():
                pod.terminating |= pod.replica == name

    def change(self, **changes):
        spec = self.world.pool.spec.model_copy(update=changes)
        self.world.pool = replace(self.world.pool, spec=spec)

    # Invariants.

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def no_job_is_lost_and_none_is_run_twice(self):
        world = self.world
        assert world.submitted == world.finished + world.held + len(world.queue)

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def no_step_makes_more_executors_than_there_may_be(self):
        seen = self.world.observe()
        plan = decide(self.world.pool, seen, self.history, self.world.now)
        asked = {action.replica for action in plan.actions if isinstance(action, AskDrain)}
        there = [replica for replica in asked_for(seen.replicas) if replica.name not in asked]
        created = sum(isinstance(action, CreateReplica) for action in plan.actions)
        beyond = surge(self.world.pool.spec.rollout, plan.sizing.target)
        assert not created or len(there) + created <= plan.sizing.most + beyond

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def a_rollout_leaves_as_many_as_may_not_be_missing_and_drains_none_before_another_has_proved_the_template(self):
        seen, rollout = self.world.observe(), self.world.pool.spec.rollout
        plan = decide(self.world.pool, seen, self.history, self.world.now)
        asked = {action.replica: action.why is Why.TEMPLATE for action in plan.actions if isinstance(action, AskDrain)}
        left = [replica for replica in ready(seen.replicas) if replica.name not in asked]
        if any(asked.get(replica.name) for replica in ready(seen.replicas)):
            target = plan.sizing.target
            assert len(left) >= target - may_be_missing(rollout, target)
            assert surge(rollout, target) == 0 or any(replica.template == seen.template for replica in left)

    # The end.

    def teardown(self):
        if not hasattr(self, "world"):
            return
        world = self.world
        world.database_is_up = True
        world.room = None
        world.return_nodes()
        self.change(suspend=False)
        if world.pool.spec.replicas == 0:
            self.change(replicas=None)
        work = sum(world.queue) + sum(sum(executor.held) for executor in world.living.values())
        self.let_it_settle(300 + 2 * work)  # even one executor with one slot gets it done
        assert world.finished == world.submitted, "all work is done"
        self.assert_settled()
        self.assert_deletion_ends()

    def let_it_settle(self, most):
        quiet = 0
        for _ in range(most):
            quiet = 0 if self.look().actions or self.world.held or self.world.queue else quiet + 1
            self.world.tick()
            if quiet > WINDOW + 3:
                return
        pytest.fail("it does not come to rest")

    def assert_settled(self):
        spec, seen = self.world.pool.spec, self.world.observe()
        wanted = spec.scaling.min_replicas if spec.replicas is None else spec.replicas
        assert [replica.phase for replica in seen.replicas] == [Phase.IDLE] * wanted, (
            "just what is wanted, and nothing else"
        )
        assert all(replica.template == seen.template for replica in seen.replicas), "with the present template"
        assert all(replica.pods_wanted == 1 for replica in seen.replicas)
        assert not self.world.retired, "removed executors leave nothing behind"

    def assert_deletion_ends(self):
        world = self.world
        world.submit([7] * 5)
        for _ in range(10):
            self.look()
            world.tick()
        world.pool = replace(world.pool, deleted_at=world.now)
        for _ in range(100):
            self.look()
            if not world.observe().replicas:
                break
            world.tick()
        assert [world.deployments, world.pods, world.living, world.retired] == [{}, {}, {}, {}]
        self.no_job_is_lost_and_none_is_run_twice()


Pool.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestPool = Pool.TestCase
