"""Run by ``python -m django test django_project``, in a database that the test runner makes."""

import sys
import time
from contextlib import closing
from datetime import datetime, timedelta
from io import StringIO
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import django
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import joex
import joex.sync
from joex.django import options, periodic
from joex.django.backend import JoexBackend
from joex.django.database import database_url
from joex.django.declared import declared_tasks
from joex.django.framework import InvalidTask, TaskResultDoesNotExist, task_enqueued, task_finished, task_started
from joex.django.models import Executor, Job, PeriodicTask, Queue
from joex.django.runs import add_tasks
from joex.django.testing import run_jobs
from joex.errors import ConfigError

from . import tasks
from .models import Order

BACKEND = "joex.django.backend.JoexBackend"
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

PATIENCE = 90.0


def client():
    return joex.sync.Client(connection)


def no_connection_is_left():
    """Whether all connections to the database but this one end: the server notices a while after they are closed."""
    until = time.monotonic() + PATIENCE
    with connection.cursor() as cursor:
        while time.monotonic() < until:
            cursor.execute(OTHERS)
            if cursor.fetchone() == (0,):
                return True
            time.sleep(0.05)
    return False


def job_of(result):
    return Job.objects.get(pk=result.id)


class Elsewhere:
    """A router that sends Joex's models to a database that there is not."""

    is_on = False

    def db_for_read(self, model, **_):
        return "elsewhere" if self.is_on and model._meta.app_label == "joex" else None


