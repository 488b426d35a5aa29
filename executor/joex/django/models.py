"""The views of Joex as models, to read: Django manages none of them, and PostgreSQL refuses each write."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from joex.core.job import State
from joex.django.database import database_alias
from joex.store.json_text import read_json


class _Json(models.JSONField):
    """JSON of jobs, of which a value that Python can't read hides no other."""

    def from_db_value(self, value: Any, _expression: Any, _connection: Any) -> Any:
        return read_json(value) if isinstance(value, str) else value


class _OfJoex(models.Manager):
    """Reads the database that Joex uses."""

    def get_queryset(self) -> Any:
        return super().get_queryset().using(database_alias())


class _View(models.Model):
    """A view of the schema ``joex``."""

    objects = _OfJoex()

    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)
        base_manager_name = "objects"  # reads the fields that the admin has deferred


class Job(_View):
    """A job."""

    id = models.UUIDField(primary_key=True)
    task = models.TextField()
    group = models.TextField(db_column="grp")
    queue = models.TextField()
    priority = models.TextField(choices=[("high", "high"), ("low", "low")])
    state = models.TextField(choices=[(str(state), str(state)) for state in State])
    subject = models.TextField()
    submitter = models.TextField()
    tracker = models.TextField(null=True)
    attempt = models.IntegerField()
    failures = models.IntegerField()
    losses = models.IntegerField()
    app_id = models.TextField("executor", null=True)
    cancel_requested = models.BooleanField()
    progress = models.SmallIntegerField()
    progress_message = models.TextField(null=True)
    submitted_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True)
    scheduled_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    args = _Json()
    result = _Json(null=True)
    error = models.TextField(null=True)

    class Meta(_View.Meta):
        db_table = '"joex"."jobs"'
        permissions: ClassVar = [("cancel_job", "Can cancel jobs"), ("retry_job", "Can retry jobs")]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class PeriodicTask(_View):
    """A periodic task, which creates jobs when its timer is due."""

    key = models.TextField(primary_key=True)
    task_id = models.TextField("id", db_column="id")  # (Django keeps the name id for primary keys)
    owner = models.TextField()
    enabled = models.BooleanField()
    task = models.TextField()
    timer = models.TextField()
    zone = models.TextField()
    group = models.TextField(db_column="grp")
    queue = models.TextField()
    next_run = models.DateTimeField(null=True, db_column="nextrun")
    last_run = models.DateTimeField(null=True)
    last_outcome = models.TextField(null=True)
    last_job_state = models.TextField(null=True)
    error = models.TextField(null=True)

    class Meta(_View.Meta):
        db_table = '"joex"."periodic_tasks"'

    def __str__(self) -> str:
        return str(self.task_id)


class Executor(_View):
    """An executor, alive or ended lately."""

    id = models.IntegerField(primary_key=True)
    app_id = models.TextField("name")
    state = models.TextField()
    held = models.BigIntegerField("jobs")
    pool_size = models.IntegerField("slots")
    host = models.TextField()
    version = models.TextField()
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(null=True)
    left_at = models.DateTimeField(null=True)

    class Meta(_View.Meta):
        db_table = '"joex"."executors"'

    def __str__(self) -> str:
        return str(self.app_id)


class Queue(_View):
    """A queue with unfinished jobs, and how many."""

    queue = models.TextField(primary_key=True)
    waiting = models.BigIntegerField()
    deferred = models.BigIntegerField()
    scheduled = models.BigIntegerField()
    running = models.BigIntegerField()
    stuck = models.BigIntegerField()
    groups = models.BigIntegerField()
    oldest_runnable_seconds = models.FloatField(null=True)

    class Meta(_View.Meta):
        db_table = '"joex"."queue_stats"'

    def __str__(self) -> str:
        return str(self.queue)
