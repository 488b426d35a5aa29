"""One run of ``joex up``, from the first look at the pools until the last executor has left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from joex.errors import ConfigError
from joex_operator.api.spec import JoexPoolSpec
from joex_operator.control.controller import POOL, Controller
from joex_operator.decide.events import Event
from joex_operator.local.environment import unused
from joex_operator.local.files import Document, Documents, check_changes
from joex_operator.local.fleet import ProcessFleet
from joex_operator.local.output import ConsoleOutput, JsonOutput

_OPERATOR = "joex up"


@dataclass(slots=True)
class _LoadedObject:
    """An object, from its appearance in the files until it is not there any more."""

    document: Document
    uid: str
    generation: int = 1

    def manifest(self) -> dict[str, Any]:
        """The object as an API server would give it."""
        given = self.document.manifest
        return {**given, "metadata": {**given["metadata"], "uid": self.uid, "generation": self.generation}}


class LocalOperator:
    """Keeps pools as the files say.

    Args:
        namespace: the name of this ``joex up``: of its executors, and of its tasks.
        documents: what is in the files.
        read: reads the files anew.
        urls: the URLs of databases, by the name of their secret.
        default_url: of all others.
        output: where people see what happens.
    """

    def __init__(
        self,
        namespace: str,
        documents: Documents,
        read: Callable[[], Documents],
        *,
        urls: Mapping[str, str],
        default_url: str | None,
        output: ConsoleOutput | JsonOutput,
    ) -> None:
        self._namespace = namespace
        self._first = documents
        self._read = read
        self._output = output
        self._loaded: dict[tuple[str, str], _LoadedObject] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._fleet = ProcessFleet(
            urls,
            default_url,
            log_format=output.log_format,
            output=output,
            changed=self._wake,
        )
        self._controller = Controller(self._fleet, worker=f"{_OPERATOR} {namespace}")

    async def run(self) -> None:
        """Run until a signal says that it is enough, and all executors have drained."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number.name)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._apply(self._first)
        controlling = asyncio.create_task(self._controller.run())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({controlling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The controller first: nobody starts an executor from now on.
            controlling.cancel()
            stopping.cancel()
            await asyncio.wait({controlling})
            await self._fleet.end()
        if not controlling.cancelled():
            controlling.result()  # raises what has ended it

    def _wake(self, namespace: str, pool: str) -> None:
        self._controller.wake(namespace, pool)

    def _on_stop(self, name: str) -> None:
        running = ", ".join(self._fleet.running()) or "none"
        if not self._stop.is_set():
            self._stop.set()
            said = f"{name}: waiting for the executors: {running}; a further signal makes them give their jobs back"
            self._tell("Stopping", said)
        else:
            self._tell("Hurrying", f"{name} again: the executors give their jobs back: {running}")
            self._fleet.hurry()

    # What the files say.

    def _reload(self) -> None:
        if self._stop.is_set():
            return
        try:
            documents = self._read()
            check_changes({key: loaded.document for key, loaded in self._loaded.items()}, documents)
        except ConfigError as error:
            self._tell("NotReloaded", f"nothing is changed: {error}", bad=True)
        else:
            self._apply(documents)
            self._tell("Reloaded", f"{len(documents)} objects in the files")

    def _apply(self, documents: Documents) -> None:
        for key, document in documents.items():
            loaded = self._loaded.get(key)
            if loaded is None:
                self._loaded[key] = _LoadedObject(document, str(uuid4()))
                if document.kind == POOL:
                    self._fleet.begin(document.name)
                self._say(document, "Loaded")
            elif loaded.document.spec != document.spec:
                loaded.document, loaded.generation = document, loaded.generation + 1
                self._say(document, "Changed")
            else:
                continue
            self._controller.put(self._loaded[key].manifest())
        for key in self._loaded.keys() - documents.keys():
            self._remove(*key)

    def _remove(self, kind: str, name: str) -> None:
        del self._loaded[kind, name]
        self._controller.remove(kind, self._namespace, name)
        self._fleet.forget(kind, name)
        self._output.event(kind, name, Event("Normal", "Removed", "it is not in the files any more"))
        if kind == POOL:
            leaving = asyncio.create_task(self._see_off(name))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _see_off(self, pool: str) -> None:
        await self._fleet.end(pool)
        self._output.event(POOL, pool, Event("Normal", "Gone", "its executors have left"))

    # What people are told.

    def _tell(self, reason: str, message: str, *, bad: bool = False) -> None:
        self._output.event(_OPERATOR, self._namespace, Event("Warning" if bad else "Normal", reason, message))

    def _say(self, document: Document, reason: str) -> None:
        spec = document.spec
        said = _size(spec) if isinstance(spec, JoexPoolSpec) else f"{spec.task}, {spec.timer}"
        self._output.event(document.kind, document.name, Event("Normal", reason, f"{said} ({document.place})"))
        for field in unused(spec) if isinstance(spec, JoexPoolSpec) else ():
            ignored = f"{field} means nothing without a cluster, and is not used"
            self._output.event(document.kind, document.name, Event("Warning", "NotUsed", ignored))


def _size(spec: JoexPoolSpec) -> str:
    """What size a pool may have, for people."""
    slots = f"with {spec.pool_size} slots each, for {', '.join(spec.queues)}"
    if spec.suspend:
        return "suspended: no executors"
    if spec.replicas is not None:
        return f"{spec.replicas} executors {slots}"
    return f"{spec.scaling.min_replicas} to {spec.scaling.max_replicas} executors {slots}"
