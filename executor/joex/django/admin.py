"""The views of Joex in the admin: to read, with the actions "cancel" and "retry" for those who may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

import joex.sync
from joex.client.blocking import blocking
from joex.django.database import database_alias
from joex.django.models import Executor, Job, PeriodicTask, Queue
from joex.errors import JoexError
from joex.store import audit, job_logs
from joex.store.drivers import adapted_sync
from joex.store.job_logs import LogEntry

_PAYLOADS = ("args", "result", "error", "progress_message")
_LAST_LINES = 200

MOST = 10_000
"""How many jobs a list has, and an action takes: to count millions, or to act on them, takes too long for a request."""


class _First(Paginator):
    """The pages of the first rows of a list."""

    @cached_property
    def count(self) -> int:
        """How many rows the pages have."""
        return int(self.object_list.order_by()[:MOST].count())


class _ReadOnly(admin.ModelAdmin):
    """Shows the rows of a view."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # which count all rows
    paginator = _First

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, which says that it may have left out some rows."""
        response: HttpResponse = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None) or {}
        if "cl" in context and context["cl"].result_count >= MOST:
            context["subtitle"] = f"The first {MOST:,} in this order: search, or filter, for others"
        return response

    def has_add_permission(self, _request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, _request: HttpRequest, _object: Any = None) -> bool:
        return False

    def has_delete_permission(self, _request: HttpRequest, _object: Any = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(_ReadOnly):
    """Jobs, the latest first."""

    list_display = ("id", "task", "group", "queue", "priority", "state", "attempt", "submitted_at", "finished_at")
    list_filter = ("state", "priority")
    ordering = ("-id",)  # which begins with the time of the submission
    search_fields = ("task",)  # shows the field; get_search_results says what it finds
    search_help_text = "the id of a job; or its task, group, queue or subject"
    readonly_fields = ("why", "log")
    actions = ("cancel", "retry")

    def get_queryset(self, request: HttpRequest) -> Any:
        """Without what may be large: the page of one job reads it by itself."""
        return super().get_queryset(request).defer(*_PAYLOADS)

    def get_search_results(self, _request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """The jobs of a search."""
        term = search_term.strip()
        try:
            found = Q(pk=UUID(term))
        except ValueError:
            found = Q(task=term) | Q(group=term) | Q(queue=term) | Q(subject=term) if term else Q()
        return queryset.filter(found), False

    @admin.display(description="why it is not running")
    def why(self, job: Job) -> str:
        """The reasons why a job is not running."""
        return "\n".join(reason.message for reason in joex.sync.Client(_connection()).why(job.pk))

    @admin.display
    def log(self, job: Job) -> str:
        """The end of the log of a job."""
        lines = blocking(_log(job.pk))
        return "\n".join(f"{line.at:%Y-%m-%d %H:%M:%S} [{line.attempt}] {line.level}: {line.message}" for line in lines)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel jobs."""
        return bool(request.user.has_perm("joex.cancel_job"))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Whether the user may retry jobs."""
        return bool(request.user.has_perm("joex.retry_job"))

    @admin.action(permissions=["cancel"], description="Cancel the selected jobs")
    def cancel(self, request: HttpRequest, chosen: Any) -> None:
        """Cancel jobs; the runs of running ones are asked to end."""
        ends = {"cancelled": "cancelled", "requested": "asked to end", "finished": "finished before"}
        self._each(request, chosen, joex.sync.Client.cancel, ends)

    @admin.action(permissions=["retry"], description="Run the selected jobs again, or now")
    def retry(self, request: HttpRequest, chosen: Any) -> None:
        """Run failed and cancelled jobs again, and now those that are stuck or not due."""
        ends = {True: "to run again", False: "that run, succeeded, or are due"}
        self._each(request, chosen, joex.sync.Client.retry, ends)

    def _each(
        self,
        request: HttpRequest,
        chosen: Any,
        call: Callable[[joex.sync.Client, UUID], Any],
        ends: Mapping[Any, str],
    ) -> None:
        """Call a method of the client for each job, or change none; say how often it gave each of these answers."""
        # (All who change jobs lock them in this order, so that none of them waits for another one that waits for it.)
        ids = sorted(chosen.values_list("pk", flat=True)[:MOST])
        try:
            with transaction.atomic(using=database_alias()):
                wait = blocking(_begin(request.user.get_username()))
                client = joex.sync.Client(_connection())
                answers = Counter(call(client, job_id) for job_id in ids)
                blocking(_end(wait))  # (the request may be one transaction)
        except JoexError as error:
            self.message_user(request, f"No job was changed: {error}.", messages.ERROR)
            return
        said = ", ".join(f"{answers[answer]} {what}" for answer, what in ends.items() if answers[answer])
        self.message_user(request, f"Jobs: {said or 'there is no such job'}.", messages.SUCCESS)


@admin.register(PeriodicTask)
class PeriodicTaskAdmin(_ReadOnly):
    """Periodic tasks."""

    list_display = (
        "task_id",
        "queue",
        "group",
        "task",
        "timer",
        "zone",
        "enabled",
        "next_run",
        "last_run",
        "last_outcome",
        "last_job_state",
    )
    ordering = ("task_id", "queue", "group")


@admin.register(Executor)
class ExecutorAdmin(_ReadOnly):
    """Executors, the latest first."""

    list_display = ("app_id", "state", "held", "pool_size", "host", "version", "started_at", "heartbeat_at")
    ordering = ("-id",)


@admin.register(Queue)
class QueueAdmin(_ReadOnly):
    """Queues that have unfinished jobs."""

    list_display = (
        "queue",
        "waiting",
        "deferred",
        "scheduled",
        "running",
        "stuck",
        "groups",
        "oldest_runnable_seconds",
    )
    ordering = ("queue",)


def _connection() -> Any:
    return connections[database_alias()]


async def _log(job_id: UUID) -> list[LogEntry]:
    found = await job_logs.latest_log(await adapted_sync(_connection()), [job_id], _LAST_LINES)
    return found.get(job_id, [])


async def _begin(caller: str) -> str:
    return await audit.begin(await adapted_sync(_connection()), caller)


async def _end(wait: str) -> None:
    await audit.end(await adapted_sync(_connection()), wait)