class Submissions(TestCase):
    def test_a_job_exists_if_and_only_if_its_transaction_commits(self):
        with transaction.atomic():
            result = tasks.add.enqueue(1, b=2)
            self.assertEqual(job_of(result).state, "waiting")
            transaction.set_rollback(True)
        self.assertFalse(Job.objects.filter(pk=result.id).exists())

    def test_a_result_has_what_was_submitted(self):
        later = timezone.now() + timedelta(hours=1)
        result = tasks.send.using(run_after=later).enqueue("ann", subject="hi")
        job = job_of(result)
        self.assertEqual((job.task, job.queue, job.priority), ("django_project.orders.tasks.send", "mail", "high"))
        self.assertEqual(job.args, {"*": ["ann"], "subject": "hi"})
        self.assertEqual((job.due_at, job.group, job.submitter), (later, "default", "the shop"))
        found = tasks.send.get_result(result.id)
        self.assertEqual((found.args, found.kwargs), (["ann"], {"subject": "hi"}))
        self.assertEqual((str(found.status), found.attempts, found.errors), ("READY", 0, []))
        self.assertEqual(found.task, tasks.send.using(run_after=later))
        self.assertEqual(tasks.send.get_result(tasks.send.using(priority=-3).enqueue("bob").id).task.priority, 0)
        with self.assertRaisesMessage(ValueError, "not finished"):
            _ = found.return_value
        result.refresh()
        self.assertEqual(found, result)

    def test_options_set_what_django_has_no_word_for(self):
        with options(group="acme", retries=7), options(retries=0, subject="order 7", submitter="ann"):
            job = job_of(tasks.add.enqueue(1, 2))
        self.assertEqual((job.group, job.subject, job.submitter), ("acme", "order 7", "ann"))
        self.assertEqual(client().get(job.pk).retries, 0)
        self.assertEqual(job_of(tasks.add.enqueue(1, 2)).group, "default")
        unknown: Any = {"queue": "x"}
        with self.assertRaisesMessage(TypeError, "there is no 'queue'; there are group, "), options(**unknown):
            pass

    def test_what_no_job_can_have_is_refused_and_nothing_is_stored(self):
        before = Job.objects.count()
        for refused, message, enqueue in (
            (TypeError, "orders.tasks.add: missing a required argument: 'b'", lambda: tasks.add.enqueue(1)),
            (TypeError, "Unsupported type", lambda: tasks.add.enqueue(1, {2})),
            (InvalidTask, "args.*[1]: ", lambda: tasks.add.enqueue(1, float("nan"))),
            (InvalidTask, "Queue 'x' is not valid", lambda: tasks.add.using(queue_name="x")),
            (InvalidTask, "run_after must be an aware", lambda: tasks.add.using(run_after=datetime(2030, 1, 1))),  # noqa: DTZ001
        ):  # fmt: skip
            with self.subTest(message), self.assertRaisesMessage(refused, message):
                enqueue()
        with options(group=""), self.assertRaisesMessage(InvalidTask, "group: must not be empty"):
            tasks.add.enqueue(1, 2)
        with patch.object(tasks.add.func, "__module__", "__main__"), self.assertRaisesMessage(InvalidTask, "__main__"):
            tasks.add.enqueue(1, 2)
        self.assertEqual(Job.objects.count(), before)

    def test_a_result_that_is_not_there_is_no_result(self):
        other = client().submit("not.of.django")
        for result_id in (str(uuid4()), "nonsense", str(other), None):
            with self.subTest(result_id), self.assertRaises(TaskResultDoesNotExist):
                tasks.add.get_result(result_id)

    def test_a_result_outlives_the_queue_of_its_job(self):
        result = tasks.add.using(queue_name="mail").enqueue(1, 2)
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
            found = tasks.add.get_result(result.id)
        self.assertEqual((found.id, found.task.queue_name, str(found.status)), (result.id, "mail", "READY"))

    def test_a_job_in_sql_is_a_task_too(self):
        with connection.cursor() as cursor:
            cursor.execute("""SELECT joex.submit('django_project.orders.tasks.add', '{"a": 1, "b": 2}')""")
            result = tasks.add.get_result(str(cursor.fetchone()[0]))
        self.assertEqual((result.args, result.kwargs), ([], {"a": 1, "b": 2}))

    def test_on_commit_a_job_is_submitted_after_the_transaction_under_the_id_that_its_result_has(self):
        late = tasks.add.using(backend="late")
        for group in ("acme", 'a "quoted", (odd) \\ one', "ümlaut", "t\ta\nb"):
            with self.subTest(group), options(group=group):
                with self.captureOnCommitCallbacks() as callbacks:
                    result = late.using(queue_name='q "1"').enqueue(1, 2)
                    self.assertFalse(Job.objects.filter(pk=result.id).exists())
                for callback in callbacks:
                    callback()
                self.assertEqual((job_of(result).group, job_of(result).queue), (group, 'q "1"'))
        with self.assertRaisesMessage(InvalidTask, "args.*[0]: "), self.captureOnCommitCallbacks() as callbacks:
            late.enqueue(float("inf"), 1)
        self.assertEqual(callbacks, [])

    async def test_async_code_submits_and_reads(self):
        with options(group="acme"):
            result = await tasks.add.aenqueue(1, 2)
        found = await tasks.add.aget_result(result.id)
        self.assertEqual(found.args, [1, 2])
        self.assertEqual((await Job.objects.aget(pk=result.id)).group, "acme")
        with self.assertRaises(SynchronousOnlyOperation):
            tasks.add.enqueue(1, 2)

    @override_settings(USE_TZ=False)
    def test_without_time_zones_times_are_local(self):
        later = timezone.now().replace(microsecond=0) + timedelta(hours=1)
        result = tasks.add.using(run_after=later).enqueue(1, 2)
        self.assertEqual(tasks.add.get_result(result.id).task.run_after, later)
        self.assertLess(abs(tasks.add.get_result(result.id).enqueued_at - timezone.now()), timedelta(minutes=10))


