"""Tasks: their registration, and the checks of their arguments."""

import json
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, JsonValue

from joex import App, ConfigError, Context, InvalidJob, NewJob, Task, bounded_validation
from tests.support.markers import ends_early


@pytest.fixture
def app():
    return App()


class Page(BaseModel):
    number: int
    title: str = ""


def test_a_task_is_found_by_its_name(app):
    @app.task("documents.ingest")
    async def ingest(ctx: Context) -> None: ...

    assert app.get("documents.ingest") is ingest
    assert "documents.ingest" in app
    assert app.get("documents.other") is None
    assert app.names == ["documents.ingest"]
    assert list(app) == [ingest]


def test_a_name_is_given_once(app):
    app.add(Task(lambda _ctx: None, "a"))
    with pytest.raises(ConfigError, match="task 'a': the app already has one with this name"):
        app.add(Task(lambda _ctx: None, "a"))


@pytest.mark.parametrize("name", ["", "x" * 255, "a\0b"])
def test_a_name_must_fit_into_the_database(app, name):
    with pytest.raises(ConfigError, match=r"^task .*: name: "):
        app.task(name)(lambda _ctx: None)


def test_no_task_has_a_name_of_joexs_own(app):
    with pytest.raises(
        ConfigError, match=r"^task 'joex.mail': name: must not begin with joex., as Joex's own names do$"
    ):
        app.task("joex.mail")(lambda _ctx: None)
    assert app.names == []


def test_a_decorator_without_parentheses_is_told_what_it_lacks(app):
    def send(ctx): ...

    with pytest.raises(ConfigError, match=r'^task: expected a name; write @app.task\("name"\); got <function .*send'):
        app.task(send)
    assert app.names == []
    task = app.task("send")(send)
    with pytest.raises(
        ConfigError, match=r'^periodic: expected a timer; write @app.periodic\("Mon..Fri 08:00"\); got <'
    ):
        app.periodic(task)


def test_a_task_can_be_called_as_the_function_that_it_is(app):
    @app.task("add")
    def add(_ctx, a: int, b: int) -> int:
        return a + b

    assert add(None, 1, b=2) == 3


def test_an_async_task_is_told_from_one_that_runs_in_a_thread(app):
    @app.task("async")
    async def on_the_loop(ctx): ...

    @app.task("plain")
    def in_a_thread(ctx): ...

    assert on_the_loop.is_async
    assert not in_a_thread.is_async


def test_defaults_of_a_task_are_kept_with_it(app):
    task = app.task("a", queue="mail", retries=0, retry_delay="2m", timeout=1.5)(lambda _ctx: None)
    assert (task.queue, task.retries) == ("mail", 0)
    assert (task.retry_delay, task.timeout) == (timedelta(minutes=2), timedelta(seconds=1.5))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"retries": -1}, "task 'a': retries: expected 0 to 1000000; got -1"),
        ({"retries": "3"}, "task 'a': retries: expected 0 to 1000000; got '3'"),
        ({"timeout": "soon"}, "task 'a': timeout: expected something like '30s'"),
        ({"retry_delay": -1}, "task 'a': retry_delay: expected 0 to 3650 days"),
    ],
    ids=["retries", "retries as text", "timeout", "retry_delay"],
)
def test_a_wrong_default_is_refused_when_the_task_is_made(app, setting, problem):
    with pytest.raises(ConfigError, match=problem):
        app.task("a", **setting)(lambda _ctx: None)


def test_arguments_become_what_the_annotations_say(app):
    @app.task("a")
    def task(ctx, day: date, ids: list[UUID], page: Page, pages: dict[str, Page] | None = None): ...

    args = task.parse_arguments(
        '{"day": "2030-01-02", "ids": ["00000000-0000-0000-0000-000000000001"], "page": {"number": 3}}'
    )
    assert args["day"] == date(2030, 1, 2)
    assert args["ids"] == [UUID(int=1)]
    assert args["page"] == Page(number=3)


def test_a_default_is_used_where_nothing_is_given(app):
    @app.task("a")
    def task(ctx, a: int, b: int = 7): ...

    assert {"b": 7, **task.parse_arguments('{"a": 1}')} == {"a": 1, "b": 7}


def test_arguments_may_be_values_as_well_as_json(app):
    @app.task("a")
    def task(ctx, day: date): ...

    assert task.parse_arguments({"day": date(2030, 1, 2)}) == task.parse_arguments('{"day": "2030-01-02"}')


def test_a_function_without_annotations_takes_anything(app):
    @app.task("a")
    def task(ctx, x, **more): ...

    assert task.parse_arguments('{"x": [1], "y": null}') == {"x": [1], "y": None}


