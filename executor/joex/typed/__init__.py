"""Jobs whose types, ids and priorities are the caller's own, and workers with loops of their own.

The job API of CouchDB's background jobs (its RFC "Background jobs with FoundationDB"), on the table of all other jobs:
executors run these jobs too, groups take turns, the views show them. What it calls pending is waiting, scheduled or
stuck here.
"""

from joex.typed.creating import Creating
from joex.typed.job import Answer, JobState, TypedJob, TypeTimeout, typed_job
from joex.typed.waiting import Waiting
from joex.typed.working import Working

__all__ = ["Answer", "JobState", "TypeTimeout", "TypedJob", "TypedJobs", "typed_job"]


class TypedJobs(Creating, Working, Waiting):
    """The jobs, through a client: ``client.typed``.

    Types, ids and priorities are any values that FoundationDB's tuple layer orders: None, texts, bytes, numbers,
    booleans, UUIDs, and tuples of them. A type is also a task's name and a queue's (`joex.core.tuples.to_name`), so
    that executors that serve the queue and know the task run its jobs, with ``data`` as arguments.

    With ``connection``, a call works in that connection's transaction. Wrong values raise `InvalidJob`, which names the
    field.
    """
