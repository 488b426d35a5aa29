"""Requests to the Kubernetes API: objects as JSON, errors as one line."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.exceptions import ApiException

from joex.places import Places, leaves_some
from joex.store.name_lookups import OWNER
from joex_operator.cluster import object_parts, shallow_json
from joex_operator.cluster.body_turns import SMALL, BodyTurns
from joex_operator.control.fleet import FleetError
from joex_operator.metrics import OperatorMetrics

Object: TypeAlias = dict[str, Any]

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"

PAGE = 5
"""Objects of a list that are read at once: each may have 1.5 MB, six times as much as JSON, or ten for the parser."""

_WITHIN = 30.0
"""Seconds for an answer, from when a request has a connection."""
_TOO_MANY, _LEAST_ERROR, _LEAST_FAILURE = 429, 400, 500
_MOST_TRIES, _LONGEST_PAUSE = 4, 5.0
"""An API server that is busy, or that begins to serve a new kind, answers 429 with Retry-After."""
_SAME_TIME = timedelta(seconds=2)
"""The times of answers have whole seconds, and take a moment on their way."""
_WRONG = timedelta(days=366)
"""A time so far from that of this host is no clock's."""
_DATE = "%a, %d %b %Y %H:%M:%S GMT"
"""The one format that servers send (RFC 9110)."""
_STRICT = range(79, 95)
"""OpenSSL's error codes of its strict mode for certificates, such as 92: a CA certificate without key usage."""


class ApiError(FleetError):
    """The API server refused a request, or is unreachable."""


class Forbidden(ApiError):
    """The operator has no right to this."""


class NotFound(ApiError):
    """There is no such object."""


class NoNamespace(NotFound):
    """The namespace does not exist: the API server names it, where a proxy says of anything that it is not found."""


class NamespaceTerminating(ApiError):
    """The namespace is being deleted: the API server creates nothing in it."""


class Conflict(ApiError):
    """The object exists already, has changed since it was read, or has another uid than the request names."""


class Invalid(ApiError):
    """The object is invalid."""


_ERRORS: dict[int, type[ApiError]] = {400: Invalid, 403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid}


