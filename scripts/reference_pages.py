"""A Sphinx extension that replaces a line ``<!-- generated: NAME -->`` of a page with Markdown made from the code.

The site is built from the code each time, so that these parts can't drift. NAME is ``cli``, ``http``, ``settings`` or
``crds``. The descriptions are in the code: help texts, models, descriptions of fields.
"""  # noqa: INP001 - not a package

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml
from pydantic import SecretStr

from joex import Client
from joex.cli.app import app as commands
from joex.config import Settings
from joex.core.duration import format_duration
from joex.http.api import create_api

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
_PLACE = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_USAGE = "Usage: "
_COMMON = ("400", "401", "403", "413", "415", "503")
"""Statuses that mean the same for each call, so the page explains them once."""


def cli() -> str:
    """Each command with its usage, arguments and options."""
    root = typer.main.get_command(commands)
    return "\n".join(_command(root, typer.Context(root, info_name="joex")))


def _command(command: Any, context: Any) -> Iterator[str]:
    if context.parent is not None:
        yield f"## {context.command_path}\n"
        yield f"```text\n{command.get_usage(context).removeprefix(_USAGE)}\n```\n"
        yield f"{_prose(command.help)}\n"
        rows = [record for option in command.params if (record := option.get_help_record(context))]
        yield _table(("argument or option", "meaning"), ([_code(name), text] for name, text in rows))
    for name in command.list_commands(context) if hasattr(command, "commands") else ():
        child = command.get_command(context, name)
        if not child.hidden:
            yield from _command(child, typer.Context(child, info_name=name, parent=context))


def http() -> str:
    """Each route with its parameters and answers, then each model."""
    nowhere = "postgresql://nowhere/none"
    api: Any = create_api(Settings(database_url=SecretStr(nowhere)), Client(nowhere), None, None)  # type: ignore[arg-type]
    schema = api.openapi()
    common: dict[str, str] = {}
    routes: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            common |= {status: answers[status]["description"] for status in _COMMON if status in answers}
            routes.setdefault(operation["tags"][0], []).extend(_operation(f"{method.upper()} {path}", operation))
    parts = [schema["info"]["description"].strip() + "\n"]
    parts += ["## Errors\n", _table(("status", "meaning"), sorted(common.items()))]
    for tag, lines in routes.items():
        parts += [f"## Routes: {tag}\n", *lines]
    parts += ["## Models\n", *_models(schema["components"]["schemas"])]
    return "\n".join(parts)


def _operation(name: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield f"{_prose(operation['description'])}\n"
    yield f"{_needs(operation)}\n"
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}\n"
    rows = [
        (_code(one["name"]), _type(one["schema"]), _default(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", [])
    ]
    yield _table(("parameter", "type", "default", "meaning"), rows)
    answers = sorted(operation["responses"].items())
    said = [
        (status, _content(one), one["description"].replace("Successful Response", "success"))
        for status, one in answers
        if status not in _COMMON
    ]
    yield _table(("status", "answer", "meaning"), said)
    yield f"[Errors](#errors): {', '.join(status for status, _ in answers if status in _COMMON)}.\n"


def _needs(operation: Mapping[str, Any]) -> str:
    """The scope that a call needs."""
    scopes = " or ".join(map(_code, operation["x-scopes"]))
    if not scopes:
        return "Scope: none; every caller is served, without a token."
    return f"Scope: {scopes}{', of a token that is bound to nothing' if operation['x-whole-system'] else ''}."


def _content(part: Mapping[str, Any]) -> str:
    return " or ".join(_type(one.get("schema", {})) or kind for kind, one in part.get("content", {}).items())


def _models(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        yield f"### {name}\n"
        yield f"{_prose(schema.get('description', ''))}\n"
        if "properties" not in schema:
            yield f"{_type(schema)}\n"
        required = schema.get("required", ())
        rows = [
            (_code(field), _type(one), "required" if field in required else _default(one), one.get("description", ""))
            for field, one in schema.get("properties", {}).items()
        ]
        yield _table(("field", "type", "default", "meaning"), rows)


def settings() -> str:
    """Each setting with its default."""
    fields = Settings.model_fields.items()
    rows = [(_code(name), _code(_setting(one.default)), one.description or "") for name, one in fields]
    return _table(("setting", "default", "meaning"), rows)


def _setting(value: Any) -> str:
    """A default as you write it in the environment."""
    if value is None:
        return ""
    if isinstance(value, timedelta):
        return format_duration(value)
    return ",".join(value) if isinstance(value, list) else str(value)


def crds() -> str:
    """Each custom resource with all its fields."""
    parts = []
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        spec = yaml.safe_load(path.read_text("utf-8"))["spec"]
        names, [version] = spec["names"], spec["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        parts.append(f"## {names['kind']}\n")
        parts.append(f"`{spec['group']}/{version['name']}`; `kubectl get {', '.join(names['shortNames'])}`.\n")
        parts.append(f"{_prose(schema['description'])}\n")
        for part in ("spec", "status"):
            rows = _fields(schema["properties"][part], part)
            parts.append(_table(("field", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    """The fields below one, depth first; the elements of a list have ``[]`` in their path."""
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        default = "required" if name in required else _default(one)
        yield _code(f"{path}.{name}"), _type(one), default, one.get("description", "")
        yield from _fields(one, f"{path}.{name}")
        yield from _fields(one.get("items", {}), f"{path}.{name}[]")


_LIMITS = {"minimum": "from {}", "maximum": "to {}", "minItems": "at least {}", "maxItems": "at most {}"}


def _type(schema: Mapping[str, Any]) -> str:
    """The type and limits of a value, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in choices))
    if "enum" in schema:
        return ", ".join(_code(json.dumps(value)) for value in schema["enum"])
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = schema.get("format") or schema.get("type", "")
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {})) or 'any'}"
    limits = [text.format(schema[key]) for key, text in _LIMITS.items() if key in schema]
    return f"{kind} ({' '.join(limits)})" if limits else kind


def _default(schema: Mapping[str, Any]) -> str:
    return _code(json.dumps(schema["default"])) if "default" in schema else ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _prose(text: str) -> str:
    """A docstring as Markdown: ``code`` becomes `code`; indented text stays."""
    return text.replace("``", "`").replace("<", "&lt;").strip()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty if it has no rows."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines, ""]) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


_MADE: dict[str, Callable[[], str]] = {"cli": cli, "crds": crds, "http": http, "settings": settings}


def _replace(app: Sphinx, docname: str, source: list[str]) -> None:
    del app, docname
    source[0] = _PLACE.sub(lambda place: _MADE[place[1]](), source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension. Sphinx calls this."""
    app.connect("source-read", _replace)
    return {"parallel_read_safe": True}