def test_a_task_without_parameters_refuses_arguments(app):
    @app.task("a")
    def task(ctx): ...

    assert task.parse_arguments("{}") == {}
    with pytest.raises(InvalidJob, match="arguments of task 'a': x: "):
        task.parse_arguments('{"x": 1}')


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ('{"b": "x"}', ["a: "]),
        ('{"a": "one"}', ["a: "]),
        ('{"a": 1, "c": 2}', ["c: "]),
        ('{"a": "one", "b": 5}', ["a: ", "b: "]),
        ('{"a": -1}', ["a: "]),
        ("[1]", []),
        ("{", []),
    ],
)
def test_each_wrong_argument_is_named(app, args, named):
    @app.task("pay")
    def task(ctx, a: Annotated[int, Field(ge=0)], b: str = ""): ...

    with pytest.raises(InvalidJob) as caught:
        task.parse_arguments(args)
    message = str(caught.value)
    assert message.startswith("arguments of task 'pay': ")
    assert all(name in message for name in named)
    assert "\n" not in message


def test_a_method_like_first_parameter_is_needed_for_the_context(app):
    with pytest.raises(ConfigError, match="needs a first parameter for the context"):
        app.task("a")(lambda: None)


def test_a_first_parameter_that_comes_by_name_cannot_be_the_context(app):
    def task(*, ctx): ...

    with pytest.raises(ConfigError, match="needs a first parameter for the context"):
        app.task("a")(task)


@pytest.mark.parametrize(("wrong", "said"), [(25, "and 5 more"), (10_000, ": 10000 parts of them are wrong")])
def test_of_very_many_wrong_arguments_few_are_named(app, wrong, said):
    @app.task("a")
    def task(ctx, numbers: list[int]): ...

    with pytest.raises(InvalidJob) as refused:
        task.parse_arguments(json.dumps({"numbers": ["x"] * wrong}))
    assert str(refused.value).endswith(said)
    assert len(str(refused.value)) < 3_000


@ends_early
@pytest.mark.parametrize(
    ("name", "parts", "depth"), [("k" * 3_000, 1_000, 1), ("\U0001f600" * 300, 2_000, 1), ("k" * 50, 1_000, 90)]
)
def test_of_wrong_parts_below_long_names_the_first_is_named_and_pydantic_copies_no_name_for_the_others(
    app, name, parts, depth, monkeypatch
):
    monkeypatch.setattr(bounded_validation, "_MOST_BYTES", 1_000_000)
    kind: Any = list[int]
    rows: Any = [None] * parts
    for _ in range(depth):
        rows, kind = {name: rows}, dict[str, kind]

    def function(ctx, rows): ...

    function.__annotations__["rows"] = kind
    first = r"rows\..*: Input should be a valid integer"
    with pytest.raises(InvalidJob, match=rf"arguments of task 'a': {first}$"):
        app.task("a")(function).parse_arguments(json.dumps({"rows": rows}, ensure_ascii=False))


class Row(BaseModel):
    sku: str
    name: str
    price: float
    tax: float


class Changed(Row):
    before: str


@ends_early
def test_of_very_many_empty_objects_for_a_union_of_models_the_first_is_checked_alone(app, monkeypatch):
    monkeypatch.setattr(bounded_validation, "_MOST_BYTES", 1_000_000)

    @app.task("a")
    def task(ctx, rows: list[Row | Changed]): ...

    wrong = r": rows\.0\.union\[Row\]: a part of it is wrong; rows\.0\.union\[Changed\]: a part of it is wrong$"
    with pytest.raises(InvalidJob, match=wrong):
        task.parse_arguments(json.dumps({"rows": [{}] * 1_000}))


@pytest.mark.parametrize(
    "rows",
    [{"k" * 200: [1] * 400_000}, {f"name of record {nr}": [nr] * 3 for nr in range(30_000)}, [[[10]] * 100] * 1_400],
)
def test_large_arguments_that_fit_are_taken(app, rows):
    @app.task("a")
    def task(ctx, rows: JsonValue): ...

    assert task.parse_arguments(json.dumps({"rows": rows})) == {"rows": rows}


def test_large_arguments_are_taken_where_their_problems_might_take_too_much_memory(app, monkeypatch):
    monkeypatch.setattr(bounded_validation, "_MOST_BYTES", 1_000_000)

    @app.task("a")
    def task(ctx, rows: dict[str, list[Row | Changed]], **more: Row): ...

    row: Any = {"sku": "a", "name": "b", "price": 1, "tax": 0.5}
    changed = row | {"before": "c"}
    taken = task.parse_arguments(json.dumps({"rows": {"k" * 600: [row, changed] * 500}, "other": row}))
    assert taken == {"rows": {"k" * 600: [Row(**row), Changed(**changed)] * 500}, "other": Row(**row)}


def test_arguments_come_by_name_so_that_others_are_refused_when_the_task_is_made(app):
    def positional(ctx, a, /): ...

    def star(ctx, *args): ...

    for function in (positional, star):
        with pytest.raises(ConfigError, match="arguments come by name: the function"):
            app.task("a")(function)


def test_an_annotation_that_does_not_exist_is_refused_when_the_task_is_made(app):
    def task(ctx, a: "Nothing"): ...  # type: ignore[name-defined]  # noqa: F821 - that is the mistake

    with pytest.raises(ConfigError, match="task 'a': an annotation can't be resolved"):
        app.task("a")(task)


