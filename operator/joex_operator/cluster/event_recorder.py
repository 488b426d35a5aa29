"""Records Events, which ``kubectl describe`` and ``kubectl get events`` show."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from joex_operator.api.names import API_VERSION, FIELD_MANAGER
from joex_operator.api.objects import Ref
from joex_operator.cluster.kubernetes_api import ApiError, Conflict, KubernetesApi, NotFound, path_of
from joex_operator.decide.events import Event

_log = logging.getLogger("joex.operator")

_LONGEST = 1000
_MOST_REMEMBERED = 2000


class EventRecorder:
    """Writes Events. It increments the count of an Event that it has written before about the same object."""

    def __init__(self, api: KubernetesApi, identity: str) -> None:
        self._api = api
        self._identity = identity
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def record(self, ref: Ref, events: Sequence[Event]) -> None:
        """Write Events about an object, and log them. An error is logged, because nothing depends on Events."""
        for event in events:
            level = logging.WARNING if event.type == "Warning" else logging.INFO
            _log.log(level, "%s %s/%s: %s: %s", ref.kind, ref.namespace, ref.name, event.reason, event.message)
            try:
                await self._write(ref, event)
            except ApiError as error:
                _log.warning("could not write an Event: %s", error)

    async def _write(self, ref: Ref, event: Event) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        message = event.message[:_LONGEST]
        content = f"{ref.kind}\0{ref.uid}\0{event.type}\0{event.reason}\0{message}\0{self._identity}"
        name = f"{ref.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        count = self._counts[name] = self._counts.pop(name, 0) + 1
        while len(self._counts) > _MOST_REMEMBERED:
            self._counts.popitem(last=False)
        if count > 1:
            with suppress(NotFound):  # the API server deletes Events after an hour
                await self._api.patch(path_of(ref.namespace, "events", name), {"count": count, "lastTimestamp": now})
                return
        await self._create(ref, event, name, message, now)

    async def _create(self, ref: Ref, event: Event, name: str, message: str, now: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": ref.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": ref.kind,
                "name": ref.name,
                "namespace": ref.namespace,
                "uid": ref.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._identity,
        }
        with suppress(Conflict):  # another process has written it before
            await self._api.create(path_of(ref.namespace, "events"), body)
