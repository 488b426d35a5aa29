"""A process that has what Python has on Windows, as far as Joex uses it: run this before anything else."""

# The libraries come first, because they know Windows.
AS_ON_WINDOWS = """
import os, signal, socket, sys, time
import asyncio.subprocess, asyncpg, cronsim, fastapi.responses, fdb.tuple, oncalendar, prometheus_client.core
import pydantic_settings, rich.live, structlog, typer, uvicorn.protocols.http.h11_impl
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None
for module, names in (
    (os, "chown fork geteuid getuid killpg set_blocking"),
    (signal, "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIG_BLOCK SIG_UNBLOCK pthread_sigmask"),
    (socket, "TCP_INFO TCP_USER_TIMEOUT"),
    (time, "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime"),
):
    for name in names.split():
        delattr(module, name)
sys.platform = "win32"
"""
