"""The HTTP session of kopf's watches, with the TLS settings and credentials of the operator's client.

kopf retries failed watches and does not report whether they succeed. So the session notes for each watched path whether
the latest request succeeded. Nor does kopf report which objects were deleted before it lists anew, as it must where the
API server has no older changes any more, for example after its restart: so the session tells of such lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
from kubernetes.aio.client import ApiClient
from yarl import URL

from joex_operator.cluster import shallow_json
from joex_operator.cluster.kubernetes_api import describe

_LOGIN_EVERY = 2.0
"""Seconds between two sessions, because kopf asks for a new one after each 401."""


class _Lines:
    """The body of an answer, whose lines kopf parses: each is an event of a watch."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """As the body's, in whole lines."""
        rest = b""
        async for data in self._body.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield shallow_json.shallow(line) + b"\n"
        yield rest


class _Answer(aiohttp.ClientResponse):
    """An answer of the API server, in which no object is nested too deeply for kopf."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """As aiohttp's."""
        await super().start(connection)
        self.content: Any = _Lines(self.content)
        return self

    async def json(self, **_: Any) -> Any:
        """As aiohttp's."""
        return shallow_json.read(await self.read())


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
        self._live: set[str] = set()
        self._failure = ""
        self._session: aiohttp.ClientSession | None = None
        self._next_at = 0.0

    def problem(self) -> str | None:
        """Why a watch is not live, in one line; None: all are live. May be called from any thread."""
        for path in self._paths:
            if wrong := self._wrong.get(path):
                return f"the watch on {path}: {wrong}"
            if path not in self._live:
                return f"the watch on {path} has not started" + (f": {self._failure}" if self._failure else "")
        return None

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
        answer = request.response
        if not answer.ok:
            self._note(request.url, f"{answer.status} {answer.reason}")
        elif request.url.query.get("watch") == "true":
            path = self._path(request.url)
            self._wrong.pop(path, None)
            self._live.add(path)
        elif self._path(request.url) in self._live:
            self._listed_anew()

    async def _note_failure(
        self, _session: aiohttp.ClientSession, _context: SimpleNamespace, request: aiohttp.TraceRequestExceptionParams
    ) -> None:
        if not isinstance(request.exception, asyncio.CancelledError):  # kopf ends
            self._note(request.url, describe(request.exception))

    def _note(self, url: URL, wrong: str) -> None:
        self._wrong[self._path(url)] = self._failure = wrong

    def _path(self, url: URL) -> str:
        return url.path.removeprefix(self._prefix)
