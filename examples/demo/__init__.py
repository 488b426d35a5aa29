"""``make demo``: four tenants, real work, a pool that grows and shrinks, and a killed executor."""

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
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on afterwards, with the console open, until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A PostgreSQL server on which to make a database for the demo. None: an embedded one."
        ),
    ] = None,
) -> None:
    """See four tenants share a growing pool of executors fairly, though one executor is killed.

    One tenant submits the source files of Python's standard library at once,
    and three others submit 20 files each behind it. 'joex up' adds executors, from none to three, and removes them
    at the end. Half-way the demo kills one of them, and no job is lost.
    The demo takes less than a minute, on a temporary database. Meanwhile you can watch it in the console,
    whose address it prints.
    The exit code is 0 if every job has finished.
    """
    # Imported here, so that a SIGTERM that comes earlier finds nothing to clean up.
    from rich.console import Console  # noqa: PLC0415

    from examples.demo.report import print_summary  # noqa: PLC0415
    from examples.demo.stage import make_stage  # noqa: PLC0415
    from examples.demo.story import play  # noqa: PLC0415

    console = Console(stderr=as_json, highlight=False)
    with make_stage(console) as stage, _server(database_url, stage) as url:
        summary = asyncio.run(play(url, files, stage, keep=keep))
    if as_json:
        print_json(summary)
    else:
        print_summary(console, summary)
    if summary.lost:
        raise typer.Exit(1)


@contextmanager
def _server(url: str | None, stage: Stage) -> Iterator[str]:
    """Give the URL of a server. It ignores a URL in the environment, which is not meant for the demo."""
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
