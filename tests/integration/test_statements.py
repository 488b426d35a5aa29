"""The database can plan each statement of Joex."""

import importlib
import pkgutil
import re

import asyncpg
import pytest

import joex.store
from joex.store.statement import STATEMENTS

pytestmark = pytest.mark.postgres(16, 18)

for module in pkgutil.iter_modules(joex.store.__path__, "joex.store."):
    importlib.import_module(module.name)

# A call of each function, because plpgsql plans a statement only when it reaches it.
# Statements that run before there is a schema.
MIGRATION = {
    "SELECT coalesce(max(number), 0) FROM joex_private.migration",
    "INSERT INTO joex_private.migration (number, name, min_reader, definitions) VALUES ($1, $2, $3, $4)",
    "SELECT definitions FROM joex_private.migration WHERE number = $1",
}
NO_JOB = "'00000000-0000-0000-0000-000000000000'::uuid"


def test_there_are_statements():
    assert len(STATEMENTS) > 25


async def test_every_statement_can_be_prepared_against_the_migrated_schema(connection):
    wrong = {}
    for sql in STATEMENTS:
        try:
            await connection.prepare(sql)
        except asyncpg.PostgresError as error:
            wrong[sql] = error
    assert wrong == {}


async def test_no_statement_is_kept_from_the_register():
    """An unregistered statement of a module of the store would be untested."""
    registered = {" ".join(sql.split()) for sql in STATEMENTS}
    for module in pkgutil.iter_modules(joex.store.__path__, "joex.store."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s", value):
                assert " ".join(value.split()) in registered | MIGRATION, f"{module.name}.{name}"


CALLS = {
    "accept": "joex_client.accept('default')",
    "add": "joex_client.add('a', '\\x0161')",
    "announce": f"joex_private.announce('job-finished', ARRAY[{NO_JOB}])",
    "announce_ends": f"joex_private.announce_ends(ARRAY[{NO_JOB}], ARRAY[{NO_JOB}], '{{}}')",
    "announce_executor": "joex_private.announce_executor('executor-left', 1)",
    "announce_short": f"joex_private.announce_short(ARRAY[{NO_JOB}], ARRAY[{NO_JOB}], ARRAY[0.0], NULL)",
    "arguments": f"joex_client.arguments({NO_JOB}, {NO_JOB})",
    "cancel": f"joex.cancel({NO_JOB})",
    "check_most": "joex_private.check_most(0)",
    "check_name": "joex_private.check_name('queue', 'default')",
    "must_hold": "joex_private.must_hold('weight: 1 to 100', true)",
    "check_size": "joex_private.check_size('args', '{}')",
    "delete_removed": f"joex_private.delete_removed(ARRAY[{NO_JOB}])",
    "delete_finished": "joex.delete_finished(ARRAY['success'], now())",
    "demand": "joex_private.demand(ARRAY['default'], 100)",
    "work": "* FROM joex_private.work(ARRAY['default'], 100, 1000, '{}', 30)",
    "latest_runs": "* FROM joex_private.latest_runs(NULL)",
    "demand_by_group": "joex_private.demand_by_group('default', 100)",
    "drain": "joex_client.drain('nobody')",
    "end_executor": "joex_private.end_executor(1, 'left')",
    "get_up": "joex_private.get_up(1)",
    "leave_dead_sleepers": "joex_private.leave_dead_sleepers()",
    "claim": "joex_private.claim('joex_private.floor_claims', 15)",
    "sleepers_from": "joex_private.sleepers_from()",
    "give_back_unknown": "joex_private.give_back_unknown(1, 1, '{}')",
    "fall_asleep": "joex_private.fall_asleep(1)",
    "find": "joex_client.find('a', '\\x0161')",
    "forget_retired": "joex_private.forget_retired('a/b', now())",
    "finish": f"joex.finish({NO_JOB}, {NO_JOB})",
    "finish_many": f"joex_private.finish_many(ARRAY[{NO_JOB}], ARRAY[{NO_JOB}], ARRAY['success'], \
                     ARRAY[NULL]::jsonb[], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL]::float8[], \
                     ARRAY[NULL]::float8[], true)",
    "largest": "joex_private.largest('args')",
    "set_largest": "joex.set_largest('args', 10000)",
    "log": f"joex.log({NO_JOB})",
    "log_ends": f"joex_private.log_ends(ARRAY[{NO_JOB}], ARRAY[1], ARRAY['info'], ARRAY['x'], ARRAY[NULL]::jsonb[])",
    "attempts": f"joex.attempts({NO_JOB})",
    "run_record": "joex_private.run_record('failed', 'me', now(), 'x', now())",
    "log_ends_of": f"joex_private.log_ends_of(ARRAY[{NO_JOB}], ARRAY['failed'], ARRAY['x'], ARRAY[1.0], NULL, \
                     ARRAY[1], ARRAY['canceled'])",
    "log_of_success": f"joex_private.log_of_success({NO_JOB})",
    "has_runnable": "joex_private.has_runnable('default')",
    "forget_turns": "joex_private.forget_turns()",
    "forget_lines": f"joex_private.forget_lines({NO_JOB})",
    "entries_walked": "joex_private.entries_walked()",
    "floor_epoch": "joex_private.floor_epoch()",
    "note_floor_exception": None,  # a trigger
    "move_on_the_ring": None,  # a trigger
    "place_on_the_ring": None,  # likewise
    "place": "joex_private.place('key', 'a')",
    "must_be_own_id": "joex_private.must_be_own_id('{submit}', 'default', 'a', p_tracker => 'a/b')",
    "must_be_accepted": "joex_private.must_be_accepted('default', 'a')",
    "must_be_shallow": "joex_private.must_be_shallow(NULL)",
    "another_can_take": "joex_private.another_can_take('default')",
    "mark_spare": "joex_private.mark_spare('a/b', true)",
    "must_have_room": "joex_private.must_have_room('default', 'a', 0)",
    "sees_the_limits": "joex_private.sees_the_limits()",
    "note_limit_waiting": "joex_private.note_limit_waiting()",
    "must_see_submissions": "joex_private.must_see_submissions('default', 1)",
    "refuse_without_key": None,  # it only raises
    "functions_of_scopes": "* FROM joex_private.functions_of_scopes()",
    "payloads": "joex_private.payloads()",
    "bounds": "* FROM joex_private.bounds('{view}')",
    "must_see_the_scopes": "joex_private.must_see_the_scopes()",
    "in_both": "joex_private.in_both('{a}', '{a, b}')",
    "is_client": "joex_private.is_client()",
    "hears_events": None,  # set_scopes calls it
    "grants_changed": "joex_private.grants_changed(true)",
    "forget_dropped_roles": "joex_private.forget_dropped_roles()",
    "exact": "joex_private.exact('a')",
    "may": "joex_private.may('{view}', 'default', 'a')",
    "must_be_allowed": "joex_private.must_be_allowed('{view}', 'default', 'a')",
    "visible": f"joex_private.visible('{{view}}', {NO_JOB})",
    "set_scopes": "joex_private.set_scopes('pg_monitor', '{view}', '{a}')",
    "objects": "count(*) FROM joex_private.objects()",
    "rights_of": "count(*) FROM joex_private.rights_of('{view, executor}', true)",
    "changes_of_rights": "count(*) FROM joex_private.changes_of_rights('{pg_monitor}', '{view}', true, false)",
    "try_to_change_rights": "joex_private.try_to_change_rights('GRANT USAGE ON SCHEMA joex TO pg_monitor')",
    "settle_rights": "joex_private.settle_rights('{pg_monitor}', '{}', true)",
    "secret_tables": "joex_private.secret_tables()",
    "name_of": "joex_private.name_of(f) FROM pg_proc f LIMIT 1",
    "secure": "joex_private.secure()",
    "seen_by_floors": "count(*) FROM joex_private.seen_by_floors(true)",
    "note_pool_step": "joex_private.note_pool_step('a', 'a.1', 'b', 0, 1, 0, 0, 'demand', '', 1, NULL, 1, 0, 9.5)",
    "forget_pool_steps": "joex_private.forget_pool_steps(1)",
    "note_act": "joex_private.note_act('cancel', 'a')",
    "forget_acts": "joex_private.forget_acts('1 day')",
    "retry_now": f"joex_private.retry_now({NO_JOB})",
    "versions": f"* FROM joex_client.versions(ARRAY[{NO_JOB}])",
    "events_channel": "joex.events_channel()",
    "floor_of": "* FROM joex_private.floor_of('default', 1)",
    "next_place": "* FROM joex_private.next_place('default', 0, 1, true)",
    "running_of": "* FROM joex_private.running_of('default', 1, 1, '{}')",
    "draw_floor": "joex_private.draw_floor()",
    "job_writers": "joex_private.job_writers()",
    "raise_floors": "joex_private.raise_floors(1, 1, '{}', '{default}', '{1}')",
    "raise_floor": "joex_private.raise_floor('default', 1, 1, now())",
    "by_floors": "count(*) FROM joex_private.by_floors(true)",
    "floors_are_on": "joex_private.floors_are_on()",
    "held_by": "joex_private.held_by(1)",
    "held_by_any": "joex_private.held_by_any('{1}')",
    "first_runnable": "joex_private.first_runnable('default', 1, 2::smallint, NULL, 1, now())",
    "finished_since": "joex_private.finished_since(now(), 10)",
    "crowded_places": "* FROM joex_private.crowded_places('default', 0, 50, 0.1)",
    "crowds_between": "joex_private.crowds_between('default', 0, 100, 51, 50, now(), 0, '{}')",
    "is_crowded": "joex_private.is_crowded()",
    "switch_floors": "joex_private.switch_floors()",
    "set_floors": "joex_private.set_floors(true)",
    "run_of": f"joex_client.run_of('a', '\\x0201', {NO_JOB})",
    "goes_round": f"joex_client.goes_round({NO_JOB})",
    "heartbeat": "joex_private.heartbeat(1)",
    "end_overruns": f"joex_private.end_overruns(1, ARRAY[{NO_JOB}])",
    "note_overruns": f"joex_private.note_overruns(1, ARRAY[{NO_JOB}], '{{default}}', '{{a}}', ARRAY[{NO_JOB}])",
    "check_runs": f"joex_private.check_runs(1, ARRAY[{NO_JOB}], ARRAY[{NO_JOB}])",
    "has_work": "joex_private.has_work(ARRAY['default'])",
    "mark_ended": "joex_private.mark_ended(1, 'dead')",
    "cut": "joex_private.cut('a')",
    "store_periodic_task": "joex_private.store_periodic_task('a', 't', 'daily', 'UTC', '{}', 'default', 'default', \
                            'low', '', '', NULL, NULL, 'user')",
    "must_see_the_latest": "joex_private.must_see_the_latest('this')",
    "put_back_orphans": "joex_private.put_back_orphans(100)",
    "silent": "joex_private.silent('{60}', '{1}')",
    "send": "joex_private.send('joex_test', 'payload')",
    "highest_rank": "joex_client.highest_rank()",
    "is_awaited": "joex_private.is_awaited('default')",
    "is_large": "joex_private.is_large('{}')",
    "is_heard": "joex_private.is_heard(true)",
    "horizon": "joex.horizon()",
    "id_once": f"joex_private.id_once({NO_JOB}, 1, 'default', 'default')",
    "enable_periodic_task": "joex.enable_periodic_task('a')",
    "fire_periodic": "joex_private.fire_periodic('me', ARRAY['a'], ARRAY['default'], ARRAY['default'], \
                      ARRAY[1]::bigint[], ARRAY[now()], ARRAY[now()], ARRAY[now()], ARRAY[NULL]) \
                      FROM joex.put_periodic_task('a', 't', 'daily')",
    "periodic_task_changed": None,  # a trigger
    "periodic_task_changes": None,  # a trigger
    "remove_periodic_task": "joex.remove_periodic_task('a')",
    "rows_to_submit": None,  # submit_many calls it
    "run_periodic_task": "joex.run_periodic_task('a') FROM joex.put_periodic_task('a', 't', 'daily')",
    "submit_periodic": """joex_private.submit_periodic(jsonb_populate_record(t, '{"task": "a"}'))
                          FROM joex_private.periodic_task t""",
    "check_owner": "joex_private.check_owner('user')",
    "keep_periodic_tasks": "joex_private.keep_periodic_tasks('nobody', ARRAY['a'], ARRAY['default'], ARRAY['default'])",
    "named_periodic_task": "joex_private.named_periodic_task('a', NULL, NULL)",
    "periodic_in_turn": "joex_private.periodic_in_turn(1, ARRAY['', ''], '{}', '{}', '{}', '{}')",
    "periodic_tracker": "joex_private.periodic_tracker('default', 'a')",
    "lane": "joex_private.lane('high')",
    "executor_alive_lock": "joex_private.executor_alive_lock()",
    "ring_lock": "joex_private.ring_lock()",
    "has_session": "joex_private.has_session(1)",
    "may_call": "joex_private.may_call(pg_backend_pid(), 'joex_private.heartbeat')",
    "try_mutex": "joex_private.try_mutex('periodic')",
    "make_mutex": None,  # a trigger
    "lock_app_id": "joex_private.lock_app_id('a/b')",
    "sleep_state": "joex_private.sleep_state(ARRAY['default'])",
    "leaves_overdue": "joex_private.leaves_overdue()",
    "accept_state": "joex_client.accept_state('default')",
    "note_many": f"joex_private.note_many(ARRAY[{NO_JOB}], ARRAY[{NO_JOB}], ARRAY[1], ARRAY[0.0], ARRAY['info'], \
                   ARRAY['line'], ARRAY[{NO_JOB}], ARRAY[{NO_JOB}], ARRAY[50]::smallint[], ARRAY['half'])",
    "wake_all": "joex_client.wake_all()",
    "pod_gone": "joex_private.pod_gone('nothing')",
    "priority_of": "joex_private.priority_of('High')",
    "promote": "joex_private.promote('default')",
    "promote_due": "joex_private.promote_due(ARRAY['default'])",
    "put_periodic_task": "joex.put_periodic_task('a', 't', 'daily')",
    "put_back": f"joex_private.put_back(ARRAY[{NO_JOB}], 1, 5, 'why')",
    "queued": "joex_private.queued(NULL, NULL, 10)",
    "recover_overdue": "joex_private.recover_overdue()",
    "register": "joex_private.register('b', NULL, 'h', '', 1, '', '0', '{default}', '{}', 1, NULL, '1s', false, 5)",
    "remove": f"joex.remove({NO_JOB})",
    "rescue": "joex_private.rescue('{60}', '{1}')",
    "resubmit": f"joex_client.resubmit({NO_JOB})",
    "retire": "joex_private.retire('a/b', true)",
    "retry": f"joex.retry({NO_JOB})",
    "retry_failed": "joex.retry_failed()",
    "ring": "joex_private.ring('a')",
    "stand_aside": "joex_private.stand_aside(1, '{default}')",
    "noted_at": f"joex_private.noted_at({NO_JOB})",
    "mark_start": f"joex_private.mark_start({NO_JOB}, {NO_JOB})",
    "room": "joex_private.room('default', 1, 1)",
    "runs_alone": f"joex_private.runs_alone({NO_JOB})",
    "sees_the_latest": "joex_private.sees_the_latest()",
    "serve_queue": "joex_private.serve_queue('another')",
    "in_seconds": "joex_private.in_seconds('1 month')",
    "grant_queue": "joex_private.grant_queue('default')",
    "set_args": f"joex.set_args({NO_JOB}, '{{}}')",
    "set_queue": "joex.set_queue('default', false)",
    "set_group": "joex.set_group('a', weight => 2)",
    "set_priority": f"joex.set_priority({NO_JOB}, 'high')",
    "set_timeout": "joex_client.set_timeout('a', '1 minute', false)",
    "shares": "joex.shares()",
    "replicas": "joex_private.replicas('{a/}')",
    "start_many": f"joex_private.start_many(ARRAY[{NO_JOB}], ARRAY[{NO_JOB}], ARRAY[0.0])",
    "place_after": "* FROM joex_private.place_after('success', false, true, 'high', now(), NULL)",
    "submit": "joex.submit('a')",
    "submit_many": "joex.submit_many(ARRAY['a', 'b'])",
    "subscribe": "joex.subscribe('me', '1 minute')",
    "take": "t.* FROM joex_private.executor e, joex_private.take(e.id, ARRAY['default'], 3) t",
    "take_in_turn": None,  # take calls it
    "hand_out": "joex_private.hand_out('{}', 1, 'a', 0)",
    "draw": "joex_private.draw('default', NULL, 1)",
    "hold_ring": "joex_private.hold_ring('default', NULL, NULL, 1), joex_private.free_ring('default')",
    "allowed": "joex_private.allowed('{}', '{}', 'default')",
    "found_all": "joex_private.found_all('default', now())",
    "services_to_plan": "joex_private.services_to_plan('default')",
    "give_back_turns": None,  # hold_ring calls it
    "publish_plan": None,  # take_in_turn calls it
    "wait_for_ring": "joex_private.wait_for_ring('default'), joex_private.free_ring('default')",
    "free_ring": "joex_private.free_ring('default')",
    "ring_holder": "joex_private.ring_holder('default')",
    "queue_holder": "joex_private.queue_holder('default')",
    "any_place": "joex_private.any_place()",
    "promote_in_turn": "joex_private.promote_in_turn('default', 5, now())",
    "make_ring_cursor": None,  # a trigger
    "forget_floors": None,  # a trigger
    "choose": None,  # take calls it
    "leave_out_locked": None,  # take_in_turn calls it
    "one_each": None,  # take calls it
    "in_turns": None,  # choose calls it
    "count_turns": "joex_private.count_turns('default', '{1}', '{1}')",
    "notify_executor": "joex_private.notify_executor(1)",
    "notify_operators": "joex_private.notify_operators('a/b')",
    "turns": "joex_private.turns(0, 5, 4, 1)",
    "unsubscribe": "joex.unsubscribe('me')",
    "update": f"joex.update({NO_JOB}, {NO_JOB})",
    "uuid7": "joex_private.uuid7()",
    "wait_for": f"joex.wait_for('me', ARRAY[{NO_JOB}]) FROM joex.subscribe('me', '1 minute')",
    "wait_no_more": f"joex.wait_no_more('me', ARRAY[{NO_JOB}])",
    "why": f"joex.why({NO_JOB})",
    "watch": "joex_private.watch('a/b', ARRAY['default'], '1 minute')",
    "watch_for_workers": "joex_client.watch_for_workers('me', 'default', '1 minute')",
    "forget_watches": "joex_private.forget_watches('me', now())",
    "forget_subscriptions": "joex_private.forget_subscriptions(now())",
    "places_before": "joex_private.places_before('default', 1, 0)",
    "wake": "joex_private.wake('default', 1)",
}


async def test_every_function_of_the_schema_is_called_here(connection):
    rows = await connection.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace::regnamespace::text IN ('joex', 'joex_client', 'joex_private')"
    )
    assert {row["proname"] for row in rows} == set(CALLS)


async def test_every_function_of_the_schema_can_be_called(bench):
    await bench.executor()
    await bench.submit()
    wrong = {}
    for name, call in CALLS.items():
        transaction = bench.connection.transaction()
        await transaction.start()
        try:
            await bench.connection.execute(f"SELECT {call or 1}")
        except asyncpg.PostgresError as error:
            wrong[name] = error
        await transaction.rollback()
    assert wrong == {}


@pytest.mark.parametrize("view", ["jobs", "group_stats", "queue_stats", "executors"])
async def test_every_view_can_be_read(bench, view):
    await bench.executor()
    await bench.submit()
    assert len(await bench.connection.fetch(f"TABLE joex.{view}")) == 1