def test_an_annotation_that_nothing_can_be_checked_against_is_refused_when_the_task_is_made(app):
    class Unknown: ...

    def task(ctx, a: Unknown): ...

    with pytest.raises(ConfigError, match="task 'a': pydantic can't check its arguments"):
        app.task("a")(task)


def test_dataclasses_can_be_arguments():
    @dataclass
    class Point:
        x: int

    def task(ctx, point: Point): ...

    assert Task(task, "a").parse_arguments('{"point": {"x": 1}}') == {"point": Point(1)}


class Recorder:
    """A client that records submissions."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def submit(self, task, args, **options):
        self.calls.append((task, args, options))


async def test_a_task_submits_jobs_of_its_own_name_into_its_own_queue(app):
    task = app.task("mail.send", queue="mail")(lambda _ctx, to: to)
    client = Recorder()
    await task.submit(client, to="a@example.org")
    await task.options(group="acme", priority="high").submit(client, to="b@example.org")
    await task.options(queue="bulk").submit(client, to="c@example.org")
    assert [(name, args, options["queue"]) for name, args, options in client.calls] == [
        ("mail.send", {"to": "a@example.org"}, "mail"),
        ("mail.send", {"to": "b@example.org"}, "mail"),
        ("mail.send", {"to": "c@example.org"}, "bulk"),
    ]
    assert client.calls[1][2]["group"] == "acme"
    assert client.calls[1][2]["priority"] == "high"


async def test_a_task_refuses_wrong_arguments_before_anything_is_submitted(app):
    @app.task("a")
    def task(ctx, x: int): ...

    client = Recorder()
    with pytest.raises(InvalidJob, match="x: "):
        await task.submit(client, x="one")
    assert client.calls == []


async def test_an_argument_may_have_any_name_also_one_of_the_options(app):
    @app.task("a")
    def task(ctx, self: str, client: str, group: str, priority: int): ...

    client = Recorder()
    given = {"self": "s", "client": "c", "group": "g", "priority": 3}
    await task.submit(client, **given)
    await task.options(group="acme").submit(client, **given)
    assert [args for _, args, _ in client.calls] == [given, given]


def test_a_new_job_is_checked_and_has_the_options(app):
    @app.task("a", queue="large")
    def task(ctx, self: int, page: Page | None = None): ...

    assert task.new_job(self=1) == NewJob("a", {"self": 1}, queue="large")
    with_options = task.options(group="acme", priority="HIGH", not_before=timedelta(0), tracker="t", retries=2)
    job = with_options.new_job(1, Page(number=2))
    assert job.args == {"self": 1, "page": Page(number=2)}
    assert (job.group, job.queue, job.priority, job.tracker, job.retries) == ("acme", "large", "high", "t", 2)
    assert job.not_before is not None
    with pytest.raises(InvalidJob, match=r"^arguments of task 'a': self: Input should be a valid integer"):
        task.new_job("one")
    with pytest.raises(InvalidJob, match=r"^priority: "):
        task.options(priority="urgent").new_job(1)


def test_a_new_job_can_not_be_of_a_transaction_that_submit_many_would_not_use(app):
    task = app.task("a")(lambda _ctx: None)
    with pytest.raises(InvalidJob, match=r"^connection: give it to submit_many, not to options$"):
        task.options(connection=object()).new_job()


async def test_arguments_may_come_in_the_order_of_the_function_as_in_a_call(app):
    @app.task("a")
    def task(ctx, x: int, y: int = 0, *, z: int = 0, **more: int): ...

    client = Recorder()
    await task.submit(client, 1, 2, z=3)
    await task.options(group="acme").submit(client, 1, w=4)
    assert [args for _, args, _ in client.calls] == [{"x": 1, "y": 2, "z": 3}, {"x": 1, "w": 4}]


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((1, 2, 3), {}, "at most 2 come without names; got 3"),
        ((1,), {"y": 2, "x": 3}, "x: is given twice"),
        (("one",), {}, "x: Input should be a valid integer"),
    ],
    ids=["too many", "twice", "wrong"],
)
async def test_wrong_arguments_in_the_order_of_the_function_are_refused(app, args, kwargs, problem):
    @app.task("a")
    def task(ctx, x: int, y: int = 0, *, z: int = 0): ...

    client = Recorder()
    with pytest.raises(InvalidJob, match=f"^arguments of task 'a': {problem}"):
        await task.submit(client, *args, **kwargs)
    assert client.calls == []


def test_a_cancel_handler_is_kept_with_its_task(app):
    task = app.task("a")(lambda _ctx: None)
    assert task.cancel_handler is None

    @task.on_cancel
    def undo(_ctx): ...

    assert task.cancel_handler is undo


def test_an_id_of_a_periodic_task_that_is_too_long_with_the_name_of_its_app_is_told_as_a_mistake():
    app = App("a" * 149)

    @app.periodic("daily", id="b" * 100)
    @app.task("tidy")
    def tidy(ctx): ...

    with pytest.raises(ConfigError, match=r"^app 'a+': periodic tasks: id: at most 240 bytes; got 250"):
        _ = app.periodic_tasks
