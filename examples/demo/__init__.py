"""``make demo``: four tenants, real work, a pool that grows and shrinks, and an executor that is killed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.options import AsJson
from joex.cli.output import print_json
from joex.cli.sigterm import leaving_in_order

if TYPE_CHECKING:
    from examples.demo.stage import Stage


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def demo(
    *,
    files: Annotated[
        int | None,
        typer.Option(min=50, max=10_000, help="Files that the largest tenant hands in. None: the whole library."),
    ] = None,
    as_json: AsJson = False,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A PostgreSQL server on which to make a database for the demo. None: an embedded one."
        ),
    ] = None,
) -> None:
    """See four tenants share a growing pool of executors fairly, one of which is killed.

    One tenant hands in the source files of Python's standard library at once,
    three others 20 each behind it. 'joex up' adds executors, from none to three, and removes them at the end.
    Half-way one of them is killed, and nothing is lost.
    It takes less than a minute, on a database of its own, dropped at the end.
    The exit code is 0 if every job has come to its end.
    """
    # Here and not above, so that a SIGTERM before they are imported finds nothing to leave in order.
    from rich.console import Console  # noqa: PLC0415

    from examples.demo.report import print_summary  # noqa: PLC0415
    from examples.demo.stage import make_stage  # noqa: PLC0415
    from examples.demo.story import play  # noqa: PLC0415

    console = Console(stderr=as_json, highlight=False)
    with make_stage(console) as stage, _server(database_url, stage) as url:
        summary = asyncio.run(play(url, files, stage))
    if as_json:
        print_json(summary)
    else:
        print_summary(console, summary)
    if summary.lost:
        raise typer.Exit(1)


@contextmanager
def _server(url: str | None, stage: Stage) -> Iterator[str]:
    """Give the URL of a server. A URL in the environment is not meant for this, and not looked at."""
    if url is not None:
        from joex.config import load_settings  # noqa: PLC0415

        yield load_settings({"database_url": url}).url or url
        return
    from joex.store.embedded import EmbeddedServer, default_folder  # noqa: PLC0415

    stage.tell(f"starting the embedded PostgreSQL in {default_folder()}")
    with leaving_in_order() as begun:
        server = EmbeddedServer()
        try:
            begun()
            yield server.url
        finally:
            server.close()