class Runs(TransactionTestCase):
    def tearDown(self):
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM joex_private.job")

    def run_one(self, task, *args, **kwargs):
        result = task.enqueue(*args, **kwargs)
        run_jobs(raise_failures=False)
        result.refresh()
        return result

    def test_a_task_runs_and_its_result_is_there(self):
        result = self.run_one(tasks.add, 1, b=2)
        self.assertEqual((str(result.status), result.return_value, result.attempts), ("SUCCESSFUL", 3, 1))
        self.assertEqual(len(result.worker_ids), 1)
        self.assertTrue(result.enqueued_at <= result.started_at <= result.finished_at)
        self.assertEqual(self.run_one(tasks.send, "ann").return_value, ["ann", "hello"])

    def test_a_task_with_a_context_has_the_run_too(self):
        with options(group="acme"):
            result = self.run_one(tasks.tell, "half")
        self.assertEqual(result.return_value, [1, True, "RUNNING", ["half"], "low"])
        self.assertEqual(job_of(result).progress_message, "half")
        self.assertIn("half acme", [line.message for line in client().log(UUID(result.id))])

    def test_the_event_loop_does_not_look_through_the_arguments_and_the_result_of_a_task(self):
        is_same, of_the_loop, [of_the_result] = self.run_one(tasks.look, values=[[]]).return_value
        self.assertTrue(is_same)
        self.assertNotEqual(of_the_result, of_the_loop)

    def test_tasks_use_the_orm_and_leave_no_connection(self):
        for task in (tasks.write, tasks.write_async):
            self.assertEqual(Order.objects.get(pk=self.run_one(task, task.name).return_value).item, task.name)
        self.assertEqual(str(self.run_one(tasks.fail, "lost").status), "READY")
        self.assertTrue(no_connection_is_left())

    def test_a_failed_task_has_its_exception_and_runs_again(self):
        with options(retries=1):
            result = self.run_one(tasks.fail, "tea")
        self.assertEqual((str(result.status), result.attempts, result.finished_at), ("READY", 1, None))
        self.assertIs(result.errors[0].exception_class, tasks.OutOfStockError)
        run_jobs(early=True, raise_failures=False)
        result.refresh()
        self.assertEqual((str(result.status), result.attempts), ("FAILED", 2))
        [error] = result.errors
        self.assertIs(error.exception_class, tasks.OutOfStockError)
        self.assertIn("in fail\n", error.traceback)
        with self.assertRaisesMessage(ValueError, "failed"):
            _ = result.return_value
        self.assertEqual(Order.objects.count(), 2)

    def test_what_no_retry_mends_fails_at_once(self):
        for task, args, said in (
            (tasks.give_up, ["os.system: no"], "Fail: os.system: no"),
            (tasks.odd, [], "Fail: its return value: Unsupported type"),
        ):
            with self.subTest(task.name):
                result = self.run_one(task, *args)
                self.assertEqual(str(result.status), "FAILED")
                self.assertIs(result.errors[0].exception_class, joex.Fail)
                self.assertIn(said, job_of(result).error)
        for given, said in (([1, 2, 3], "too many positional arguments"), ("ab", "*: expected a list")):
            wrong = client().submit("django_project.orders.tasks.add", {"*": given})
            run_jobs(raise_failures=False)
            [error] = tasks.add.get_result(str(wrong)).errors
            self.assertIs(error.exception_class, TypeError)
            self.assertIn(said, error.traceback)

    def test_an_async_task_that_is_out_of_time_leaves_no_connection(self):
        app = joex.App()
        add_tasks(app)
        task = app.get("django_project.orders.tasks.hang")
        assert task is not None
        task.timeout = timedelta(seconds=0.2)
        result = tasks.hang.enqueue("tea")
        [job] = run_jobs(app, raise_failures=False)
        self.assertEqual((job.state, Order.objects.count()), ("stuck", 1))
        self.assertIs(tasks.hang.get_result(result.id).errors[0].exception_class, joex.JoexError)
        self.assertTrue(no_connection_is_left())

    def test_a_cancelled_task_has_failed(self):
        result = tasks.add.enqueue(1, 2)
        client().cancel(UUID(result.id))
        result.refresh()
        self.assertEqual(str(result.status), "FAILED")
        self.assertIs(result.errors[0].exception_class, joex.Cancel)

    def test_signals_tell_of_each_step(self):
        told = []

        def tell(signal):
            return lambda sender, task_result, **_: told.append((signal, sender, str(task_result.status)))

        receivers = [
            (signal, tell(name))
            for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished))
        ]
        for signal, receiver in receivers:
            signal.connect(receiver)
            self.addCleanup(signal.disconnect, receiver)
        with self.assertLogs(level="INFO"):  # Django's receivers log
            self.run_one(tasks.add, 1, 2)
        with options(retries=1), self.assertLogs(level="INFO"):
            tasks.fail_async.enqueue()
            run_jobs(early=True, raise_failures=False)
        steps = ["enqueued READY", "started RUNNING", "finished SUCCESSFUL"]
        steps += ["enqueued READY", "started RUNNING", "started RUNNING", "finished FAILED"]
        self.assertEqual([f"{signal} {status}" for signal, _, status in told], steps)
        self.assertEqual({sender for _, sender, _ in told}, {JoexBackend})

    def finished(self, task, *args):
        """Run a task that fails for good: its result as receivers of the signal have it, and what Django's log."""
        told = []

        def receive(task_result, **_):
            told.append(task_result)

        task_finished.connect(receive)
        self.addCleanup(task_finished.disconnect, receive)
        with (
            options(retries=0),
            self.assertLogs("django.tasks" if django.VERSION >= (6, 0) else "django_tasks") as logs,
        ):
            task.enqueue(*args)
            run_jobs(raise_failures=False)
        [result] = told
        return result, logs.output[-1]

    def test_receivers_have_the_text_of_a_long_error_that_joex_makes_in_its_turn_and_once(self):
        for task in (tasks.fail_at_length, tasks.fail_at_length_async):
            with self.subTest(task.name):
                tasks.threads_of_long_text.clear()
                result, _ = self.finished(task)
                self.assertEqual([name.rpartition("_")[0] for name in tasks.threads_of_long_text], ["joex error texts"])
                [error] = result.errors
                self.assertIn("(cut, 800,000 characters)", error.traceback)
                self.assertEqual(error.traceback, client().log(UUID(result.id))[0].message)
                self.assertIs(error.exception_class, tasks.LongError)

    def test_receivers_have_the_traceback_of_any_error(self):
        for task, args, line in (
            (tasks.fail, ["tea"], "OutOfStockError: no tea\n"),
            (tasks.fail_async, [], "OutOfStockError: nothing"),
            (tasks.give_up, ["os.system: no"], "joex.errors.Fail: os.system: no"),
        ):
            with self.subTest(task.name):
                result, _ = self.finished(task, *args)
                self.assertIn(f", in {task.name}\n", result.errors[0].traceback)
                self.assertIn(line, result.errors[0].traceback)

    def test_receivers_see_the_error_of_a_plain_function_or_the_line_of_a_long_one(self):
        for task, args, line in (
            (tasks.fail, ["tea"], "\ndjango_project.orders.tasks.OutOfStockError: no tea\n"),
            (
                tasks.fail_at_length,
                [],
                "\njoex.errors.JoexError: django_project.orders.tasks.LongError: so long so long",
            ),
        ):
            with self.subTest(task.name):
                _, logged = self.finished(task, *args)
                self.assertIn(line, logged)
                self.assertLess(len(logged), 10_000)

    def test_no_module_is_imported_because_a_job_names_it(self):
        self.assertNotIn("this", sys.modules)
        job = client().submit("this.c")
        [run] = run_jobs(raise_failures=False)
        self.assertEqual((run.id, run.state), (job, "stuck"))
        self.assertIn("task 'this.c' is unknown", run.error)
        failed = tasks.add.get_result(tasks.add.enqueue(1, 2).id)
        for path in ("this.X", "concurrent.futures.ProcessPoolExecutor", "django_project.orders.tasks.lazy"):
            with connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE joex_private.job SET lane = NULL, state = 'failed', finished_at = now(), error = %s "
                    "WHERE id = %s",
                    [f"{path}: no", failed.id],
                )
            failed.refresh()
            [error] = failed.errors
            self.assertEqual((error.exception_class, error.exception_class_path), (joex.JoexError, path))
        self.assertFalse({"this", "concurrent.futures.process"} & sys.modules.keys())

    def test_a_value_that_python_can_not_read_hides_no_job_of_a_query(self):
        job = client().submit("tell", {"x": 1})
        with connection.cursor() as cursor:
            cursor.execute("""UPDATE joex_private.job SET args = '{"x": 1e5000}' WHERE id = %s""", [str(job)])
        client().submit("tell", {"x": 2})
        first, second = Job.objects.order_by("submitted_at")
        self.assertIn("out of range", first.args["unreadable"])
        self.assertEqual(second.args, {"x": 2})

    def test_the_app_has_each_task_once_and_the_schedules(self):
        app = joex.App("shop")
        add_tasks(app)
        self.assertEqual(set(app.names), declared_tasks(JoexBackend).keys())
        [nightly] = app.periodic_tasks
        self.assertEqual((nightly.id, nightly.timer), ("shop/django_project.orders.tasks.nightly", "03:00"))
        with self.assertRaisesMessage(joex.ConfigError, "already has one with this name"):
            add_tasks(app)
        with self.assertRaisesMessage(TypeError, "above @task"):
            periodic("03:00")(len)


