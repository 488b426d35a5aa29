"""The HTTP session of kopf's watches, with the TLS settings and credentials of the operator's client.

kopf retries failed watches and does not report whether they succeed. So the session notes for each watched path whether
the latest request succeeded. Nor does kopf report which objects were deleted before it lists anew, as it must where the
API server has no older changes any more, for example after its restart: so the session tells of such lists.

kopf gives all watches up after an answer such as 400, 404 or 410 to one of them. So it sees 429 in their place, after
which alone it goes on trying, and lists anew. In a namespace that the operator watches by its name, 403 and 404 are for
its owner to mend.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
from kubernetes.aio.client import ApiClient
from yarl import URL

from joex_operator.cluster import object_parts, shallow_json
from joex_operator.cluster.kubernetes_api import describe

_LOGIN_EVERY = 2.0
"""Seconds between two sessions, because kopf asks for a new one after each 401."""
_REFUSALS, _TOO_MANY = (403, 404), 429
_LOGIN, _LEAST_ERROR, _LEAST_FAILURE = 401, 400, 500
"""Statuses: kopf asks for a new session, and tries again by itself."""
_REFUSED_AGAIN_IN = 20.0
"""Seconds before kopf, which logs each try, learns of a refusal. Its requests may take thirty."""
_REFUSED_FOR = 90.0
"""Seconds after which a refused watch that has not been tried again is dead."""


class _Lines:
    """The body of an answer, whose lines kopf parses: each is an event of a watch."""

    def __init__(self, body: Any, read: Callable[[bytes], bytes]) -> None:
        self._body = body
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """As the body's, in whole lines."""
        rest = b""
        async for data in self._body.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield self._read(line) + b"\n"
        yield rest


class _Answer(aiohttp.ClientResponse):
    """An answer of the API server, in which no object is nested too deeply for kopf, or has what nobody reads."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """As aiohttp's."""
        await super().start(connection)
        self.content: Any = _Lines(self.content, object_parts.of_event if self._has_parts else shallow_json.shallow)
        return self

    @property
    def _has_parts(self) -> bool:
        return self.ok and object_parts.are_at(self.url.path)

    async def json(self, **_: Any) -> Any:
        """As aiohttp's."""
        return (object_parts.read_list if self._has_parts else shallow_json.read)(await self.read())


class WatchSession:
    """Creates a session whenever kopf asks for one, and knows the state of the watches. One for each run of kopf.

    Args:
        client: has the credentials and the TLS settings.
        paths: to watch.
        listed_anew: called, in kopf's thread, when kopf has listed what it watched before.
    """

    def __init__(self, client: ApiClient, paths: Collection[str], listed_anew: Callable[[], None]) -> None:
        self._client = client
        self._prefix = URL(client.configuration.host).path.rstrip("/")
        self._paths = tuple(paths)
        self._listed_anew = listed_anew
        self._wrong: dict[str, str] = {}
        self._refused_at: dict[str, float] = {}
        self._live: set[str] = set()
        self._failure = ""
        self._session: aiohttp.ClientSession | None = None
        self._next_at = 0.0

    def problem(self) -> str | None:
        """Why a watch is not live, in one line; None: all are live, or refused. May be called from any thread."""
        for path in self._paths:
            if self._is_refused(path):
                continue
            if wrong := self._wrong.get(path):
                return f"the watch on {path}: {wrong}"
            if path not in self._live:
                return f"the watch on {path} has not started" + (f": {self._failure}" if self._failure else "")
        return None

    def refusal(self) -> str | None:
        """Which watch in one of several namespaces the API server refuses, in one line; None: none."""
        refused = (path for path in self._paths if self._is_refused(path))
        return next((f"the watch on {path}: {self._wrong.get(path)}" for path in refused), None)

    def _is_refused(self, path: str) -> bool:
        at = self._refused_at.get(path)
        return at is not None and time.monotonic() - at < _REFUSED_FOR

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
            response_class=_Answer,
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
            self._note(request.url, f"{status} {answer.reason}")
            if path not in self._paths or status == _LOGIN or not _LEAST_ERROR <= status < _LEAST_FAILURE:
                return
            answer.status = _TOO_MANY
            if status in _REFUSALS and "/namespaces/" in path:
                self._refused_at[path] = time.monotonic()
                await asyncio.sleep(_REFUSED_AGAIN_IN)
        elif request.url.query.get("watch") == "true":
            self._wrong.pop(path, None)
            self._refused_at.pop(path, None)
            self._live.add(path)
        elif path in self._live or path in self._refused_at:
            self._listed_anew()

    async def _note_failure(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, request: aiohttp.TraceRequestExceptionParams
    ) -> None:
        if not isinstance(request.exception, asyncio.CancelledError):  # kopf ends
            self._note(request.url, describe(request.exception))

    def _note(self, url: URL, wrong: str) -> None:
        self._wrong[self._path(url)] = self._failure = wrong
        self._refused_at.pop(self._path(url), None)

    def _path(self, url: URL) -> str:
        return url.path.removeprefix(self._prefix)
