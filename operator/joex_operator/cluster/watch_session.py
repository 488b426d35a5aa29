"""The HTTP session of kopf's watches, with the TLS settings and credentials of the operator's client.

kopf retries failed watches and does not report whether they succeed. So the session notes for each watched path whether
the latest request succeeded. Nor does kopf report which objects were deleted before it lists anew, as it must where the
API server has no older changes any more, for example after its restart: so the session tells of such lists.

kopf gives all watches up after an answer such as 400, 404 or 410 to one of them. So it sees 429 in their place, after
which alone it goes on trying, and lists anew. A namespace that the operator watches by its name is left out
after 403 and 404, which its owner must mend, and, while other watches are live, after an answer such as 500 or none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
from kubernetes.aio.client import ApiClient
from pydantic_core import CoreSchema, SchemaValidator, core_schema
from yarl import URL

from joex_operator.cluster import object_parts, shallow_json
from joex_operator.cluster.body_turns import PART, SMALL, BodyTurns
from joex_operator.cluster.kubernetes_api import describe

_log = logging.getLogger("joex.operator")

_LOGIN_EVERY = 2.0
"""Seconds between two sessions, because kopf asks for a new one after each 401."""
_REFUSALS, _TOO_MANY = (403, 404), 429
_LOGIN, _LEAST_ERROR, _LEAST_FAILURE = 401, 400, 500
"""Statuses: kopf asks for a new session, and tries again by itself."""
_LONGEST_PAUSE = 20.0
"""Seconds, at most, before kopf, which logs each try, learns of an error that lasts. Its requests may take thirty."""
_LEFT_OUT_FOR = 90.0
"""Seconds after which a watch that is left out, and has not been tried again, is dead."""
_OUTDATED = b'{"type":"ERROR","object":{"code":410}}'
"""The one error in a watch after which kopf lists anew. After any other it gives all watches up."""
_LONGEST = 500
"""Bytes of a line that is no event, in the log."""
_LIST_ANEW_IN = 5.0
"""Seconds after another error in a watch. The next watch may begin with the same one."""


def _of(**parts: CoreSchema) -> CoreSchema:
    """The schema of an object that has these parts."""
    return core_schema.typed_dict_schema({name: core_schema.typed_dict_field(part) for name, part in parts.items()})


_TYPES = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_EVENT = SchemaValidator(_of(type=core_schema.literal_schema(_TYPES), object=_of(metadata=_of())))
"""Reads over an event: kopf needs these fields."""


class _Lines:
    """The body of an answer, whose lines kopf parses: each is an event of a watch."""

    def __init__(self, body: Any, path: str, read: Callable[[bytes], bytes | bytearray], turns: BodyTurns) -> None:
        self._body = body
        self._path = path
        self._read = read
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        """As the body's, in whole lines. Of more bytes than it asks for at once, aiohttp holds as many again."""
        rest = bytearray()
        async with AsyncExitStack() as turn:
            is_large = False
            async for part in self._body.iter_chunked(PART):
                *lines, last = part.split(b"\n")
                for line in lines:
                    rest += line
                    event, wrong = self._event(bytes(rest))
                    rest.clear()
                    if is_large:
                        await turn.aclose()
                        is_large = False
                    yield await self._checked(event, wrong) + b"\n"
                rest += last
                if len(rest) > SMALL and not is_large:
                    await turn.enter_async_context(self._turns.turn(self._path))
                    is_large = True
            event, wrong = self._event(bytes(rest))
            rest.clear()
        yield await self._checked(event, wrong)

    def _event(self, line: bytes) -> tuple[bytes, str]:
        """A line, or `_OUTDATED` in place of one that is no event, and what is to be logged of it.

        Such a line is an error, or nonsense of a proxy.
        """
        event = bytes(self._read(line))
        if not line.strip() or _is_event(event):
            return event, ""
        return _OUTDATED, "" if _is_outdated(line) else line[:_LONGEST].decode(errors="replace")

    async def _checked(self, event: bytes, wrong: str) -> bytes:
        if wrong:
            _log.warning("the watch on %s has ended, and begins again: %s", self._path, wrong)
            await asyncio.sleep(_LIST_ANEW_IN)
        return event


def _is_outdated(line: bytes) -> bool:
    with suppress(ValueError):
        match shallow_json.read(line):
            case {"type": "ERROR", "object": {"code": 410}}:
                return True
    return False


def _is_event(line: bytes) -> bool:
    with suppress(ValueError):
        line.decode()
        try:
            _EVENT.validate_json(line)
        except ValueError:  # (which it also is with 200 levels)
            _EVENT.validate_python(shallow_json.read(line))
        return True
    return False


class _Answer(aiohttp.ClientResponse):
    """An answer of the API server, in which no object is nested too deeply for kopf, or has what nobody reads."""

    turns: BodyTurns

    @property
    def headers(self) -> Any:
        """As aiohttp's, without Retry-After: a proxy's may be a date, on which kopf ends, or hours."""
        headers = self._headers.copy()
        headers.popall("Retry-After", None)
        return headers

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """As aiohttp's."""
        await super().start(connection)
        read: Callable[[bytes], bytes | bytearray]
        read = object_parts.of_event if self._has_parts else shallow_json.shallow
        self.content: Any = _Lines(self.content, self.url.path, read, self.turns)
        return self

    @property
    def _has_parts(self) -> bool:
        return self.ok and object_parts.are_at(self.url.path)

    async def json(self, **_: Any) -> Any:
        """As aiohttp's."""
        if not self.ok:
            return shallow_json.read(await self.read())  # kopf asks for the text of what is no JSON
        async with self.turns.body(self) as text:
            return (object_parts.read_list if self._has_parts else shallow_json.read)(text)


