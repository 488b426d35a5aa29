"""Checks a job's arguments against the signature of the function that it calls."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from joex.core.json_values import has_infinity
from joex.errors import ConfigError, InvalidJob

_MOST_NAMED = 20
_MOST_LOOKED_AT = 1_000
"""Wrong parts of which some are named: pydantic gives the problems of all, and a megabyte may have 200,000."""
_LARGE = 16_000
"""Characters of arguments: the problems of shorter ones are few, and their names short."""
_OF_PROBLEMS = 100
"""Bytes that the ways to all problems may take, for each character of the arguments, or of a megabyte of them."""
_OF_A_PART = 24
"""Bytes that pydantic needs for each part of the way to a problem, beside the name."""
_STEPS = [(one in b"[{") - (one in b"]}") for one in range(256)]
"""How many levels each byte leads down."""
_NO_BRACKETS = bytes(one for one in range(256) if not _STEPS[one])


class Arguments:
    """The arguments that a task's function takes by name: all its parameters except the first, which is the context.

    Raises:
        ConfigError: no job can call this function; the message names the task.
    """

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self._task = task
        parameters = _by_name(function, task)
        self._positional = [p.name for p in _parameters(function)[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._has_parameters = bool(parameters)

        def collect(**arguments: Any) -> dict[str, Any]:
            return arguments

        # pydantic checks calls against this signature; the function returns its arguments.
        collect.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        collect.__annotations__ = {p.name: p.annotation for p in parameters}
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(collect)  # type: ignore[arg-type] # pydantic takes functions too
        except Exception as error:
            raise ConfigError(f"task {task!r}: pydantic can't check its arguments: {error}") from error

    def name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Give the arguments of a call their names.

        Raises:
            InvalidJob: there are too many without a name, or one is given twice; the message says which.
        """
        if len(args) > (most := len(self._positional)):
            raise InvalidJob(f"arguments of task {self._task!r}: at most {most} come without names; got {len(args)}")
        named = dict(zip(self._positional, args, strict=False))
        if twice := [name for name in named if name in kwargs]:
            raise InvalidJob(f"arguments of task {self._task!r}: {twice[0]}: is given twice")
        return named | dict(kwargs)

    def parse(self, args: str | Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments, JSON text or values, into the types that the function expects.

        Raises:
            InvalidJob: the arguments don't fit the signature; the message names the first wrong ones, unless very many
                are wrong.
        """
        if args == "{}" and not self._has_parameters:  # the usual small job has nothing to check
            return {}
        try:
            if isinstance(args, str):
                most = _OF_PROBLEMS * max(len(args), 1_000_000)
                if len(args) > _LARGE and _most_of_problems(args) > most and _bytes_of_problems(args) > most:
                    raise InvalidJob(f"arguments of task {self._task!r}: too many parts below names that are too long")
                parsed = dict(self._adapter.validate_json(args))
                if has_infinity(args):
                    raise InvalidJob(f"arguments of task {self._task!r}: a number is beyond the range of doubles")
                return parsed
            return dict(self._adapter.validate_python(dict(args)))
        except ValidationError as error:
            raise InvalidJob(f"arguments of task {self._task!r}: {_problems(error)}") from None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _by_name(function: Callable[..., Any], task: str) -> list[inspect.Parameter]:
    """The parameters after the context, with their annotations resolved to types."""
    parameters = _parameters(function)
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ConfigError(f"task {task!r}: the function needs a first parameter for the context: def task(ctx, ...)")
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters[1:]):
        raise ConfigError(
            f"task {task!r}: arguments come by name: the function can't have positional-only parameters or *args"
        )
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(f"task {task!r}: an annotation can't be resolved: {error}") from error
    by_name = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters[1:]]
    return [p.replace(annotation=hints.get(p.name, Any)) for p in by_name]


def _most_of_problems(args: str) -> int:
    """No less than `_bytes_of_problems`, in a fraction of its time, which most arguments are far below."""
    text = args.replace("\\\\", "__").replace('\\"', "__") if "\\" in args else args
    pieces = text.split('"')  # what is outside of texts, and inside, by turns
    named = [one for one, after in zip(pieces[1::2], pieces[2::2], strict=False) if after.lstrip()[:1] == ":"]
    outside = "".join(pieces[::2])
    brackets = outside.encode("ascii", "replace").translate(None, _NO_BRACKETS)
    levels = max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
    parts = outside.count(",") + brackets.count(b"[") + brackets.count(b"{")
    return parts * (levels + 1) * (_OF_A_PART + 4 * max(map(len, named), default=0))


def _bytes_of_problems(args: str) -> int:
    """How much pydantic would need for the ways to all parts of these arguments, if each part was wrong.

    It copies the names on the way to each wrong part: a name of 300 kB above 100,000 of them, in one megabyte, would
    be 30 GB.
    """
    try:
        todo = [(json.loads(args, parse_int=str, parse_float=str), 0)]
    except (ValueError, RecursionError):  # pydantic says what is wrong, once
        return 0
    total = 0
    while todo:
        one, way = todo.pop()
        way += _OF_A_PART
        total += way * len(one)
        if isinstance(one, dict):
            total += sum(map(_bytes, one))
            todo += [(part, way + _bytes(name)) for name, part in one.items() if isinstance(part, dict | list)]
        else:
            todo += [(part, way) for part in one if isinstance(part, dict | list)]
    return total


def _bytes(name: str) -> int:
    return len(name) if name.isascii() else 4 * len(name)


def _problems(error: ValidationError) -> str:
    number = error.error_count()
    if number > _MOST_LOOKED_AT:
        return f"{number} parts of them are wrong"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    more = [f"and {number - _MOST_NAMED} more"] if number > _MOST_NAMED else []
    return "; ".join([*map(_problem, found[:_MOST_NAMED]), *more])


def _problem(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {problem['msg']}" if where else str(problem["msg"])
