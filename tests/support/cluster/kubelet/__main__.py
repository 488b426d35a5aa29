"""The process of a node. Its settings are its argument; its orders come on standard input, a line of JSON each.

It answers each order with a line on standard output. At the end of its input the kubelet ends; its guard ends the rest.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.cluster.kubelet.link import Link
from tests.support.cluster.kubelet.node import Node
from tests.support.cluster.kubelet.pods import Pods
from tests.support.cluster.kubelet.settings import Settings

_LONGEST_ORDER = 2**20


async def main(settings: Settings) -> None:
    """Be a node until standard input ends."""
    async with Link(Path(settings.kubeconfig)) as link:
        pods = Pods(settings, link)
        tasks = {
            asyncio.ensure_future(work) for work in (Node(settings, link).report(), pods.follow(), _obey(link, pods))
        }
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for task in done:
            task.result()


async def _obey(link: Link, pods: Pods) -> None:
    reader = asyncio.StreamReader(limit=_LONGEST_ORDER)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    orders: dict[str, Callable[..., Any]] = {
        "ping": lambda: None,
        "silence": link.silence,
        "resume": link.resume,
        "evict": lambda pod, message, grace: pods[pod].evict(message, grace),
        "kill": lambda pod, container, out_of_memory: pods[pod].container(container).kill(out_of_memory=out_of_memory),
        "pid": lambda pod, container: pods[pod].container(container).pid,
    }
    while line := await reader.readline():
        order = json.loads(line)
        try:
            answer = {"result": orders[order.pop("order")](**order)}
        except LookupError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Settings.load(sys.argv[1])))
