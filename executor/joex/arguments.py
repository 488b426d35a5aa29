"""Checks a job's arguments against the signature of the function that it calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from joex.bounded_validation import MOST_LOOKED_AT, BoundedValidator, place_and_problem
from joex.core.json_values import has_infinity
from joex.errors import ConfigError, InvalidJob

_MOST_NAMED = 20


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
        self._validator = BoundedValidator(self._adapter)

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
                are wrong; of large arguments perhaps only the first wrong one of each array or object.
        """
        if args == "{}" and not self._has_parameters:  # the usual small job has nothing to check
            return {}
        try:
            if isinstance(args, str):
                parsed = dict(self._validator.validate_json(args))
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


def _problems(error: ValidationError) -> str:
    number = error.error_count()
    if number > MOST_LOOKED_AT:
        return f"{number} parts of them are wrong"
    found = error.errors(include_url=False, include_context=False, include_input=False)
    more = [f"and {number - _MOST_NAMED} more"] if number > _MOST_NAMED else []
    return "; ".join([*map(_problem, found[:_MOST_NAMED]), *more])


def _problem(problem: Any) -> str:
    where, what = place_and_problem(problem)
    return f"{where}: {what}" if where else what
