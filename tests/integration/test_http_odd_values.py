"""No value that a caller sends makes an internal error: it is served, or refused with a line that names the field.

JSON can hold values that fit a type and not its range, and values that no program would send. Each parameter, each
field of a body and each part of a cursor gets all of them, one at a time, for each route in the description, including
future ones.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

import joex
from joex import Client
from joex.config import Settings
from joex.http.api import create_api
from joex.runtime.executor import Executor
from tests.support.asgi import transport

ID = "019f0000-0000-7000-8000-000000000000"
VALID = {"job": ID, "lock_id": ID, "type": "t", "id": 1, "task": "t", "timer": "Mon", "event": "Mon", "priority": "low"}
VALID_OBJECTS = {"args": {}, "enabled": True, "paused": True}
IN_JSON = [
    *("1e400", "-1e400", "NaN", "9" * 400, "9223372036854775808", "-9223372036854775809", "1.5", "true", "null"),
    *('""', '"\\u0000"', '"\\ud800"', '"1e400"', '"9999-12-31T23:59:59-14:00"', '"0001-01-01T00:00:00+14:00"'),
    *('"../../etc/passwd"', '"9999999999999999999999 * * * *"', "[" * 300 + "]" * 300, "[null]", '{"x": 1e400}'),
    *('{"double": "7ff8000000000001"}', '{"bytes": "\\ud800"}', f'{{"versionstamp": "{"f" * 24}"}}'),
]
IN_URL = ("1e400", "NaN", "-1", "9" * 400, "9223372036854775808", "%00", "%ED%A0%80", "", "true", "a%0Ab", "%2e%2e%2f")
CURSORS: dict[str, list[Any]] = {
    "held": [1],
    "runnable": ["default", 1, 1, "00", 1],
    "later": ["default", "2026-01-01T00:00:00+00:00", 1],
    "finished": ["2026-01-01T00:00:00+00:00", 1],
}
_NAMES_A_FIELD = re.compile(r"[\w.\[\]]+: |(timer|time zone)\b")


@pytest.mark.heavy
async def test_every_odd_value_is_served_or_refused_by_the_name_of_its_field(client: Client) -> None:
    executor: Any = Executor(joex.App(), Settings(), "")
    api = create_api(Settings(), client, executor, lambda: (b"", "text/plain"))
    local = transport(api, raise_app_exceptions=False)
    wrong = []
    async with httpx.AsyncClient(transport=local, base_url="http://127.0.0.1", timeout=60) as http:
        for method, url, content in calls(api.openapi()):
            headers = {} if content is None else {"Content-Type": "application/json"}
            answer = await http.request(method, url, content=content, headers=headers)
            known = answer.status_code < 500
            if not known or (answer.status_code == 400 and not _NAMES_A_FIELD.match(answer.json()["detail"])):
                wrong.append((method, url[:100], content and content[:200], answer.status_code, answer.text[:200]))
    assert not wrong


def calls(description: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Calls with one odd value each: method, URL, body."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            body = next(iter(bodies(description, operation)), None)
            yield from ((method, url, body) for url in urls(path, operation))
            yield from ((method, filled(path), body) for body in bodies(description, operation))
    for part, key in CURSORS.items():
        for nr in range(len(key)):
            for odd in (*IN_JSON, "32768", '"zz"'):
                values = [json.dumps(part), *map(json.dumps, key[:nr]), odd, *map(json.dumps, key[nr + 1 :])]
                cursor = base64.urlsafe_b64encode(f"[{', '.join(values)}]".encode()).decode().rstrip("=")
                yield "get", f"/api/v1/jobs?cursor={cursor}", None


def filled(path: str) -> str:
    """A path with a value for each parameter."""
    return re.sub(r"{[^}]*}", ID, path)


def urls(path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    """The URL of a call, with each odd value for each parameter."""
    for one in operation.get("parameters", []):
        for odd in IN_URL:
            if one["in"] == "path":
                yield path.replace(f"{{{one['name']}}}", odd)
            else:
                yield f"{filled(path)}?{one['name']}={odd}"


def bodies(description: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[str]:
    """The body of a call, with each odd value for each field, and for each field of the options of a keyed job."""
    if "requestBody" not in operation:
        return
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    is_list = schema.get("type") == "array"
    model = schema["items"] if is_list else schema
    model = description["components"]["schemas"][model["$ref"].rpartition("/")[2]]
    names = [{*model.get("required", []), *way["required"]} for way in model.get("oneOf", [{"required": []}])]
    for name in model["properties"]:
        for odd in IN_JSON:
            given = [odd] if name != "opts" else [odd, *(f'{{"{part}": {odd}}}' for part in ("data", "priority", "x"))]
            for value in given:
                for required in names:
                    fields = {one: json.dumps({**VALID, **VALID_OBJECTS}[one]) for one in required}
                    text = ", ".join(f'"{one}": {said}' for one, said in {**fields, name: value}.items())
                    yield f"[{{{text}}}]" if is_list else f"{{{text}}}"