class KubernetesApi:
    """The Kubernetes API, with the credentials of ``client``."""

    def __init__(self, client: ApiClient, metrics: OperatorMetrics) -> None:
        self.client = client
        # By the namespaces whose reconciles these requests are of; lists are of none. A webhook may answer late.
        self._places: Places[str] = Places(client.configuration.connection_pool_maxsize, leaves_some)
        self._turns = BodyTurns()
        # The client would hold up to 4 MB of each answer that waits for its turn.
        client.configuration.client_session_kwargs = {"read_bufsize": SMALL}
        self._metrics = metrics
        self._clock = self._told = datetime.now(UTC), time.monotonic()

    def now(self) -> datetime:
        """The time by the clock of the API server, as its answers tell it; before the first ones, by that of this host.

        Deletions and conditions have times of the cluster: a host ten minutes ahead would take them for so much older.
        """
        return _now_by(self._clock)

    async def get(self, path: str, **query: str) -> Object:
        """Read an object, or a list."""
        return await self._request("GET", path, query)

    async def pages(self, path: str, **query: str) -> AsyncIterator[Object]:
        """Read a list in pages, all as of the version of the first: parsed, 10,000 Deployments take 400 MB."""
        more: dict[str, str] = {}
        while True:
            page = await self.get(path, **query, limit=str(PAGE), **more)
            yield page
            if not (token := page["metadata"].get("continue")):
                return
            more = {"continue": token}

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Create an object."""
        return await self._request("POST", path, query, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace an object, if it still has the resource version that ``body`` names."""
        return await self._request("PUT", path, {}, body)

    async def patch(self, path: str, body: Mapping[str, Any], kind: str = MERGE, **query: str) -> Object:
        """Change an object: by a merge patch, or (`APPLY`) server-side apply."""
        return await self._request("PATCH", path, query, body, kind)

    async def delete(self, path: str, body: Mapping[str, Any]) -> Object:
        """Delete an object; ``body`` has the DeleteOptions."""
        return await self._request("DELETE", path, {}, body)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        status, answer, again_in = await self._send(method, path, query, body, headers)
        for _ in range(_MOST_TRIES):
            if status != _TOO_MANY or again_in is None:
                break
            await asyncio.sleep(min(again_in, _LONGEST_PAUSE))
            status, answer, again_in = await self._send(method, path, query, body, headers)
        if isinstance(answer, str):
            answer = {"message": answer}
        elif status < _LEAST_ERROR:
            return answer
        message = " ".join(str(answer.get("message") or answer).split())
        raise _error(status, answer)(f"{method} {path}: {message}")

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, headers: Mapping[str, str]
    ) -> tuple[int, Object | str, float | None]:
        """Send a request once; returns the status, the object or else the text, and the seconds of Retry-After."""
        try:
            async with self._places.one_of(OWNER.get()):
                request = await self.client.param_serialize(
                    method, path, None, list(query.items()), dict(headers), body, auth_settings=["BearerToken"]
                )
                response = (await self.client.call_api(*request, _request_timeout=_WITHIN)).response
                async with self._turns.body(response) as text:
                    reads_parts = method == "GET" and response.ok and object_parts.are_at(path)
                    answer = _read(text, object_parts.read_list if reads_parts else shallow_json.read)
        except (TimeoutError, ApiException, aiohttp.ClientError, OSError, ValueError) as error:
            self._metrics.own.api_request(method, "none")
            raise ApiError(f"can't reach the API server: {describe(error)}") from error
        self._metrics.own.api_request(method, str(response.status))
        if response.status < _LEAST_FAILURE:  # (a proxy answers with 502 and its own time)
            self._set_clock(response.headers.get("Date", ""))
        again_in = response.headers.get("Retry-After", "")
        return response.status, answer, float(again_in) if again_in.isdecimal() else None

    def _set_clock(self, date: str) -> None:
        with suppress(ValueError):  # (a proxy may send none, or anything)
            found = datetime.strptime(date, _DATE).replace(tzinfo=UTC)
            if abs(found - datetime.now(UTC)) >= _WRONG:
                return
            # Two answers in a row must tell it: by one wrong time of a proxy, all that began before would be over.
            before, self._told = _now_by(self._told), (found, time.monotonic())
            if abs(found - self.now()) > _SAME_TIME >= abs(found - before):
                self._clock = self._told


def _now_by(clock: tuple[datetime, float]) -> datetime:
    """The time by a clock: what it told, and the process's own time then."""
    told, at = clock
    return told + timedelta(seconds=time.monotonic() - at)


def describe(error: BaseException) -> str:
    """An error of a connection in one line, with a hint on certificates that only OpenSSL's strict mode refuses."""
    line = " ".join(str(error).split()) or type(error).__name__
    tls = getattr(error, "certificate_error", error)
    if isinstance(tls, ssl.SSLCertVerificationError) and tls.verify_code in _STRICT:
        line += "; JOEX_OPERATOR_STRICT_X509=false (operator.strictX509 of the chart) accepts such certificates"
    return line


def _error(status: int, answer: Object) -> type[ApiError]:
    match answer:
        case {"details": {"causes": [{"reason": "NamespaceTerminating"}, *_]}}:
            return NamespaceTerminating
        case {"reason": "NotFound", "details": {"kind": "namespaces"}}:
            return NoNamespace
    return _ERRORS.get(status, ApiError)


def _read(text: bytearray, read: Callable[[bytes | bytearray], Any]) -> Object | str:
    """The object of an answer; its text: it has none, as when it comes from a proxy."""
    try:
        answer = read(text or b"{}")
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else text.decode(errors="replace")


def path_of(namespace: str, kind: str, name: str = "") -> str:
    """The path of an object, or (without a name) of all of its kind; without a namespace, in the whole cluster.

    >>> path_of("prod", "deployments", "documents-0")
    '/apis/apps/v1/namespaces/prod/deployments/documents-0'
    >>> path_of("", "pods")
    '/api/v1/pods'
    """
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{_ROOTS[kind]}{where}/{kind}" + (f"/{name}" if name else "")


_ROOTS = {
    "configmaps": "/api/v1",
    "events": "/api/v1",
    "namespaces": "/api/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "deployments": "/apis/apps/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "joexpools": "/apis/joex.dev/v1alpha1",
    "periodictasks": "/apis/joex.dev/v1alpha1",
}
