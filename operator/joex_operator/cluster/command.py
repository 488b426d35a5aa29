"""The command ``joex operator``."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial

from joex.cli.flags import with_settings
from joex.config import load
from joex.event_loop import new_event_loop
from joex.log_stream import unblocked
from joex.observe.log_lines import capture_logging
from joex_operator.cluster.settings import OperatorSettings

_PANEL = "Settings: a flag, or JOEX_OPERATOR_<FLAG> in the environment"


@partial(with_settings, model=OperatorSettings, panel=_PANEL)
def operator(*, flags: dict[str, str | None]) -> None:
    """Run the Kubernetes operator, which adds and removes executors.

    It watches JoexPool and PeriodicTask objects and the queues of their databases. Of several operators one leads.
    """
    from joex_operator.cluster.operator import run  # noqa: PLC0415 - kopf and kubernetes are slow to import

    settings = load(OperatorSettings, flags)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # In a thread kopf warns that it handles no signals, as intended.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    with unblocked(sys.stderr) as stream, asyncio.Runner(loop_factory=new_event_loop) as runner:
        capture_logging(settings, stream)
        runner.run(run(settings))
