"""Renders pages. What jobs carry is hostile text: the templates escape every value, and no answer has code inline."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from shlex import quote
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope as CallScope

from joex.console.pace import Pace
from joex.console.snapshot import Snapshot
from joex.core.access import Scope
from joex.core.duration import span
from joex.http.caller import Caller
from joex.http.state import CALLER
from joex.store.value_beginnings import Beginning

AWAY = "The database is away"
MOST_SHOWN = 20_000
"""Characters of a value."""
_TOKENS = re.compile(r'"(?:[^"\\]+|\\.)*"?|[][{},:]|[^][{},:"\s]+')
_OPENING, _CLOSING = ("{", "["), ("}", "]")
_STATIC = ("console.css", "console.js", "idiomorph-0.8.0.min.js", "icon.svg")


class Views:
    """Renders the templates of this package.

    Args:
        pace: how often pages ask again.
    """

    def __init__(self, pace: Pace) -> None:
        self._templates = Environment(
            loader=PackageLoader("joex.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "span": span, "clock": clock, "moment": moment, "value": shown_value, "count": count, "plural": plural,
            "params": params, "quoted": quoted,
        }  # fmt: skip
        folder = resources.files("joex.console") / "static"
        digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()[:12] for name in _STATIC}
        self._templates.globals |= {"digests": digests}
        self._pace = pace
        self._boot = secrets.token_hex(4)  # numbers of snapshots begin anew with each process

    def page(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        trouble: str | None = None,
        snapshot: Snapshot | None = None,
        **context: Any,
    ) -> Response:
        """A page; or status 304, if the browser has it as it is.

        Args:
            request: the call.
            template: its name.
            status: of the answer.
            trouble: why its numbers are old; None: they are not.
            snapshot: what the page shows; None: it shows more than that.
            context: the variables of the template.
        """
        caller: Caller | None = getattr(request.state, CALLER, None)
        known = request.headers.get("if-none-match")
        tag = None
        if snapshot is not None and status == 200:  # noqa: PLR2004 - OK
            parts = (self._boot, snapshot.number, trouble, caller and (caller.key, sorted(caller.scopes)))
            tag = _tag(repr(parts))
            if known == tag:
                return Response(status_code=304, headers={"ETag": tag})
        html = self._render(request.scope, template, caller, snapshot=snapshot, trouble=trouble, **context)
        if tag is None:
            tag = _tag(html)
            if known == tag and status == 200:  # noqa: PLR2004 - OK
                return Response(status_code=304, headers={"ETag": tag})
        return HTMLResponse(html, status, {"ETag": tag})

    def error(
        self, scope: CallScope, status: int, detail: str, headers: Mapping[str, str] | None = None, title: str = ""
    ) -> HTMLResponse:
        """The page that says why a call is not served; without a title, it has the usual one of its status."""
        caller: Caller | None = scope.get("state", {}).get(CALLER)
        titles = {401: "Not signed in", 403: "Not allowed", 404: "Not found", 503: "Not now"}
        title = title or titles.get(status, "This can't be done")
        detail = " ".join(detail.split())
        html = self._render(scope, "error.html", caller, trouble=None, title=title, detail=detail, status=status)
        return HTMLResponse(html, status, headers)

    def _render(self, scope: CallScope, template: str, caller: Caller | None, **context: Any) -> str:
        scopes = caller.scopes if caller else frozenset()
        common = {
            "root": scope.get("root_path", ""),
            "path": scope["path"],
            "caller": caller,
            "sees_payloads": Scope.PAYLOADS in scopes,
            "may_operate": Scope.OPERATE in scopes,
            "is_bound": caller is not None and caller.bounds.are_set,
            "snapshot": None,
            "paced": partial(self._pace.every, caller and caller.tenant),
        }
        html: str = self._templates.get_template(template).render(common | context)
        return html


def clock(at: datetime | None) -> str:
    """A time of the day, in UTC.

    >>> clock(datetime(2026, 1, 31, 3, 0, 5, tzinfo=UTC))
    '03:00:05'
    """
    return "-" if at is None else f"{at.astimezone(UTC):%H:%M:%S}"


def moment(at: datetime | None) -> str:
    """A time, in UTC, to a second.

    >>> moment(datetime(2026, 1, 31, 3, 0, 5, tzinfo=UTC))
    '2026-01-31 03:00:05Z'
    """
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def shown_value(value: str | Beginning) -> str:
    """A text or a JSON value, cut where it is long."""
    if isinstance(value, str):
        value = Beginning(value[:MOST_SHOWN], len(value))
    text, read = _indented(value.text, MOST_SHOWN) if value.is_json else (value.text, len(value.text))
    return text if read == value.length else f"{text}\n... and {value.length - read:,} more"


def _indented(text: str, most: int) -> tuple[str, int]:
    """The beginning of a JSON text as one with indents, of so many characters at most; and how many of it that has.

    >>> print(_indented('{"a": [], "b": [1, "c, d', 99)[0])
    {
      "a": [],
      "b": [
        1,
        "c, d
    """
    parts, size, depth, last = list[str](), 0, 0, ""
    for found in _TOKENS.finditer(text):
        token = found[0]
        depth -= token in _CLOSING
        space = " " if last == ":" else ""
        if last == "," or (last in _OPENING) != (token in _CLOSING):
            space = "\n" + "  " * depth
        left = max(most - size - len(space), 0)
        if len(token) > left:
            return "".join([*parts, space, token[:left]] if left else parts), found.start() + left
        parts += (space, token)
        size += len(space) + len(token)
        depth += token in _OPENING
        last = token
    return "".join(parts), len(text)


def count(number: float | None) -> str:
    """A number for people.

    >>> count(12345), count(2.5), count(2.0), count(None)
    ('12,345', '2.5', '2', '-')
    """
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}".removesuffix(".0")


def plural(number: int, word: str) -> str:
    """A number and its word.

    >>> plural(1, "job"), plural(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def quoted(text: str) -> str:
    r"""The text as one word of a shell, without control characters: a terminal into which it is pasted would obey them.

    >>> print(quoted("new mail"), quoted("a\x03'"))
    'new mail' $'a\003\047'
    """
    if text.isprintable():
        return quote(text)
    plain = (c if c.isprintable() and c not in "\\'" else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in text)
    return f"$'{''.join(plain)}'"


def params(given: Mapping[str, Any]) -> str:
    """The query of a link; what is None or empty is left out."""
    return urlencode([(name, value) for name, value in given.items() if value not in (None, "")])


def _tag(text: str) -> str:
    return f'"{hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:20]}"'
