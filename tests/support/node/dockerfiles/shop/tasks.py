"""Tasks of the stories: each is one way to be busy."""

import asyncio
import os
from typing import Any

import joex

app = joex.App()


@app.task("shop.hold", retries=3, retry_delay="1s")
async def hold(ctx: joex.Context, seconds: float = 5) -> dict[str, Any]:
    """Wait."""
    await asyncio.sleep(seconds)
    return {"pod": os.environ.get("HOSTNAME"), "attempt": ctx.attempt}


@app.task("shop.eat", retries=2, retry_delay="1s")
def eat(_ctx: joex.Context, megabytes: int) -> None:
    """Take memory until the kernel says no."""
    _kept = [bytearray(os.urandom(1024)) * 1024 for _ in range(megabytes)]


@app.task("shop.fill", retries=0)
def fill(ctx: joex.Context, megabytes: int, seconds: float) -> None:
    """Write more than the node allows, and wait for its reaction."""
    with open("/tmp/filled", "wb") as file:  # noqa: PTH123, S108 - the volume of the pod
        file.writelines(os.urandom(1024) * 1024 for _ in range(megabytes))
    ctx.wait_cancelled(seconds)


@app.task("shop.look", retries=0)
def look(_ctx: joex.Context) -> dict[str, Any]:
    """Return the user of the task, and the folders that it may write."""
    writable = [path for path in ("/app", "/opt/joex", "/tmp", "/", "/var/tmp") if os.access(path, os.W_OK)]  # noqa: S108
    return {"uid": os.getuid(), "gid": os.getgid(), "pid": os.getpid(), "writable": writable}