class WatchSession:
    """Creates a session whenever kopf asks for one, and knows the state of the watches. One for each run of kopf.

    Args:
        client: has the credentials and the TLS settings.
        paths: to watch.
        listed_anew: called, in kopf's thread, when kopf has listed what it watched before.
        mend: what mends a refusal in one of several namespaces.
    """

    def __init__(
        self, client: ApiClient, paths: Collection[str], listed_anew: Callable[[], None], mend: str = ""
    ) -> None:
        self._client = client
        self._prefix = URL(client.configuration.host).path.rstrip("/")
        self._paths = tuple(paths)
        self._listed_anew = listed_anew
        self._mend = mend
        self._wrong: dict[str, str] = {}
        self._wrong_since: dict[str, float] = {}
        self._left_out_at: dict[str, float] = {}
        self._live: set[str] = set()
        self._failure = ""
        self._answers = type("_Answer", (_Answer,), {"turns": BodyTurns()})
        self._session: aiohttp.ClientSession | None = None
        self._next_at = 0.0

    def problem(self) -> str | None:
        """Why a watch is not live, in one line; None: all are live, or left out. May be called from any thread."""
        for path in self._paths:
            if self._is_left_out(path):
                continue
            if wrong := self._wrong.get(path):
                return f"the watch on {path}: {wrong}"
            if path not in self._live:
                return f"the watch on {path} has not started" + (f": {self._failure}" if self._failure else "")
        return None

    def left_out(self) -> str | None:
        """Which watch in one of several namespaces is left out, and why, in one line; None: none."""
        left_out = (path for path in self._paths if self._is_left_out(path))
        return next((f"the watch on {path}: {self._wrong.get(path)}" for path in left_out), None)

    def _is_left_out(self, path: str) -> bool:
        at = self._left_out_at.get(path)
        return at is not None and time.monotonic() - at < _LEFT_OUT_FOR

    async def login(self) -> kopf.AiohttpSession:
        """Create a session for kopf, and close the previous one."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(self._next_at - now)
        self._next_at = max(now, self._next_at) + _LOGIN_EVERY
        await self.close()
        configuration, tracing = self._client.configuration, aiohttp.TraceConfig()
        tracing.on_request_start.append(self._authorize)
        tracing.on_request_end.append(self._note_answer)
        tracing.on_request_exception.append(self._note_failure)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._client.rest_client.ssl_context),
            proxy=configuration.proxy,
            trust_env=True,  # as the operator's client does
            trace_configs=[tracing],
            response_class=self._answers,
        )
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=self._session)

    async def close(self) -> None:
        """Close the session, because kopf closes only a session that it has used."""
        if self._session is not None:
            await self._session.close()

    async def _authorize(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, request: aiohttp.TraceRequestStartParams
    ) -> None:
        # For each request, because tokens change: the kubelet renews the file of a pod's token.
        if token := await self._client.configuration.get_api_key_with_prefix("BearerToken"):
            request.headers["Authorization"] = token

    async def _note_answer(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, request: aiohttp.TraceRequestEndParams
    ) -> None:
        answer, path = request.response, self._path(request.url)
        if not answer.ok:
            status = answer.status
            is_refused = status in _REFUSALS and "/namespaces/" in path
            self._note(path, f"{status} {answer.reason}" + (self._mend if is_refused else ""))
            is_failure = status >= _LEAST_FAILURE
            is_left_out = is_refused or (is_failure and self._others_are_live(path))
            if path not in self._paths or status == _LOGIN or status < _LEAST_ERROR:
                return
            if is_failure and not is_left_out:
                return
            answer.status = _TOO_MANY
            if is_left_out:
                await asyncio.sleep(min(_LONGEST_PAUSE, self._leave_out(path)))
        elif request.url.query.get("watch") == "true":
            self._wrong.pop(path, None)
            self._wrong_since.pop(path, None)
            self._left_out_at.pop(path, None)
            self._live.add(path)
        elif path in self._live or path in self._left_out_at:
            self._listed_anew()

    async def _note_failure(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, request: aiohttp.TraceRequestExceptionParams
    ) -> None:
        if not isinstance(request.exception, asyncio.CancelledError):  # kopf ends
            path = self._path(request.url)
            self._note(path, describe(request.exception))
            if self._others_are_live(path):
                self._leave_out(path)

    def _note(self, path: str, wrong: str) -> None:
        self._wrong[path] = self._failure = wrong
        self._wrong_since.setdefault(path, time.monotonic())
        self._left_out_at.pop(path, None)

    def _others_are_live(self, path: str) -> bool:
        """Whether other watches are live while one in a namespace is not."""
        return "/namespaces/" in path and not self._live <= self._wrong.keys()

    def _leave_out(self, path: str) -> float:
        """Leave a watch out; returns for how many seconds it has been wrong."""
        now = self._left_out_at[path] = time.monotonic()
        return now - self._wrong_since[path]

    def _path(self, url: URL) -> str:
        return url.path.removeprefix(self._prefix)
