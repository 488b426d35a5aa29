"""The event loop of executors and operators: uvloop's where there is one, which is not the case on Windows."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")

_LONGEST_NAME = 253
"""Characters of the name of a host, or of an address: to encode a longer text takes long."""

_DESCRIPTORS = 65_536  # at most: some programs that a task starts close as many as there may be


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop, whose look-ups of names are calls of its default executor.

    Raises this process's limit of open files: that of 1,024, which systems set for the sake of programs with `select`,
    leaves few beside 800 connections of callers.
    """
    _raise_limit_of_files()
    try:
        import uvloop  # noqa: PLC0415 - the other commands do without
    except ImportError:
        return asyncio.new_event_loop()

    class Loop(uvloop.Loop):
        """Looks names up as asyncio's own does, so that the groups of an executor share the threads of these calls.

        (uvloop has two threads for that, first come, first served: two names whose servers are silent occupy them.)

        A handler of a signal comes beside one that the process has set by `signal.signal`, and not in its place, so
        that no task which waits for SIGTERM keeps it from the executor, or lets it end the process later.
        """

        def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
            with _keeping_handler(self, sig):
                super().add_signal_handler(sig, callback, *args)

        def remove_signal_handler(self, sig: int) -> bool:
            with _keeping_handler(self, sig):
                return bool(super().remove_signal_handler(sig))

        async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
            # Here and now: `sock_connect` asks for that, too. (A port may be the name of a service, in some directory.)
            if host and (port is None or isinstance(port, int)) and _is_address(host):
                return socket.getaddrinfo(host, port, **more)
            return await self.run_in_executor(None, lambda: socket.getaddrinfo(host, port, **more))

        async def create_connection(
            self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
        ) -> tuple[Any, Any]:
            if not host or _is_address(host) or more.get("local_addr") is not None or more.get("sock") is not None:
                return await super().create_connection(protocol_factory, host, port, **more)
            if more.get("ssl") and more.get("server_hostname") is None:
                more["server_hostname"] = host
            asked = {name: more.pop(name) for name in ("family", "proto", "flags") if name in more}
            sock = await _connected(self, await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **asked))
            try:
                return await super().create_connection(protocol_factory, sock=sock, **more)
            except BaseException:
                sock.close()
                raise

    return Loop()


@contextmanager
def _keeping_handler(loop: asyncio.AbstractEventLoop, sig: int) -> Iterator[None]:
    """Keep the process's own handler of a signal, while this loop sets or removes one."""
    own = signal.getsignal(sig)
    yield
    is_ignored = own is signal.SIG_IGN and signal.getsignal(sig) in (signal.SIG_DFL, signal.default_int_handler)
    is_own = callable(own) and own is not signal.default_int_handler and getattr(own, "__self__", None) is not loop
    if is_own or is_ignored:
        signal.signal(sig, own)  # (the loop learns of signals by the wake-up file of the process)
        if sys.platform != "win32":
            signal.siginterrupt(sig, False)  # noqa: FBT003 - takes no name; as in `reacting_to_signals`


def _raise_limit_of_files() -> None:
    if sys.platform != "win32":
        import resource  # noqa: PLC0415 - Windows has none

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < most:
            with suppress(OSError, ValueError):  # the system refuses it
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _is_address(host: str | bytes) -> bool:
    if len(host) > _LONGEST_NAME:
        return False
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True


async def _connected(loop: asyncio.AbstractEventLoop, found: Iterable[tuple[Any, ...]]) -> socket.socket:
    """A socket that is connected to the first of these addresses that answers; the errors are as those of asyncio."""
    failed: list[OSError] = []
    try:
        for family, kind, proto, _, (host, port, *more) in found:
            scope = f"%{more[1]}" if more and more[1] else ""  # of an address that is local to a link
            try:
                sock = socket.socket(family, kind, proto)
            except OSError as error:
                failed.append(error)
                continue
            try:
                sock.settimeout(0)
                await loop.sock_connect(sock, (f"{host}{scope}", port))
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                failed.append(error)
            else:
                return sock
        if len({(type(error), error.errno) for error in failed}) == 1:
            raise failed[0]
        raise OSError("; ".join(map(str, failed)) or "no address was found")
    finally:
        failed = []  # (which the errors' tracebacks refer to)
