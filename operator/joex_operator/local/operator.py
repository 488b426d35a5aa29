"""A run of ``joex up``, until its last executor has left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from joex.cli.signals import reacting_to_signals
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
    """An object of the files, with the uid and generation that an API server would give it."""

    document: Document
    uid: str
    generation: int = 1

    def manifest(self) -> dict[str, Any]:
        """The object as an API server would return it."""
        given = self.document.manifest
        return {**given, "metadata": {**given["metadata"], "uid": self.uid, "generation": self.generation}}


class LocalOperator:
    """Runs the pools and periodic tasks of the files.

    Args:
        namespace: the name of this ``joex up``, the namespace of its executors and tasks.
        documents: the content of the files.
        read: reads the files again.
        urls: the URLs of databases, by the names of their secrets.
        default_url: of all other databases.
        output: shows users what happens.
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
        self._documents = documents
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
        """Run until a signal comes and all executors have drained."""
        with reacting_to_signals(self._on_stop), reacting_to_signals(lambda _: self._reload(), [signal.SIGHUP]):
            await self._run()

    async def _run(self) -> None:
        self._apply(self._documents)
        controlling = asyncio.create_task(self._controller.run())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({controlling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The controller first, so that it starts no more executors.
            controlling.cancel()
            stopping.cancel()
            await asyncio.wait({controlling})
            await self._fleet.end()
        if not controlling.cancelled():
            controlling.result()  # raises the error that has ended it

    def _wake(self, namespace: str, pool: str) -> None:
        self._controller.enqueue(namespace, pool)

    def _on_stop(self, name: str) -> None:
        running = ", ".join(self._fleet.running()) or "none"
        if not self._stop.is_set():
            self._stop.set()
            message = f"{name}: waiting for the executors: {running}; a further signal makes them give their jobs back"
            self._show("Stopping", message)
        else:
            self._show("Interrupting", f"{name} again: the executors give their jobs back: {running}")
            self._fleet.interrupt()

    # The content of the files.

    def _reload(self) -> None:
        if self._stop.is_set():
            return
        try:
            documents = self._read()
            check_changes({key: loaded.document for key, loaded in self._loaded.items()}, documents)
        except ConfigError as error:
            self._show("NotReloaded", f"nothing has changed: {error}", bad=True)
        else:
            self._apply(documents)
            self._show("Reloaded", f"{len(documents)} objects in the files")

    def _apply(self, documents: Documents) -> None:
        for key, document in documents.items():
            loaded = self._loaded.get(key)
            if loaded is None:
                self._loaded[key] = _LoadedObject(document, str(uuid4()))
                if document.kind == POOL:
                    self._fleet.add_pool(document.name)
                self._show_spec(document, "Loaded")
            elif loaded.document.spec != document.spec:
                loaded.document, loaded.generation = document, loaded.generation + 1
                self._show_spec(document, "Changed")
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
            leaving = asyncio.create_task(self._drain(name))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _drain(self, pool: str) -> None:
        await self._fleet.end(pool)
        self._output.event(POOL, pool, Event("Normal", "Gone", "its executors have left"))

    # Events for users.

    def _show(self, reason: str, message: str, *, bad: bool = False) -> None:
        self._output.event(_OPERATOR, self._namespace, Event("Warning" if bad else "Normal", reason, message))

    def _show_spec(self, document: Document, reason: str) -> None:
        spec = document.spec
        summary = _size(spec) if isinstance(spec, JoexPoolSpec) else f"{spec.task}, {spec.timer}"
        self._output.event(document.kind, document.name, Event("Normal", reason, f"{summary} ({document.place})"))
        for field in unused(spec) if isinstance(spec, JoexPoolSpec) else ():
            ignored = f"{field} has no effect without a cluster"
            self._output.event(document.kind, document.name, Event("Warning", "NotUsed", ignored))


def _size(spec: JoexPoolSpec) -> str:
    """The size of a pool, for users."""
    slots = f"with {spec.pool_size} slot{'s' * (spec.pool_size != 1)} each, for {', '.join(spec.queues)}"
    if spec.suspend:
        return "suspended: no executors"
    if spec.replicas is not None:
        return f"{spec.replicas} executors {slots}"
    return f"{spec.scaling.min_replicas} to {spec.scaling.max_replicas} executors {slots}"
