"""A container of a pod: its processes, one after the other, until it has ended for good."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support.cluster.kubelet.environment import ConfigProblem, Json
from tests.support.cluster.kubelet.probes import Prober
from tests.support.cluster.kubelet.process import Backoff, Launch, Running, kill_group
from tests.support.cluster.kubelet.status import ContainerState, running, terminated, waiting
from tests.support.cluster.kubelet.stop import Stop, ends_in_time

_CONFIG_AGAIN = 0.3
_KILLED = 137
_LONGEST_MESSAGE = 4096
_LONGEST_LOG = 2048


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Surroundings:
    """The parts of its pod and of the node that a container needs."""

    address: str
    restart_policy: str
    grace: float
    stop: Stop
    changed: Callable[[], None]
    """The container calls this after each change of the state."""
    launch: Callable[[Json], Awaitable[Launch]]
    """How to start a container; raises ConfigProblem."""
    backoff: Callable[[], Backoff]


class Container:
    """A container, from its first start to its last end."""

    def __init__(self, spec: Json, state: ContainerState, around: Surroundings, log: Path, message: Path) -> None:
        self.spec = spec
        self.state = state
        self._around = around
        self._log = log
        self._message = message
        self._out_of_memory = False
        self._restart = Stop()
        self._process: Running | None = None
        self._launch: Launch | None = None

    @property
    def pid(self) -> int | None:
        """Its process; None: it has none now."""
        return None if self._process is None or self._launch is None else self._launch.pid(self._process)

    async def run(self) -> None:
        """Run until it has ended for good: by its restart policy, or by the pod's end."""
        backoff = self._around.backoff()
        while True:
            started = time.monotonic()
            launch = await self._get_launch()
            if launch is not None:
                await self._run_once(launch)
            if self._around.stop.requested or not self._is_restarted():
                break
            if await self._pause(backoff.delay(time.monotonic() - started)):
                self.state.state, self.state.last_state = self.state.last_state, {}
                break
            self.state.restarts += 1
        self.end()

    def kill(self, *, out_of_memory: bool) -> None:
        """Kill its process, as the kernel does."""
        self._out_of_memory = out_of_memory
        if self._process is None:
            raise LookupError(f"the container {self.state.name} has no process")
        kill_group(self._process)

    def end(self) -> None:
        """Never start it again, or at all."""
        if "terminated" not in self.state.state:
            self.state.state = terminated(_KILLED, "ContainerStatusUnknown", now(), now())
        self.state.ended, self.state.ready, self.state.started = True, False, False
        self._around.changed()

    def _is_restarted(self) -> bool:
        policy = self._around.restart_policy
        return policy == "Always" or (policy == "OnFailure" and not self.state.succeeded)

    async def _get_launch(self) -> Launch | None:
        """Wait for the objects that the container refers to; None: the pod must end first."""
        while not self._around.stop.requested:
            try:
                return await self._around.launch(self.spec)
            except ConfigProblem as problem:
                self._report(waiting(problem.reason, str(problem)))
                await self._around.stop.within(_CONFIG_AGAIN)
        return None

    async def _pause(self, seconds: float) -> bool:
        """Wait before the next start; returns whether the pod must end instead."""
        self.state.last_state = self.state.state
        if not seconds:
            return self._around.stop.requested
        self._report(waiting("CrashLoopBackOff", f"back-off {seconds} s restarting failed container"))
        return await self._around.stop.within(seconds)

    async def _run_once(self, launch: Launch) -> None:
        since = now()
        self._restart = Stop()
        self._message.unlink(missing_ok=True)
        try:
            process = self._process = await launch.start(self._log)
        except OSError as error:
            self._report(terminated(128, "StartError", since, now(), message=str(error)))
            return
        self._launch, self.state.process = launch, f"process://{process.pid}"
        try:
            self._report(running(since))
            async with self._probing(launch):
                await self._until_exit(process, launch)
        finally:
            kill_group(process)
            code = await process.wait()
            launch.kill_all()
            self._process = None
            self.state.ready = self.state.started = False
            self._report(self._end(code, since))

    def _end(self, code: int, since: str) -> Json:
        code = code if code >= 0 else 128 - code
        reason = "OOMKilled" if self._out_of_memory else "Error" if code else "Completed"
        self._out_of_memory = False
        return terminated(code, reason, since, now(), process=self.state.process, message=self._last_words(code))

    def _last_words(self, code: int) -> str:
        if self._message.exists():
            return self._message.read_text(errors="replace")[-_LONGEST_MESSAGE:]
        if code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return self._log.read_text(errors="replace")[-_LONGEST_LOG:]
        return ""

    async def _until_exit(self, process: Running, launch: Launch) -> None:
        stops = (self._around.stop, self._restart)
        exited = asyncio.ensure_future(process.wait())
        ordered = [asyncio.ensure_future(stop.wait()) for stop in stops]
        try:
            await asyncio.wait({exited, *ordered}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._before_stop(launch, min(stop.left for stop in stops))
                launch.terminate(process)
                await ends_in_time(exited, *stops)
        finally:
            for task in (exited, *ordered):
                task.cancel()

    async def _before_stop(self, launch: Launch, seconds: float) -> None:
        hook = self.spec.get("lifecycle", {}).get("preStop", {})
        if "exec" in hook:
            await launch.command(hook["exec"]["command"], self._log, seconds)
        elif "sleep" in hook:
            await asyncio.sleep(min(seconds, hook["sleep"]["seconds"]))

    @asynccontextmanager
    async def _probing(self, launch: Launch) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self._probe(launch))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _probe(self, launch: Launch) -> None:
        prober = Prober(self.spec, self._around.address, lambda argv, limit: launch.command(argv, self._log, limit))
        if not await prober.started():
            self._restart.request(self._grace_of("startupProbe"))
            return
        self.state.started = True
        self._around.changed()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_readiness(prober))
            group.create_task(self._restart_when_dead(prober))

    async def _restart_when_dead(self, prober: Prober) -> None:
        await prober.dead()
        if not self._around.stop.requested:
            self._restart.request(self._grace_of("livenessProbe"))

    def _grace_of(self, probe: str) -> float:
        grace: float = self.spec[probe].get("terminationGracePeriodSeconds", self._around.grace)
        return grace

    async def _follow_readiness(self, prober: Prober) -> None:
        async with aclosing(prober.readiness()) as answers:
            async for ready in answers:
                self.state.ready = ready
                self._around.changed()

    def _report(self, state: Json) -> None:
        self.state.state = state
        self._around.changed()
