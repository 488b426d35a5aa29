"""Celery's prefork pool for the benchmark of processes, after its guide: https://docs.celeryq.dev.

This module is the app of a worker with two processes, and the program that starts it and times batches of jobs. Each
line of its input is JSON: the name of a task, and the files of each job. For each it prints the seconds from the
submission of the first job to the end of the last.

- Broker and results are files, which need no server. Celery asks for messages each 10 ms. Jobs run for a tenth of a
  second and longer, so another broker would save little.
- `worker_prefetch_multiplier` is 1, as its guide recommends for tasks that run long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery

from benchmarks import work

_FOLDER = Path(os.environ["JOEX_BENCH_CELERY_FOLDER"])
_LIMIT = 600.0

app = Celery("bench", broker="filesystem://", backend=f"file://{_FOLDER / 'results'}")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(_FOLDER / "messages"),
        "data_folder_out": str(_FOLDER / "messages"),
        "control_folder": str(_FOLDER / "control"),
        "polling_interval": 0.01,
    },
    worker_prefetch_multiplier=1,
)


@app.task(name="parse")
def parse(paths: list[str]) -> float:
    """Parse files; returns the time of the end."""
    work.parse(paths)
    return time.time()


@app.task(name="pack")
def pack(paths: list[str]) -> float:
    """Parse, compress and hash files; returns the time of the end."""
    work.pack(paths)
    return time.time()


def _main(processes: str) -> None:
    for name in ("messages", "control", "results"):
        (_FOLDER / name).mkdir()
    worker = [sys.executable, "-m", "celery", "--app", __spec__.name, "worker", "--pool", "prefork"]
    with subprocess.Popen(
        [*worker, "--concurrency", processes, "--loglevel", "error", "--without-gossip", "--without-mingle"],
        stdout=subprocess.DEVNULL,
    ) as running:
        try:
            for line in sys.stdin:
                name, items = json.loads(line)
                begin = time.time()
                sent = [app.send_task(name, (item,)) for item in items]
                ended = [one.get(timeout=_LIMIT, interval=0.05) for one in sent]
                print(max(ended) - begin, flush=True)
        finally:
            running.terminate()


if __name__ == "__main__":
    _main(sys.argv[1])
