"""Requests to a Kubernetes API by path, and watches that survive failures of the API."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.cluster import kubeconfig
from tests.support.waiting import PATIENCE

Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_AGAIN_AFTER = 0.1


class ApiError(Exception):
    """The API refused a request: ``code`` is that of HTTP, ``reason`` that of Kubernetes."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class Connection:
    """Requests of one user of one cluster, in one event loop."""

    def __init__(self, path: Path, *, context: str | None = None) -> None:
        self._access = kubeconfig.read(path, context=context)
        self.server = self._access.server
        self.last_error = ""
        self._http = httpx.AsyncClient(
            base_url=self.server,
            verify=self._access.ssl_context(),
            trust_env=False,
            timeout=PATIENCE,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        accept: str = "application/json",
        **parameters: str,
    ) -> Object:
        """Send a request and return the answer's JSON. ``body``: an object, or its JSON.

        Raises:
            ApiError: the API refused it.
            httpx.TransportError: the API does not answer.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**self._headers(), "Content-Type": media, "Accept": accept}
        answer = await self._http.request(method, path, content=content, params=parameters, headers=headers)
        while method == "GET" and answer.status_code == httpx.codes.TOO_MANY_REQUESTS:  # its cache is being filled
            await asyncio.sleep(_AGAIN_AFTER)
            answer = await self._http.request(method, path, params=parameters, headers=headers)
        if answer.is_error:
            raise _error(answer)
        found: Object = answer.json()
        return found

    async def text(self, path: str, **parameters: str) -> str:
        """Send a GET request and return the answer's text: logs, for instance."""
        answer = await self._http.get(path, params=parameters, headers=self._headers())
        if answer.is_error:
            raise _error(answer)
        return answer.text

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[Object, None]:
        """The events of objects under a path since a version, until the API ends it. An ERROR is an event as well."""
        wanted = {**parameters, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        timeout = httpx.Timeout(PATIENCE, read=None)
        stream = self._http.stream("GET", path, params=wanted, headers=self._headers(), timeout=timeout)
        async with stream as answer:
            if answer.is_error:
                await answer.aread()
                raise _error(answer)
            async for line in answer.aiter_lines():
                yield json.loads(line)

    async def states(self, path: str, **parameters: str) -> AsyncGenerator[list[Object], None]:
        """All objects under a path, again after each change, across failures of the API."""
        while True:
            try:
                listed = await self.request("GET", path, **parameters)
                objects = {item["metadata"]["uid"]: item for item in listed["items"]}
                yield list(objects.values())
                async with aclosing(self.watch(path, listed["metadata"]["resourceVersion"], **parameters)) as events:
                    async for event in events:
                        if event["type"] == "ERROR":
                            break
                        if event["type"] != "BOOKMARK":
                            _follow(objects, event)
                            yield list(objects.values())
            except (ApiError, httpx.TransportError) as error:
                self.last_error = repr(error)
            await asyncio.sleep(_AGAIN_AFTER)

    def _headers(self) -> dict[str, str]:
        token = self._access.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def _follow(objects: dict[str, Object], event: Object) -> None:
    if event["type"] == "DELETED":
        objects.pop(event["object"]["metadata"]["uid"], None)
    else:
        objects[event["object"]["metadata"]["uid"]] = event["object"]


def _error(answer: httpx.Response) -> ApiError:
    try:
        said = answer.json()
        return ApiError(answer.status_code, said.get("reason", ""), said.get("message", answer.text))
    except (ValueError, AttributeError):
        return ApiError(answer.status_code, answer.reason_phrase, answer.text)
