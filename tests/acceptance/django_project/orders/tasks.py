import asyncio
import threading

from django.utils.functional import SimpleLazyObject

import joex
from joex.django import periodic
from joex.django.framework import Task  # (of django.tasks, or of its backport)

from .models import Order

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class OutOfStockError(Exception):
    pass


@task
def add(a, b):
    return a + b


@task(priority=10, queue_name="mail")
def send(to, *, subject="hello"):
    return (to, subject)


@task(takes_context=True)
def tell(context, what):
    context.run.progress(50, what)
    context.run.log.info("%s %s", what, context.run.group)
    result = context.task_result
    return [
        context.attempt,
        result.id == str(context.run.job_id),
        str(result.status),
        result.args,
        context.run.priority,
    ]


class Noting(list):
    """The name of the thread that looks through it."""

    def __iter__(self):
        yield threading.current_thread().name


@task(takes_context=True)
async def look(context, values):
    return [context.task_result.kwargs["values"] is values, threading.current_thread().name, Noting()]


@task
def write(item):
    return Order.objects.create(item=item).pk


@task
async def write_async(item):
    return (await Order.objects.acreate(item=item)).pk


@task
async def hang(item):
    await Order.objects.acreate(item=item)
    await asyncio.Event().wait()


@task
def fail(item):
    Order.objects.create(item=item)
    raise OutOfStockError(f"no {item}\nos.system: no")


@task
async def fail_async():
    raise OutOfStockError("nothing")


@SimpleLazyObject
def lazy():
    raise AssertionError("nobody needs this")


threads_of_long_text: list[str] = []


class LongError(Exception):
    def __str__(self):
        threads_of_long_text.append(threading.current_thread().name)
        return "so long\n" * 100_000


@task
def fail_at_length():
    raise LongError


@task
async def fail_at_length_async():
    raise LongError


@task
def give_up(why):
    raise joex.Fail(why)


@task
def odd():
    return {1}


@periodic("03:00", zone="Europe/Zurich", args={"a": 1, "b": 2})
@task
def nightly(a, b):
    return a + b


variant: Task = add.using(queue_name="mail")  # another object for the same function
