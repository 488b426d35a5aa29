"""Submit jobs from Django, in the transaction of its connection."""

from django.db import connection
from psycopg.types.json import Jsonb


def submit(task, group="default", **args):
    """Submit a job for a task, and return its id."""
    task.parse_arguments(args)  # refuse arguments that do not fit the task here, not in an executor
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT joex.submit(%s, %s, grp => %s, queue => %s)", [task.name, Jsonb(args), group, task.queue]
        )
        return cursor.fetchone()[0]
