"""``python -m tests.support.chaos``, which `make chaos` runs: break, check, report."""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.chaos import report
from tests.support.chaos.session import Plan, run


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line."""
    parser = argparse.ArgumentParser(
        prog="make chaos",
        description="Put Joex under random load and random faults, and hold it to its guarantees. "
        "The exit code is 1 if one was broken.",
    )
    parser.add_argument("--minutes", type=float, default=10, help="for how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeats the schedule of faults and load (default: another each time)")
    parser.add_argument(
        "--replication",
        choices=("sync", "async"),
        default="sync",
        help="async: a promoted standby may lack the last transactions, which the check allows for (default: sync)",
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result as Markdown tables")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the history and the logs in this new folder")
    given = parser.parse_args(arguments)
    if given.minutes <= 0:
        parser.error("--minutes: expected more than 0")
    return given


def main(arguments: Sequence[str]) -> int:
    """Run, and return the exit code."""
    given = parse(arguments)
    seed = random.randrange(10**6) if given.seed is None else given.seed
    plan = Plan(seed, given.minutes * 60, is_synchronous=given.replication == "sync")
    say = _teller(as_json=given.json)
    say(f"seed {seed}, {given.minutes:g} min, {given.replication} replication")
    if given.keep is None:
        with tempfile.TemporaryDirectory(prefix="joex-chaos-") as folder:
            result = asyncio.run(run(plan, Path(folder), say))
    else:
        given.keep.mkdir(parents=True)
        result = asyncio.run(run(plan, given.keep, say))
    print(report.to_json(result) if given.json else report.to_text(result), flush=True)
    if given.report is not None:
        report.write(result, given.report)
    return 1 if result.breaches else 0


def _teller(*, as_json: bool) -> Callable[[str], None]:
    began = time.monotonic()

    def say(line: str) -> None:
        seconds = time.monotonic() - began
        print(
            json.dumps({"seconds": round(seconds, 1), "line": line}) if as_json else f"{seconds:7.1f} s  {line}",
            flush=True,
        )

    return say


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
