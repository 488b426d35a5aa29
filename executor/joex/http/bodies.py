"""Reads the bodies of calls: a large one in its tenant's turn, and without holding up the executor's event loop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing, nullcontext, suppress
from functools import partial
from itertools import count
from json.decoder import WHITESPACE, JSONArray  # type: ignore[attr-defined] # typeshed lacks them
from json.scanner import py_make_scanner  # type: ignore[attr-defined] # likewise
from math import isfinite
from typing import Any

from fastapi import HTTPException, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope

from joex.client.keyed_model import FREE
from joex.core.json_values import Written
from joex.errors import ConfigError, DatabaseUnavailable, InvalidJob
from joex.garbage import collection_paused
from joex.http.caller import caller_of
from joex.http.errors import RETRY_AFTER, cut, told
from joex.http.models import MOST_AT_ONCE, JobBody
from joex.http.turns import Turns, held
from joex.store.json_text import json_text
from joex.store.keyed import OPTIONS
from joex.store.runs import SizeLimits, size_limits

LARGE = 100_000
"""Bytes of a body that takes more than a few milliseconds to parse. A tenant that is bound has one such body parsed and
answered at a time: as objects, 10 MB may take 300 MB until the answer."""
MOST_LARGE = 4
"""Large bodies of a tenant at a time, from the first byte to the answer; of a bound one, as many of reports besides."""
_LIMITED = {"/api/v1/jobs": 1, "/jobber/queue": 1, "/api/v1/keyed/add": 2}
"""The values in a body that have the limit of arguments, where nothing else is large. (add: data and free fields.)"""
_MANY = "/api/v1/jobs/many"
"""Here each element has one such value. A small body, too, may have thousands of them, which takes long to check."""
_LIMITED_BELOW = ("/api/v1/job/", "/api/v1/periodic/")
_CHECKED_FROM = 1_000_000
_OTHER_FIELDS = 20_000
"""More than the other fields of such a body have."""
_MOST_OTHERS = 10_000
"""Lists and objects of a large body besides values of jobs: a type, an id and a priority may have 1000 each."""
_NO_TEXT = b" \t\r\n\0"
_LARGEST_IN_C = 1_200_000
"""Characters: arguments of the usual limit, in a tenth of a second."""
_BEGINNINGS = (200, 2_000, 20_000, 200_000, _LARGEST_IN_C)
"""Characters of an element of an array that are read in C, one after the other, until its end is among them."""


class JsonRequest(Request):
    """A request. FastAPI reads its body by `json`.

    Args:
        scope: as a request has it.
        receive: likewise.
        turn: what ends when the call is served.
        reports: it reports a run.
    """

    def __init__(self, scope: Scope, receive: Receive, turn: AsyncExitStack, *, reports: bool = False) -> None:
        super().__init__(scope, receive)
        self._turn, self._reports = turn, reports

    async def body(self) -> bytes:
        """The body; of a large one, or of its rest if its length is not declared, when it is its turn."""
        if not hasattr(self, "_body"):
            length = self.headers.get("content-length", "0")
            is_large = not length.isdecimal() or int(length) > LARGE
            if is_large:
                await self._begin_large()
            parts, size = list[bytes](), 0
            async with aclosing(self.stream()) as stream:
                async for part in stream:
                    parts.append(part)
                    size += len(part)
                    if size > LARGE and not is_large:  # (it comes in chunks)
                        is_large = True
                        await self._begin_large()
            self._body = b"".join(parts)
        return self._body

    async def _begin_large(self) -> None:
        caller = await caller_of(self)
        # (A tenant that is bound has turns of its own for reports, so that its submissions cost no worker its job. As
        # it has one body parsed at a time, that costs the bytes alone; a token that is not bound is one tenant alone.)
        key = (caller.tenant, "reports") if self._reports and caller.bounds.are_set else caller.tenant
        turns: Turns = self.app.state.turns
        await self._turn.enter_async_context(held(turns.of(key, MOST_LARGE), self.app.state.closing))

    async def json(self) -> Any:
        """The parsed body."""
        body = await self.body()
        caller = await caller_of(self)
        is_large, is_of_many = len(body) > LARGE, self.scope["path"] == _MANY
        if is_large and caller.bounds.are_set:
            alone = self.app.state.turns.of((caller.tenant, "large"), 1)
            await self._turn.enter_async_context(held(alone, self.app.state.closing))
        limits = await self._check_size(body) if is_large else None
        read = partial(_read, body, limits, is_of_many=is_of_many)
        try:
            return await run_in_threadpool(read) if is_large or is_of_many else read()
        except json.JSONDecodeError:
            raise  # FastAPI tells the place
        except InvalidJob as error:
            raise HTTPException(400, str(error)) from error
        except (ValueError, RecursionError) as error:
            detail = (
                "body: can't be read: it is no text, is nested too deeply, or has a number that is not finite, "
                "or of more than 4300 digits"
            )
            raise HTTPException(400, detail) from error

    async def _check_size(self, body: bytes) -> SizeLimits | None:
        """The limits of values, if this body may have one that is larger."""
        path = self.scope["path"]
        values = _LIMITED.get(path, 1 if path.startswith(_LIMITED_BELOW) else 0)
        least = least_size(body) - _OTHER_FIELDS
        if least <= _CHECKED_FROM:
            return None
        try:
            async with self.app.state.client.using() as connection:
                limits = await size_limits(connection)
        except (DatabaseUnavailable, ConfigError) as error:
            raise HTTPException(503, told(error, await caller_of(self)), RETRY_AFTER) from error
        if values and least > values * limits.args:
            raise HTTPException(400, _too_large(limits.args, f"a body of {len(body)}"))
        return limits


def _too_large(limit: int, got: str) -> str:
    return (
        f"args: at most {limit} bytes; got {got}: store it elsewhere and pass a reference, or raise the limit with "
        "joex.set_largest"
    )


def _read(body: bytes, limits: SizeLimits | None, *, is_of_many: bool) -> Any:
    """The value in a body; of a large one, with texts in place of its values of jobs, all of whose parts are gone.

    The collector of garbage would walk over them, with all threads stopped, as soon as its pause ends: over five
    million lists, one in another, for four seconds, and again some time later.
    """
    is_large = len(body) > LARGE
    write = partial(_written, largest=None if limits is None else limits.args) if is_of_many else None
    with collection_paused() if is_large else nullcontext():
        try:
            if not is_large or is_of_many:
                return parse(body, finite=is_large, write=write)
            return _with_texts(parse(body, finite=True), limits)
        except (InvalidJob, ValueError, RecursionError) as error:
            failed = error.with_traceback(None)  # (the frames have the parts, and so have those of its causes)
            failed.__cause__ = failed.__context__ = None
    try:
        raise failed
    finally:
        del failed  # (its traceback has this frame: the collector alone would end that cycle, late)


def _with_texts(body: Any, limits: SizeLimits | None) -> Any:
    """A body that has texts, checked, in place of its values of jobs. What is wrong in another way FastAPI refuses.

    Raises:
        InvalidJob: a value can't be stored, or is larger than its limit; or others have too many parts.
    """
    if not isinstance(body, dict):
        return () if isinstance(body, list) else body  # an empty tuple is as wrong

    def text(field: str, value: Any, most: int | None) -> Written:
        return Written(json_text(field, value, most, most or 0))  # (beside the event loop, it may count all parts)

    args, result = (None, None) if limits is None else (limits.args, limits.result)
    if isinstance(body.get("payload"), list):
        body["payload"] = {"payload": body["payload"]}
    opts = body["opts"] if isinstance(body.get("opts"), dict) else {}
    if free := {name: opts.pop(name) for name in [*opts] if name not in OPTIONS}:
        opts[FREE] = text("opts", free, args)
    for values, name, field in (body, "args", "args"), (body, "payload", "args"), (opts, "data", "data"):
        if isinstance(values.get(name), dict) and values[name]:
            values[name] = text(field, values[name], args)
    if body.get("result") is not None:
        body["result"] = text("result", body["result"], result)
    left, others = _MOST_OTHERS, [body]
    while others:
        other = others.pop()
        inner = [each for each in (other.values() if type(other) is dict else other) if type(each) in (dict, list)]
        if (left := left - len(inner)) < 0:
            raise InvalidJob(f"body: more than {_MOST_OTHERS} lists and objects where none are")
        others += inner
    return body


def _written(nr: int, job: Any, text: str, *, largest: int | None) -> Any:
    """A job of many, checked, whose arguments are their text, before the next one is read.

    As objects, those of a whole body would be millions, over which the collector of garbage walks in the event loop.
    A list or object elsewhere is wrong in any case: an empty tuple is as wrong. What is wrong stays as it is, and
    FastAPI says why: it checks the first such job anew, and accepts those before as they are.

    Raises:
        InvalidJob: the arguments can't be stored, or are larger than that.
    """
    if nr >= MOST_AT_ONCE:  # FastAPI refuses them all, by their number
        return ()
    if not isinstance(job, dict):
        return () if isinstance(job, list) else job
    if largest is not None and least_size(text.encode("utf-8", "surrogatepass")) - _OTHER_FIELDS > largest:
        raise InvalidJob(f"jobs[{nr}].{_too_large(largest, f'a job of {len(text)}')}")
    for name, part in job.items():
        if name == "args" and isinstance(part, dict):
            if part:
                try:
                    job[name] = Written(json_text("args", part))
                except InvalidJob as error:
                    raise InvalidJob(f"jobs[{nr}].{error}") from error
        elif isinstance(part, dict | list):
            job[name] = ()
    try:
        return JobBody.model_validate(job)
    except ValidationError:
        return job


def least_size(body: bytes) -> int:
    r"""How many bytes the values in a body have at least when they are stored, without parsing it.

    >>> least_size(b'["\\u00e9",  1]')
    7
    """
    # \u00e9 becomes one to three bytes; and each byte of NUL makes one less where the body is not UTF-8, but UTF-16.
    return len(body.translate(None, _NO_TEXT)) - 5 * body.count(b"\\u") - body.count(b"\\/")


def parse(body: bytes, *, finite: bool = False, write: Callable[[int, Any, str], Any] | None = None) -> Any:
    """The value in a body.

    In a thread, others go on meanwhile. Python's parser, which is written in C, would stop all threads for more than a
    second: it gets one element of an array after the other, and what is very large is for the parser without C.

    Args:
        body: as it came.
        finite: refuse other numbers.
        write: makes what is kept of an element of an array, from its number, its value and its text.

    Raises:
        json.JSONDecodeError: the body is not JSON.
        InvalidJob: an object has a name twice.
        UnicodeDecodeError: nor text.
        ValueError: a number has too many digits; or with ``finite``, one is not finite. (To find it among millions of
            parts, to say which one it is, would take seconds.)
        RecursionError: values are nested too deeply.
    """
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    numbers: dict[str, Any] = {"parse_constant": _finite, "parse_float": _finite} if finite else {}
    decoder: Any = json.JSONDecoder(object_pairs_hook=_unique, **numbers)
    if text.startswith("[", WHITESPACE.match(text, 0).end()):
        scan = _element_scanner(decoder)
        if write is not None:
            scan = _written_scanner(scan, write)
        decoder.scan_once = lambda text, start: JSONArray((text, start + 1), scan)
    elif len(text) > _LARGEST_IN_C:
        decoder.scan_once = py_make_scanner(decoder)
    with collection_paused() if len(text) > LARGE else nullcontext():
        return decoder.decode(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # (The last value would count; a proxy in front may have judged the first one.)
        name = next(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
        raise InvalidJob(f"{cut(name)}: is given more than once in one object: give it once")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise ValueError(f"{number} is not finite")
    return value


def _element_scanner(decoder: Any) -> Callable[[str, int], Any]:
    """Reads an element of an array: in C, if its end is near."""
    in_c, in_python = decoder.scan_once, py_make_scanner(decoder)

    def scan(text: str, start: int) -> Any:
        if not text.startswith(("{", "["), start):
            return in_c(text, start)
        for most in _BEGINNINGS:  # (most elements are small, and cutting copies)
            with suppress(ValueError, StopIteration):  # it is larger (and was cut within a number, perhaps), or wrong
                value, length = in_c(text[start : start + most], 0)
                return value, start + length
        return in_python(text, start)

    return scan


def _written_scanner(
    scan: Callable[[str, int], Any], write: Callable[[int, Any, str], Any]
) -> Callable[[str, int], Any]:
    numbers = count()

    def scan_and_write(text: str, start: int) -> Any:
        value, end = scan(text, start)
        return write(next(numbers), value, text[start:end]), end

    return scan_and_write