class Users:
    client: Any

    def log_in(self, *permissions):
        user = User.objects.create_user("ann", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def act(self, action, *jobs):
        chosen = {"action": action, "_selected_action": [str(job) for job in jobs]}
        return self.client.post(reverse("admin:joex_job_changelist"), chosen, follow=True)


class Admin(Users, TestCase):
    def test_views_are_shown_to_those_who_may_view_them(self):
        job = client().submit("mail.send", {"to": "<b>ann</b>"}, group="acme")
        for group in ("acme", "shop"):
            client().periodic.put("nightly", "mail.send", "03:00", group=group)
        models = (Job, PeriodicTask, Executor, Queue)
        self.log_in(*(f"view_{model._meta.model_name}" for model in models))
        for model in models:
            page = self.client.get(reverse(f"admin:joex_{model._meta.model_name}_changelist"))
            self.assertEqual(page.status_code, 200, model)
        for task in PeriodicTask.objects.filter(task_id="nightly"):
            page = self.client.get(reverse("admin:joex_periodictask_change", args=[quote(task.pk)]))
            self.assertContains(page, task.group)
        page = self.client.get(reverse("admin:joex_job_change", args=[job]))
        self.assertContains(page, "&lt;b&gt;ann")
        self.assertContains(page, "no executor serves")
        self.assertNotContains(page, 'name="_save"')
        self.assertEqual(self.client.get(reverse("admin:joex_job_add")).status_code, 403)
        self.assertEqual(self.client.post(reverse("admin:joex_job_delete", args=[job])).status_code, 403)
        self.assertEqual(self.client.post(reverse("admin:joex_job_change", args=[job]), {"task": "x"}).status_code, 403)

    def test_jobs_are_found_by_their_id_or_a_whole_word(self):
        one, two = client().submit("a", group="acme"), client().submit("b", subject="acme")
        client().submit("acme.c")
        self.log_in("view_job")
        for term, found in ((str(one), {one}), ("acme", {one, two}), ("b ", {two}), ("%", set())):
            page = self.client.get(reverse("admin:joex_job_changelist"), {"q": term})
            self.assertEqual({job.pk for job in page.context["cl"].result_list}, found, term)

    @override_settings(DATABASE_ROUTERS=["django_project.orders.tests.Elsewhere"])
    def test_no_router_sends_the_admin_to_another_database(self):
        job = client().submit("mail.send", {"to": "ann"})
        self.log_in("view_job")
        with patch.object(Elsewhere, "is_on", new=True):
            self.assertContains(self.client.get(reverse("admin:joex_job_change", args=[job])), "ann")

    def test_a_list_counts_and_an_action_takes_no_more_than_the_first_jobs(self):
        jobs = [client().submit("a", group=group) for group in "abcd"]
        self.log_in("view_job", "cancel_job")
        listed = reverse("admin:joex_job_changelist")
        self.assertNotContains(self.client.get(listed), "The first")
        with patch("joex.django.admin.MOST", 3):
            for ordered in ({}, {"o": "3"}):  # by the time of the submission; by the group
                with CaptureQueriesContext(connection) as queries:
                    page = self.client.get(listed, ordered)
                self.assertContains(page, "The first 3 in this order: search, or filter, for others")
                self.assertEqual(page.context["cl"].result_count, 3)
                [counts] = [query["sql"] for query in queries if "COUNT(" in query["sql"]]
                self.assertIn(" LIMIT 3)", counts)
                self.assertNotIn("ORDER BY", counts)
            chosen = {"action": "cancel", "_selected_action": [str(jobs[0])], "select_across": "1"}
            self.assertContains(self.client.post(f"{listed}?o=3", chosen, follow=True), "Jobs: 3 cancelled.")
        self.assertEqual(Job.objects.get(task="a", state="waiting").pk, jobs[3])
        self.assertFalse(self.client.get(listed, {"_facets": "True"}).context["cl"].add_facets)  # which count all rows

    def test_a_user_who_may_cancels_and_retries_and_the_audit_has_the_name(self):
        one, two = client().submit("a"), client().submit("b")
        self.log_in("view_job", "cancel_job", "retry_job")
        self.assertContains(self.act("cancel", one, two), "Jobs: 2 cancelled.")
        with connection.cursor() as cursor:  # in one order, whatever that of the list
            cursor.execute("SELECT subject FROM joex.audit ORDER BY nr")
            self.assertEqual(cursor.fetchall(), [(str(job),) for job in sorted([one, two])])
        self.assertContains(self.act("retry", one), "Jobs: 1 to run again.")
        self.assertContains(self.act("cancel", one, two), "Jobs: 1 cancelled, 1 finished before.")
        self.assertContains(self.act("retry", one, uuid4()), "Jobs: 1 to run again.")
        self.assertEqual({job.state for job in Job.objects.filter(pk__in=[one, two])}, {"waiting", "cancelled"})
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT caller FROM joex.audit")
            self.assertEqual(cursor.fetchall(), [("ann",)])

    def test_an_action_leaves_the_transaction_of_its_request_as_patient_as_before(self):
        job = client().submit("a")
        self.log_in("view_job", "cancel_job")
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '7s'")
            self.assertContains(self.act("cancel", job), "Jobs: 1 cancelled.")
            cursor.execute("SHOW lock_timeout")
            self.assertEqual(cursor.fetchall(), [("7s",)])

    def test_a_user_who_may_not_does_not(self):
        job = client().submit("a")
        self.log_in("view_job", "retry_job")
        self.assertNotContains(self.act("cancel", job), "cancelled.")
        self.assertEqual(Job.objects.get(pk=job).state, "waiting")
        self.client.logout()
        self.client.force_login(User.objects.create_user("bob", is_staff=True))
        self.assertEqual(self.client.get(reverse("admin:joex_job_changelist")).status_code, 403)


class HeldJobs(Users, TransactionTestCase):
    def tearDown(self):
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM joex_private.job")

    def test_an_action_does_not_wait_for_long_for_a_job_that_others_hold_and_changes_none(self):
        jobs = sorted(client().submit("a") for _ in range(2))
        self.log_in("view_job", "cancel_job")
        with closing(connection.copy()) as other, other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT FROM joex_private.job WHERE id = %s FOR UPDATE", [jobs[1]])
            page = self.act("cancel", *jobs)
        self.assertContains(page, "No job was changed: another transaction holds what this changes: try again.")
        self.assertEqual({job.state for job in Job.objects.all()}, {"waiting"})


class Settings(SimpleTestCase):
    def wrong(self, **given):
        return [str(error.msg) for error in JoexBackend("default", {"OPTIONS": given}).check()]

    def test_options_are_checked(self):
        self.assertEqual(self.wrong(), [])
        self.assertEqual(self.wrong(database="default", on_commit="default", group="acme", retries=3), [])
        begin = "TASKS['default']['OPTIONS']: "
        for given, said in (
            ({"on_commit": True}, "on_commit: expected the alias of a database in DATABASES; got True"),
            ({"database": "none"}, "DATABASES: there is no 'none', which the OPTIONS of Joex's backend in TASKS name"),
            ({"retries": -1}, "retries: expected 0 to 1000000; got -1"),
            ({"grp": "a"}, "there is no 'grp'; there are database, on_commit, group, subject, submitter, retries"),
        ):
            with self.subTest(said):
                self.assertEqual(self.wrong(**given), [begin + said])

    def test_what_executors_can_not_demand_of_a_server_is_refused(self):
        for option, said in (
            ({"require_auth": "scram-sha-256"}, "require_auth: executors can't demand that of a server: leave it out"),
            ({"channel_binding": "require"}, "channel_binding: executors can't"),
            ({"hostaddr": "10.0.0.1"}, "hostaddr: executors can't"),
        ):
            with (
                self.subTest(said),
                patch.object(connections["default"], "get_connection_params", return_value={"dbname": "x", **option}),
                self.assertRaisesMessage(ConfigError, f"DATABASES: 'default': OPTIONS: {said}"),
            ):
                database_url("default")
        given = {"dbname": "x", "ssl_min_protocol_version": "TLSv1.3", "channel_binding": "prefer"}
        with patch.object(connections["default"], "get_connection_params", return_value=given):
            self.assertEqual(database_url("default"), "postgresql://@/x?ssl_min_protocol_version=TLSv1.3")


class Commands(TransactionTestCase):
    def test_the_test_database_has_the_schema_before_the_migrations_of_others(self):
        self.assertTrue(connection.settings_dict["NAME"].startswith("test_"))
        migrated = StringIO()
        call_command("migrate", stdout=migrated)
        self.assertNotIn("Joex", migrated.getvalue(), "there was nothing to do")

    def test_joex_works_on_the_test_database(self):
        job = client().submit("from.django")
        with patch("sys.stdout", StringIO()) as printed:
            call_command("joex", "jobs")
        self.assertIn(str(job), printed.getvalue())
        with patch("sys.stderr", StringIO()) as said, self.assertRaises(SystemExit) as end:
            call_command("joex", "job", "nonsense")
        self.assertEqual(end.exception.code, 2)
        self.assertEqual(said.getvalue().count("\n"), 1)

    @override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "none"}}})
    def test_a_database_that_is_not_there_is_one_line(self):
        with self.assertRaisesMessage(CommandError, "DATABASES: there is no 'none', which"):
            call_command("joex", "jobs")
